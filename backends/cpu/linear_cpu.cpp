// linear: weights are read where they lie, in the order of linear_kernels.h, in prefill as in decode. Where the
// processor has tile registers, prefill of bf16 weights goes to oneDNN.
#include "backends/cpu/linear_cpu.h"

#include <algorithm>

#include "backends/cpu/onednn_linear.h"
#include "cairn/status.h"

namespace cairn::cpu {
namespace {

static_assert(kThreadScratchBytes >= sizeof(float) * kLinearBlockInputs * kLinearBlockOutputs);

// Few rows: pieces of about 64 KiB of weights, a few microseconds each. Many rows: as large as the L2 cache takes,
// because each piece reads all of x.
constexpr std::int64_t kFewRows = 64, kPieceBytes = 64 << 10, kPieceRows = 384;

bool is_packed_product(const LinearArgs& a) { return a.phase == Phase::kPrefill && a.weight->packed; }

std::size_t linear_scratch_bytes(const LinearArgs& a) {
  if (is_packed_product(a)) return onednn_scratch_bytes(*a.weight, a.token_count);
  return a.token_count > 1 ? kThreadScratchBytes : 0;
}

void linear_run(BackendQueue* queue, const LinearArgs& a, void* scratch) {
  const LinearProduct product = {a.weight,     row(a.in, 0),  a.in.stride, row(a.out, 0),
                                 a.out.stride, a.token_count, a.accumulate};
  if (!is_packed_product(a)) return multiply(device_of(queue), product, scratch);
  if (!onednn_multiply(device_of(queue), product, scratch) && queue_of(queue).error.status == CAIRN_STATUS_OK) {
    backend_failure(&queue_of(queue).error, CAIRN_STATUS_DEVICE, "linear: oneDNN %s failed on %d x %d",
                    onednn_version(), a.weight->out_dim, a.weight->in_dim);
  }
}

}  // namespace

const LinearKernels& linear_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kLinearKernels;
  if (isa == Isa::kAvx2) return avx2::kLinearKernels;
#endif
  (void)isa;
  return baseline::kLinearKernels;
}

std::int32_t linear_piece_outputs(const LinearWeight& weight, std::int64_t rows) {
  if (rows > kFewRows) return kLinearBlockOutputs;
  const std::int64_t row_bytes =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(weight.in_dim) * dtype_bits(weight.dtype) / 8);
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(kPieceBytes / row_bytes / 4 * 4, 8, 64));
}

void multiply(Device& device, const LinearProduct& p, void* own_scratch) {
  const LinearKernels& kernels = linear_kernels(device.isa);
  const std::int64_t out_dim = p.weight->out_dim, step = linear_piece_outputs(*p.weight, p.rows);
  const std::int64_t out_pieces = (out_dim + step - 1) / step, row_pieces = (p.rows + kPieceRows - 1) / kPieceRows;
  device.pool.parallel_for(out_pieces * row_pieces, [&](std::int64_t item, int thread) {
    const std::int64_t out = item % out_pieces * step, first = item / out_pieces * kPieceRows;
    kernels.run({p.weight, p.x, p.x_stride, p.y, p.y_stride, p.accumulate, first, std::min(first + kPieceRows, p.rows),
                 static_cast<std::int32_t>(out), static_cast<std::int32_t>(std::min(out + step, out_dim)),
                 reinterpret_cast<float*>(thread_scratch(device, thread, own_scratch))});
  });
}

bool pack_linear(BackendDevice* device, LinearWeight* weight, BackendError* error) {
  weight->packed = nullptr;
  return onednn_pack(device_of(device), weight, error);
}

void unpack_linear(BackendDevice*, LinearWeight* weight) { onednn_unpack(weight); }

void override_linear(OpTable& ops) {
  ops.linear.scratch_bytes = linear_scratch_bytes;
  ops.linear.run = linear_run;
}

}  // namespace cairn::cpu
