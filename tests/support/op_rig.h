// Runs operators of one backend on memory that is poisoned first: NaN in outputs and scratch, guard bytes behind both.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backends/interface/backend.h"

namespace cairn::test {

/// A device and a queue of one backend, and the memory handed out so far. Not thread-safe.
class OpRig {
 public:
  /// dtype: of activations, kF32 or kBF16. rounds_inputs: activations are rounded to bf16 also where they are f32, so
  /// that a reference in f32 sees what a bf16 backend sees.
  explicit OpRig(const Backend& backend, std::int32_t thread_count = 0, DType dtype = DType::kF32,
                 bool rounds_inputs = false);
  /// Where rows of activations begin: anywhere (odd strides), or at multiples of 8 elements, as models' rows do and fast
  /// forms of operators want. Both have gaps between rows.
  void align_rows(bool aligned) { aligned_rows_ = aligned; }
  std::int64_t row_stride(std::int64_t width, std::int64_t odd_gap) const {
    return aligned_rows_ ? (width + 7) / 8 * 8 + 8 : width + odd_gap;
  }
  ~OpRig();
  OpRig(const OpRig&) = delete;
  OpRig& operator=(const OpRig&) = delete;

  const Backend& backend() const { return backend_; }
  const OpTable& ops() const { return *backend_.ops; }
  BackendDevice* device() const { return device_; }
  DType dtype() const { return dtype_; }

  /// Device copy of host data; lives until clear(). Never null, also for no elements.
  template <class T>
  T* upload(const std::vector<T>& host) {
    T* memory = static_cast<T*>(take(host.size() * sizeof(T)));
    if (!host.empty()) copy(memory, host.data(), host.size() * sizeof(T), CopyKind::kHostToDevice);
    return memory;
  }
  /// Activations in the rig's dtype, from f32; all-ones bits (poison) stay all ones.
  void* upload_activations(std::vector<float> host);
  std::vector<float> download_activations(const void* memory, std::size_t count);
  void* poisoned_activations(std::size_t count);
  /// `count` elements whose bytes are all ones: NaN for floats, -1 for integers.
  template <class T = float>
  T* poisoned(std::size_t count) {
    return upload(poison<T>(count));
  }
  template <class T>
  std::vector<T> download(const T* memory, std::size_t count) {
    std::vector<T> host(count);
    if (count) copy(host.data(), memory, count * sizeof(T), CopyKind::kDeviceToHost);
    return host;
  }
  /// A batch of sequences of these lengths; arrays live until clear().
  Batch batch(const std::vector<std::int32_t>& lengths);
  /// Lets the backend pack a weight whose members lie on the device; unpacked by clear().
  void pack(LinearWeight* weight);

  /// Runs an operator on poisoned scratch and waits. Empty: done. Else why not: the operator's reason, a device error,
  /// or memory written beyond its end.
  template <class Args>
  std::string run(const Op<Args>& op, const Args& args) {
    if (const char* reason = op.unsupported_reason(args)) return reason;
    const std::size_t scratch_bytes = op.scratch_bytes(args);
    void* scratch = scratch_bytes ? poisoned<std::uint8_t>(scratch_bytes) : nullptr;
    op.run(queue_, args, scratch);
    std::string trouble = finish();
    if (scratch) release_to(mark() - 1);
    return trouble;
  }

  /// Gives all memory back.
  void clear();
  /// Memory taken after mark() is given back by release_to().
  std::size_t mark() const { return pieces_.size(); }
  void release_to(std::size_t mark);

 private:
  template <class T>
  static std::vector<T> poison(std::size_t count) {
    std::vector<T> host(count);
    if (count) std::memset(static_cast<void*>(host.data()), 0xFF, count * sizeof(T));
    return host;
  }
  void* take(std::size_t size_bytes);
  void copy(void* to, const void* from, std::size_t size_bytes, CopyKind kind);
  std::string finish();

  struct Piece {
    void* memory;
    std::size_t size_bytes;  ///< without the guard
  };
  const Backend& backend_;
  DType dtype_;
  bool rounds_inputs_;
  bool aligned_rows_ = false;
  BackendDevice* device_ = nullptr;
  BackendQueue* queue_ = nullptr;
  std::vector<Piece> pieces_;
  std::vector<LinearWeight*> packed_;
  std::vector<std::unique_ptr<std::vector<std::int32_t>>> host_offsets_;
};

/// Packed rows [tokens, width].
inline Rows rows(float* data, std::int64_t width) { return {data, width}; }

}  // namespace cairn::test
