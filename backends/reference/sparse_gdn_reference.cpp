// sparse_gdn: SparseGDN prefill in five stages: intra, select, layout, event scan, outputs.
// Source: spec 3; deck D0. Numerics: double from the inputs to the outputs and the final state.
#include <algorithm>

#include "backends/reference/reference_ops.h"
#include "backends/reference/sparse_gdn_output.h"
#include "backends/reference/sparse_gdn_trace.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {
namespace {

struct SparseGdnScratch {
  SparseGdnIntra intra;
  double* eta;
  SparseGdnSelection selection;
  SparseGdnLayout layout;
  SparseGdnScan scan;
  double* entry_KV;
  double* sum_V;
};

SparseGdnScratch carve(const SparseGdnArgs& a, std::int32_t chunk_count, ScratchLayout& layout) {
  SparseGdnScratch s;
  s.intra = carve_sparse_gdn_intra(a, chunk_count, layout);
  s.eta = layout.take<double>(a.delta.value_heads);
  s.selection = carve_sparse_gdn_selection(chunk_count, a.delta.key_heads, a.delta.value_heads, layout);
  s.layout = carve_sparse_gdn_layout(chunk_count, a.delta.key_heads, layout);
  s.scan = carve_sparse_gdn_scan(a, chunk_count, layout);
  s.entry_KV = layout.take<double>(static_cast<std::size_t>(a.delta.key_dim) * a.delta.value_dim);
  s.sum_V = layout.take<double>(a.delta.value_dim);
  return s;
}

void select(const SparseGdnSequence& sequence, SparseGdnScratch& s) {
  const SparseGdnArgs& a = sequence.args;
  const bool selects = a.policy != SparsePolicy::kAll && a.policy != SparsePolicy::kGiven;
  if (selects) {
    sparse_gdn_gate_energy(a.gate, sequence.first_row, sequence.token_count, a.delta.value_heads, a.delta.value_dim,
                           a.norm_weight, s.eta);
  }
  select_sparse_gdn({sequence.chunk_count, a.delta.key_heads, a.delta.value_heads, s.intra.scores, s.intra.gamma_log2,
                     s.eta, a.policy, a.seed, a.given_mask, a.given_tier},
                    &s.selection);
}

void scan_and_read(const SparseGdnSequence& sequence, const SparseGdnScratch& s, float* state_HKV) {
  const DeltaRuleArgs& d = sequence.delta();
  const std::int64_t state_size = static_cast<std::int64_t>(d.key_dim) * d.value_dim;
  for (std::int32_t csr_row = 0; csr_row < d.key_heads; ++csr_row) {
    const std::int32_t first = s.layout.row_group[csr_row] * sequence.heads_per_group();
    for (std::int32_t h = first; h < first + sequence.heads_per_group(); ++h) {
      float* state_KV = state_HKV + h * state_size;
      scan_sparse_gdn_events(sequence, s.intra, s.layout, csr_row, h, state_KV, s.scan);
      write_sparse_gdn_outputs(sequence, s.intra, s.layout, h, state_KV, s.scan.snapshots, s.entry_KV, s.sum_V);
      if (sequence.args.trace)
        trace_sparse_gdn_scan(*sequence.args.trace, sequence, s.intra, s.layout, h, s.scan.snapshots);
      for (std::int64_t i = 0; i < state_size; ++i) state_KV[i] = static_cast<float>(s.scan.state_KV[i]);
    }
  }
}

void run_sequence(const SparseGdnSequence& sequence, SparseGdnScratch s, float* state_HKV) {
  compute_sparse_gdn_intra(sequence, s.intra);
  select(sequence, s);
  lay_out_sparse_gdn(s.selection.mask, s.selection.tier, sequence.chunk_count, sequence.delta().key_heads, s.layout);
  if (sequence.args.trace)
    trace_sparse_gdn_stages(*sequence.args.trace, sequence, s.intra, s.selection, s.layout, s.eta);
  scan_and_read(sequence, s, state_HKV);
}

}  // namespace

const char* sparse_gdn_unsupported_reason(const SparseGdnArgs& a) {
  if (a.policy > SparsePolicy::kGiven)
    return unsupported("sparse_gdn: policy %d is not known", static_cast<int>(a.policy));
  if (a.policy == SparsePolicy::kGiven && a.delta.batch.sequence_count > 1) {
    return unsupported("sparse_gdn: a given mask for %d sequences is not supported (supported: 1)",
                       a.delta.batch.sequence_count);
  }
  return first_reason({require_f32("sparse_gdn", a.delta.dtype),
                       require_heads("sparse_gdn", a.delta.key_heads, a.delta.value_heads),
                       require_sizes("sparse_gdn", {a.delta.key_dim, a.delta.value_dim})});
}

std::size_t sparse_gdn_scratch_bytes(const SparseGdnArgs& a) {
  ScratchLayout layout(nullptr);
  carve(a, (a.delta.batch.token_count + kSparseChunk - 1) / kSparseChunk, layout);
  return layout.size_bytes();
}

void sparse_gdn_run(BackendQueue*, const SparseGdnArgs& a, void* memory) {
  const Batch& batch = a.delta.batch;
  for (std::int32_t b = 0; b < batch.sequence_count; ++b) {
    const std::int32_t token_count = batch.offsets_host[b + 1] - batch.offsets_host[b];
    if (token_count == 0) continue;
    const SparseGdnSequence sequence = sparse_gdn_sequence(a, batch.offsets_host[b], token_count);
    ScratchLayout layout(memory);
    run_sequence(sequence, carve(a, sequence.chunk_count, layout), a.delta.states[b]);
  }
}

}  // namespace cairn::reference
