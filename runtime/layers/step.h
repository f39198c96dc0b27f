// One step: a batch of tokens on its way through the layers. What a layer may use while it runs.
//
// A step runs in one of two modes. Planning: the same layer code runs with pointers that lead nowhere (not null: null means
// "not wanted" to operators); nothing is computed, but every operator is asked whether it supports its arguments, and the
// memory needed is counted. Running: operators are queued.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/interface/backend.h"
#include "backends/interface/scratch_layout.h"
#include "runtime/support/status.h"

namespace cairn {

/// Device arrays of the step's sequences, [B] each.
struct StepStates {
  std::vector<float* const*> dense;       ///< by slot index: [B] pointers (kRecurrent, kConvTail)
  std::vector<const KvCache*> caches;     ///< by the keys' slot index: [B]
  std::vector<const SdmTable*> tables;    ///< by slot index: [B]
  std::vector<std::int32_t> rows_per_slab;  ///< by slot index, of slot tables
  std::vector<DType> row_dtypes;            ///< by slot index, of slot tables
};

/// Sparse prefill of this step; only GDN layers look at it.
struct SparsePrefill {
  bool enabled = false;
  SparsePolicy policy = SparsePolicy::kAdaptive;
  std::int32_t min_chunks = 16;
  bool full_inverse = false;
  std::uint64_t seed = 0;
};

/// The side channel of CLER: the residual of the nearest lower routing layer, [T, width].
struct CrossLayerBus {
  Rows residual;             ///< data null: nothing routed yet
  std::int32_t width = 0;    ///< 0: nothing routed yet
  Rows buffers[2];           ///< filled in turn
  int next = 0;
};

/// Told of every operator that a step runs, for benchmarks.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void before(const char* name) = 0;
  virtual void after(const char* name) = 0;
};

class Step {
 public:
  Step(const OpTable& ops, DType dtype) : ops_(ops), dtype_(dtype) {}
  StepObserver* observer = nullptr;

  const OpTable& ops() const { return ops_; }
  DType dtype() const { return dtype_; }
  Phase phase = Phase::kPrefill;
  Batch batch;
  const std::int64_t* starts = nullptr;       ///< device [B]: position of each sequence's first token
  const std::int64_t* starts_host = nullptr;
  StepStates states;
  SparsePrefill sparse;
  CrossLayerBus bus;
  Rows after_block;   ///< [T, D]: what routing adds after the whole block; data and stride 0: nothing

  std::int32_t token_count() const { return batch.token_count; }

  /// Runs an operator, or plans it.
  template <class Args>
  void run(const Op<Args>& op, const Args& args, const char* name) {
    if (!queue_) {
      if (const char* reason = op.unsupported_reason(args); reason && plan_status_.ok()) {
        plan_status_ = Status::unsupported("%s: %s", name, reason);
      }
      if (!plan_status_.ok()) return;
      const std::size_t need = op.scratch_bytes(args);
      if (need > scratch_peak_) scratch_peak_ = need;
      return;
    }
    if (observer) observer->before(name);
    op.run(queue_, args, scratch_);
    if (observer) observer->after(name);
  }

  /// The same for a fused operator. False: the backend has no form of it for these arguments, and nothing was done.
  template <class Args>
  bool run_if_fused(const Op<Args>& op, const Args& args, const char* name) {
    if (op.unsupported_reason(args)) return false;
    run(op, args, name);
    return true;
  }

  /// An address for planning: never followed.
  static constexpr std::uintptr_t kNowhere = 4096;

  /// Rows of activations [T, width] that live until the enclosing Scope ends.
  Rows rows(std::int64_t width) { return rows_of(token_count(), width); }
  Rows rows_of(std::int64_t count, std::int64_t width) {
    return {take(static_cast<std::size_t>(count * width) * (dtype_bits(dtype_) / 8)), width};
  }
  /// f32 numbers, for gates.
  float* floats(std::int64_t count) { return static_cast<float*>(take(static_cast<std::size_t>(count) * sizeof(float))); }

  /// Memory taken inside is free again at the end.
  class Scope {
   public:
    explicit Scope(Step& step) : step_(step), mark_(step.used_) {}
    ~Scope() { step_.used_ = mark_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Step& step_;
    std::size_t mark_;
  };

  // Set-up by the stream.
  void start_planning() { queue_ = nullptr, base_ = kNowhere, scratch_ = nullptr, used_ = 0; }
  void start_running(BackendQueue* queue, void* activations, void* scratch) {
    queue_ = queue, base_ = reinterpret_cast<std::uintptr_t>(activations), scratch_ = scratch, used_ = 0;
  }
  const Status& plan_status() const { return plan_status_; }
  std::size_t activation_bytes() const { return peak_; }
  std::size_t scratch_bytes() const { return scratch_peak_; }

 private:
  void* take(std::size_t size_bytes) {
    void* piece = reinterpret_cast<void*>(base_ + used_);  // NOLINT: an address, real or nowhere
    used_ += (size_bytes + 255) / 256 * 256;
    if (used_ > peak_) peak_ = used_;
    return piece;
  }

  const OpTable& ops_;
  DType dtype_;
  BackendQueue* queue_ = nullptr;
  std::uintptr_t base_ = kNowhere;
  void* scratch_ = nullptr;
  std::size_t used_ = 0, peak_ = 0, scratch_peak_ = 0;
  Status plan_status_;
};

/// A view of columns [offset, ...) of rows; null stays null.
inline Rows columns(const Rows& rows, std::int64_t offset, DType dtype) {
  if (!rows.data) return {nullptr, rows.stride};
  return {static_cast<std::byte*>(rows.data) + offset * (dtype_bits(dtype) / 8), rows.stride};
}

}  // namespace cairn
