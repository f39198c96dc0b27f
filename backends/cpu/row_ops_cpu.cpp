// Operators that work row by row: cut into pieces of some ten thousand elements, each piece a kernel call.
#include <algorithm>
#include <cstring>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/row_kernels.h"

namespace cairn::cpu {

const RowKernels& row_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kRowKernels;
  if (isa == Isa::kAvx2) return avx2::kRowKernels;
#endif
  (void)isa;
  return baseline::kRowKernels;
}

namespace {

constexpr std::int64_t kPieceElements = 16 << 10;  // some microseconds: worth a thread's attention

std::int64_t width(const EmbedArgs& a) { return a.dim; }
std::int64_t width(const AddArgs& a) { return a.dim; }
std::int64_t width(const GateArgs& a) { return a.dim; }
std::int64_t width(const SwigluArgs& a) { return a.dim; }
std::int64_t width(const DecayGateArgs& a) { return static_cast<std::int64_t>(a.head_count) * a.rows; }
template <class Args>
std::int64_t width(const Args& a) {
  return static_cast<std::int64_t>(a.head_count) * a.dim;
}

template <class Args>
std::size_t no_scratch(const Args&) {
  return 0;
}

template <class Args, void (*RowKernels::*kKernel)(const Args&, std::int64_t, std::int64_t)>
void run_rows(BackendQueue* queue, const Args& a, void*) {
  Device& device = device_of(queue);
  const auto kernel = row_kernels(device.isa).*kKernel;
  const std::int64_t rows = std::max<std::int64_t>(1, kPieceElements / width(a));
  device.pool.parallel_ranges(a.token_count, rows,
                              [&](std::int64_t begin, std::int64_t end) { kernel(a, begin, end); });
}

template <class Args, void (*RowKernels::*kKernel)(const Args&, std::int64_t, std::int64_t)>
void replace(Op<Args>& op) {
  op.scratch_bytes = no_scratch<Args>;
  op.run = run_rows<Args, kKernel>;
}

void gather_rows_run(BackendQueue* queue, const GatherRowsArgs& a, void*) {
  const std::int64_t rows = std::max<std::int64_t>(1, kPieceElements / a.dim);
  device_of(queue).pool.parallel_ranges(a.row_count, rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(row(a.out, i), row(a.in, a.row_index[i]), static_cast<std::size_t>(a.dim) * sizeof(float));
    }
  });
}

}  // namespace

void override_row_ops(OpTable& ops) {
  replace<EmbedArgs, &RowKernels::embed>(ops.embed);
  replace<RmsNormArgs, &RowKernels::rms_norm>(ops.rms_norm);
  replace<GatedRmsNormArgs, &RowKernels::gated_rms_norm>(ops.gated_rms_norm);
  replace<FeatureMapArgs, &RowKernels::feature_map>(ops.feature_map);
  replace<DecayGateArgs, &RowKernels::decay_gate>(ops.decay_gate);
  replace<AddArgs, &RowKernels::add>(ops.add);
  replace<GateArgs, &RowKernels::gate>(ops.gate);
  replace<SwigluArgs, &RowKernels::swiglu>(ops.swiglu);
  replace<CrossLayerAddArgs, &RowKernels::cross_layer_add>(ops.cross_layer_add);
  ops.gather_rows.scratch_bytes = no_scratch<GatherRowsArgs>;
  ops.gather_rows.run = gather_rows_run;
}

}  // namespace cairn::cpu
