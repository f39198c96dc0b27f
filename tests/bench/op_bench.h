// What a benchmark case is: an operator bound to arguments of some shape, with the bytes and products that it cannot
// avoid.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/interface/backend.h"

namespace cairn::bench {

/// Sizes by name ("T", "D", "HK", ...): defaults of the operator, then what the command line says.
class Shape {
 public:
  explicit Shape(std::map<std::string, std::int64_t> overrides) : overrides_(std::move(overrides)) {}
  std::int32_t get(const std::string& name, std::int64_t normal);
  const std::map<std::string, std::int64_t>& used() const { return used_; }
  std::string op;  ///< of ops.inc: operators may share an argument struct

 private:
  std::map<std::string, std::int64_t> overrides_, used_;
};

/// A device, a queue, and memory of the cases of one operator. Cases differ in their numbers and share the scratch.
class Rig {
 public:
  Rig(const Backend& backend, std::int32_t threads);
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  const Backend& backend() const { return backend_; }
  const OpTable& ops() const { return *backend_.ops; }
  BackendDevice* device() const { return device_; }
  BackendQueue* queue() const { return queue_; }
  DeviceDescription description() const;
  DType dtype() const { return dtype_; }
  std::size_t allocated_bytes() const { return allocated_bytes_; }

  void* allocate(std::size_t size_bytes);
  template <class T>
  T* upload(const std::vector<T>& host) {
    void* memory = allocate(host.size() * sizeof(T));
    copy_in(memory, host.data(), host.size() * sizeof(T));
    return static_cast<T*>(memory);
  }
  /// Memory that all cases use, of the largest size asked for.
  void* scratch(std::size_t size_bytes);
  /// What the first case made under this name, for all of them.
  void* shared(const std::string& name, const std::function<void*()>& make);
  /// A host object that lives as long as the rig.
  template <class T>
  T* keep(T value) {
    auto kept = std::make_shared<T>(std::move(value));
    kept_.push_back(kept);
    return kept.get();
  }
  /// f32 numbers in [low, high).
  float* numbers(std::int64_t count, float low, float high);
  /// bf16 numbers in [low, high).
  std::uint16_t* halves(std::int64_t count, float low, float high);
  /// Activations of the rig's element type, in [-1, 1).
  void* activations(std::int64_t count);
  LinearWeight weight(std::int32_t out_dim, std::int32_t in_dim, DType type);
  Batch batch(std::int32_t sequences, std::int32_t tokens_each);
  void copy(void* to, const void* from, std::size_t size_bytes, CopyKind kind);
  void synchronize();

 private:
  void copy_in(void* to, const void* from, std::size_t size_bytes);
  template <class T, class Make>
  T* repeated(std::int64_t count, const Make& make);
  std::uint32_t next_seed() { return seed_ += 0x9E3779B9u; }
  const Backend& backend_;
  BackendDevice* device_ = nullptr;
  BackendQueue* queue_ = nullptr;
  struct Piece {
    void* memory;
    std::size_t size_bytes;
  };
  std::vector<Piece> pieces_;
  std::vector<LinearWeight> packed_;
  std::vector<std::shared_ptr<void>> kept_;
  std::map<std::string, void*> shared_;
  Piece scratch_{};
  std::size_t allocated_bytes_ = 0;
  std::uint32_t seed_ = 1;
  DType dtype_ = DType::kF32;
};

struct Case {
  std::string trouble;        ///< not empty: the operator refuses
  std::function<void()> run;  ///< queues one run
  double bytes = 0;           ///< that must cross memory: weights, states, rows in and out
  double flops = 0;
  std::function<void()> reset;  ///< queues what makes the next run do the same work again, untimed; may be null
};

/// The case of an operator by its name in ops.inc.
Case make_case(Rig& rig, const std::string& op, Shape& shape);
std::vector<std::string> op_names();

}  // namespace cairn::bench
