// delta_net, gdn, kda, gdn2. Prefill in bf16 with K up to 128: chunks, two launches a segment. Decode of the usual
// shapes has its own kernel; the rest is the recurrence, one launch. Architectures replace prefill and decode by faster
// forms. The choice looks at the call's types and dims alone, never at lengths, so a sequence has the same bits in any
// batch.
#include "backends/gpu/delta_chunk_gpu.h"
#include "backends/gpu/gpu_unsupported.h"
#include "backends/gpu/kernels/delta_rule_decode.cuh"

namespace cairn::gpu {
namespace {

const char* unsupported_reason(const char* name, const DeltaRuleArgs& a) {
  return first_reason({require_activations(name, a.dtype), require_heads(name, a.key_heads, a.value_heads),
                       require_range(name, "key_dim", a.key_dim, 1, 256),
                       require_range(name, "value_dim", a.value_dim, 1, 65536),
                       require_range(name, "value head count", a.value_heads, 1, 65535)});
}

constexpr ChunkEdit edit_of(DeltaRule rule) {
  return rule == DeltaRule::kGdn2 ? ChunkEdit::kDecoupled : ChunkEdit::kTied;
}

ChunkShape chunk_shape(const DeltaRuleArgs& a) {
  return {a.batch.token_count, a.batch.sequence_count, a.value_heads, a.key_dim, 1, kChunkBlocks, true};
}

std::size_t scratch_bytes(const DeltaRuleArgs& a) {
  if (!takes_chunks(a.dtype, a.phase, a.key_dim)) return 0;
  ScratchLayout layout(nullptr);
  carve_chunk_tiles(chunk_shape(a), layout);
  return layout.size_bytes();
}

template <DeltaRule kRule>
void run_chunks(const Launcher& launcher, const DeltaRuleArgs& a, void* scratch) {
  ScratchLayout layout(scratch);
  DeltaChunkArgs args{};
  args.offsets = a.batch.offsets;
  args.sequence_count = a.batch.sequence_count;
  args.key_heads = a.key_heads, args.value_heads = a.value_heads;
  args.key_dim = a.key_dim, args.value_dim = a.value_dim;
  args.scale = a.scale;
  args.decay = kRule == DeltaRule::kDeltaNet ? ChunkDecay::kNone
               : kRule == DeltaRule::kGdn    ? ChunkDecay::kToken
                                             : ChunkDecay::kRow;
  args.routed = {a.q, a.k, a.log_decay, kRule == DeltaRule::kGdn2 ? nullptr : a.beta, a.states};
  args.routed_lists = args.list_count = 1;
  args.v = a.v;
  if (kRule == DeltaRule::kGdn2) args.erase = a.erase, args.write = a.write;
  args.out = a.out, args.residual = a.residual;
  args.checkpoint_chunks = a.checkpoint_chunks, args.checkpoints = a.checkpoints;
  args.tiles = carve_chunk_tiles(chunk_shape(a), layout);
  args.blocks_per_window = kChunkBlocks;
  find_alignments(args);
  for_each_segment(args, a.batch, [&](const DeltaChunkArgs& segment, std::int32_t sequences) {
    run_chunk_segment(launcher, segment, edit_of(kRule), sequences);
  });
}

template <DeltaRule kRule, class Element>
void launch_recurrence(const Launcher& launcher, const DeltaRuleArgs& a) {
  const dim3 grid((a.value_dim + kRecurrenceColumns - 1) / kRecurrenceColumns, a.value_heads, a.batch.sequence_count);
  const auto kernel = a.key_dim <= 64    ? delta_rule_recurrence_kernel<Element, kRule, 16>
                      : a.key_dim <= 128 ? delta_rule_recurrence_kernel<Element, kRule, 32>
                                         : delta_rule_recurrence_kernel<Element, kRule, 64>;
  launcher(kernel, grid, dim3(kRecurrenceThreads), 0, a);
}

/// The shapes of delta_rule_decode.
bool is_plain_decode(const DeltaRuleArgs& a) {
  if (a.phase != Phase::kDecode || a.value_dim % kRecurrenceColumns != 0) return false;
  if (a.key_dim != 64 && a.key_dim != 128 && a.key_dim != 256) return false;
  for (std::int32_t b = 0; b <= a.batch.sequence_count; ++b) {
    if (a.batch.offsets_host[b] != b) return false;
  }
  return true;
}

template <DeltaRule kRule, class Element>
void launch_decode(const Launcher& launcher, const DeltaRuleArgs& a) {
  const dim3 grid(a.value_dim / kRecurrenceColumns, a.value_heads, a.batch.sequence_count);
  const auto kernel = a.key_dim == 64    ? delta_rule_decode_kernel<Element, kRule, 4>
                      : a.key_dim == 128 ? delta_rule_decode_kernel<Element, kRule, 8>
                                         : delta_rule_decode_kernel<Element, kRule, 16>;
  launcher(kernel, grid, dim3(kDecodeThreads), 0, a);
}

template <DeltaRule kRule>
void run(BackendQueue* queue, const DeltaRuleArgs& a, void* scratch, const char* name) {
  const Launcher launcher(queue, name);
  if (takes_chunks(a.dtype, a.phase, a.key_dim) && has_room_for_chunks(launcher.device(), edit_of(kRule), a.key_dim))
    return run_chunks<kRule>(launcher, a, scratch);
  with_element(a.dtype, [&](auto element) {
    if (is_plain_decode(a)) return launch_decode<kRule, decltype(element)>(launcher, a);
    launch_recurrence<kRule, decltype(element)>(launcher, a);
  });
}

}  // namespace

#define CAIRN_DELTA_RULE(field, kRule)                                                     \
  ops.field = {                                                                            \
      [](const DeltaRuleArgs& a) { return unsupported_reason(#field, a); }, scratch_bytes, \
      [](BackendQueue* queue, const DeltaRuleArgs& a, void* scratch) { run<kRule>(queue, a, scratch, #field); }}

void add_delta_rule(OpTable& ops) {
  CAIRN_DELTA_RULE(delta_net, DeltaRule::kDeltaNet);
  CAIRN_DELTA_RULE(gdn, DeltaRule::kGdn);
  CAIRN_DELTA_RULE(kda, DeltaRule::kKda);
  CAIRN_DELTA_RULE(gdn2, DeltaRule::kGdn2);
}

}  // namespace cairn::gpu
