// sparse_gdn on the cpu: intra for all chunks, the selection (the reference's own code, in double), then one walk for
// each group over its events and outputs, groups with most events first. U waits in `out`; no state is stored on the
// way.
#include "backends/cpu/item_runner.h"
#include "backends/cpu/sparse_gdn_walk_cpu.h"
#include "backends/reference/sparse_gdn_select.h"
#include "backends/reference/sparse_gdn_trace.h"

namespace cairn::cpu {
namespace {

struct SparseTables {
  double *scores, *gamma_log2;  ///< [C, HV]
  double* eta;                  ///< [HV]
  reference::SparseGdnSelection selection;
  reference::SparseGdnLayout layout;
};

SparseTables carve_tables(const SparseGdnArgs& a, std::int32_t chunk_count, ScratchLayout& layout) {
  const std::size_t cells = static_cast<std::size_t>(chunk_count) * a.delta.value_heads;
  SparseTables t;
  t.scores = layout.take<double>(cells);
  t.gamma_log2 = layout.take<double>(cells);
  t.eta = layout.take<double>(a.delta.value_heads);
  t.selection = reference::carve_sparse_gdn_selection(chunk_count, a.delta.key_heads, a.delta.value_heads, layout);
  t.layout = reference::carve_sparse_gdn_layout(chunk_count, a.delta.key_heads, layout);
  return t;
}

std::size_t piece_bytes(const SparseGdnArgs& a) {
  ScratchLayout layout(nullptr);
  carve_sparse_walk(a.delta, layout);
  return layout.size_bytes();
}

std::int32_t chunks_of(std::int32_t token_count) { return (token_count + kChunk - 1) / kChunk; }
std::int64_t most_items(const SparseGdnArgs& a) {
  return static_cast<std::int64_t>(chunks_of(a.delta.batch.token_count)) * a.delta.key_heads;
}

void select(const SparseSequence& s, SparseTables* t) {
  const SparseGdnArgs& a = s.args;
  const bool selects = a.policy != SparsePolicy::kAll && a.policy != SparsePolicy::kGiven;
  if (selects) {
    reference::sparse_gdn_gate_energy(a.gate, s.first_row, s.token_count, a.delta.value_heads, a.delta.value_dim,
                                      a.norm_weight, t->eta);
  }
  reference::select_sparse_gdn({s.chunk_count, a.delta.key_heads, a.delta.value_heads, t->scores, t->gamma_log2, t->eta,
                                a.policy, a.seed, a.given_mask, a.given_tier},
                               &t->selection);
  reference::lay_out_sparse_gdn(t->selection.mask, t->selection.tier, s.chunk_count, a.delta.key_heads, t->layout);
}

/// Stage tensors of the selection; those of the chunks are left where they are made.
void trace_selection(const SparseSequence& s, const SparseTables& t) {
  SparseGdnTrace rest = *s.args.trace;
  rest.u = rest.inverse_blocks = nullptr;
  reference::SparseGdnIntra intra = {s.delta().value_heads, s.delta().value_dim};
  intra.scores = t.scores, intra.gamma_log2 = t.gamma_log2;
  const auto sequence = reference::sparse_gdn_sequence(s.args, s.first_row, s.token_count);
  reference::trace_sparse_gdn_stages(rest, sequence, intra, t.selection, t.layout, t.eta);
}

void run_sequence(Device& device, const SparseSequence& s, SparseTables tables, float* states, std::byte* pieces) {
  const SparseGdnArgs& a = s.args;
  const std::int32_t groups = a.delta.key_heads, threads = device.pool.thread_count();
  const std::int64_t chunk_bytes = 8 * kChunk * (a.delta.key_dim + s.heads_per_group() * a.delta.value_dim);
  const std::int32_t side_by_side = heads_per_item(s.chunk_count, groups, threads, chunk_bytes);
  const std::int32_t blocks = (groups + side_by_side - 1) / side_by_side;
  run_items(device.pool, std::int64_t{s.chunk_count} * blocks, pieces, piece_bytes(a),
            [&](std::int64_t item, std::byte* own) {
              ScratchLayout layout(own);
              SparseWalk walk = carve_sparse_walk(a.delta, layout);
              const auto first = static_cast<std::int32_t>(item % blocks) * side_by_side;
              for (std::int32_t group = first; group < std::min(first + side_by_side, groups); ++group) {
                run_sparse_intra(s, static_cast<std::int32_t>(item / blocks), group, &walk.even, walk.work);
              }
            });
  select(s, &tables);
  if (a.trace) trace_selection(s, tables);
  const std::int64_t state_bytes = 4 * s.heads_per_group() * std::int64_t{a.delta.key_dim} * a.delta.value_dim;
  const std::int32_t rows = heads_per_item(1, groups, threads, 2 * chunk_bytes + state_bytes);
  run_items(device.pool, (groups + rows - 1) / rows, pieces, piece_bytes(a), [&](std::int64_t item, std::byte* own) {
    ScratchLayout layout(own);
    const auto first = static_cast<std::int32_t>(item) * rows;
    walk_sparse_rows(s, tables.layout, first, std::min(first + rows, groups), states,
                     carve_sparse_walk(a.delta, layout));
  });
}

std::size_t scratch_bytes(const SparseGdnArgs& a) {
  ScratchLayout layout(nullptr);
  carve_tables(a, chunks_of(a.delta.batch.token_count), layout);
  return layout.size_bytes() + static_cast<std::size_t>(scratch_pieces(most_items(a))) * piece_bytes(a);
}

void run(BackendQueue* queue, const SparseGdnArgs& a, void* memory) {
  Device& device = device_of(queue);
  const Batch& batch = a.delta.batch;
  ScratchLayout whole(memory);  // the pieces lie behind the longest tables that the call may need
  carve_tables(a, chunks_of(batch.token_count), whole);
  std::byte* pieces = static_cast<std::byte*>(memory) + whole.size_bytes();
  for (std::int32_t b = 0; b < batch.sequence_count; ++b) {
    const std::int32_t first_row = batch.offsets_host[b], token_count = batch.offsets_host[b + 1] - first_row;
    if (token_count == 0) continue;
    ScratchLayout layout(memory);
    const SparseTables tables = carve_tables(a, chunks_of(token_count), layout);
    const SparseSequence sequence = {a,
                                     recurrent_kernels(device.isa),
                                     first_row,
                                     token_count,
                                     chunks_of(token_count),
                                     tables.scores,
                                     tables.gamma_log2};
    run_sequence(device, sequence, tables, a.delta.states[b], pieces);
  }
}

}  // namespace

void override_sparse_gdn(OpTable& table) {
  table.sparse_gdn.scratch_bytes = scratch_bytes;
  table.sparse_gdn.run = run;
}

}  // namespace cairn::cpu
