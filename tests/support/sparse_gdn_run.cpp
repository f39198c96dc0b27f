#include "tests/support/sparse_gdn_run.h"

namespace cairn::test {
namespace {

SparseGdnTrace make_trace(OpRig& rig, const SparseGdnInput& in) {
  const std::size_t C = in.chunks(), n = in.HK, HV = in.HV, pairs = (C + 1) / 2,
                    values = static_cast<std::size_t>(in.T) * HV * in.V;
  SparseGdnTrace t{};
  t.scores = rig.poisoned(C * HV);
  t.gamma_log2 = rig.poisoned(C * HV);
  t.u = rig.poisoned(values);
  t.u_new = rig.poisoned(values);
  t.inverse_blocks = rig.poisoned(C * HV * 7 * 256);
  t.rank = rig.poisoned(n * C);
  t.order = rig.poisoned<std::int32_t>(n * C);
  t.retention = rig.poisoned(HV);
  t.lifetime = rig.poisoned(HV);
  t.eta = rig.poisoned(HV);
  t.visibility = rig.poisoned(HV);
  t.gain_low_medium = rig.poisoned(n);
  t.gain_medium_high = rig.poisoned(n);
  t.mask = rig.poisoned<std::uint8_t>(n * C);
  t.tier = rig.poisoned<std::int32_t>(n);
  t.row_group = rig.poisoned<std::int32_t>(n);
  t.row_ptr = rig.poisoned<std::int32_t>(n + 1);
  t.event_chunk = rig.poisoned<std::int32_t>(n * C);
  t.event_snapshot = rig.poisoned<std::int32_t>(n * C);
  t.snapshot_count = rig.poisoned<std::int32_t>(n);
  t.entry_event = rig.poisoned<std::int32_t>(n * pairs);
  t.entry_snapshot = rig.poisoned<std::int32_t>(n * pairs);
  t.snapshots = rig.poisoned(HV * pairs * in.K * in.V);
  return t;
}

void fetch(OpRig& rig, const SparseGdnInput& in, const SparseGdnTrace& t, SparseGdnOutcome* out) {
  const std::size_t C = in.chunks(), n = in.HK, HV = in.HV, pairs = (C + 1) / 2,
                    values = static_cast<std::size_t>(in.T) * HV * in.V;
  out->scores = rig.download(t.scores, C * HV);
  out->gamma_log2 = rig.download(t.gamma_log2, C * HV);
  out->u = rig.download(t.u, values);
  out->u_new = rig.download(t.u_new, values);
  out->inverse_blocks = rig.download(t.inverse_blocks, C * HV * 7 * 256);
  out->rank = rig.download(t.rank, n * C);
  out->order = rig.download(t.order, n * C);
  out->retention = rig.download(t.retention, HV);
  out->lifetime = rig.download(t.lifetime, HV);
  out->eta = rig.download(t.eta, HV);
  out->visibility = rig.download(t.visibility, HV);
  out->gain_low_medium = rig.download(t.gain_low_medium, n);
  out->gain_medium_high = rig.download(t.gain_medium_high, n);
  out->mask = rig.download(t.mask, n * C);
  out->tier = rig.download(t.tier, n);
  out->row_group = rig.download(t.row_group, n);
  out->row_ptr = rig.download(t.row_ptr, n + 1);
  const std::size_t events =
      out->row_ptr[n] >= 0 && out->row_ptr[n] <= static_cast<std::int32_t>(n * C) ? out->row_ptr[n] : 0;
  out->event_chunk = rig.download(t.event_chunk, events);
  out->event_snapshot = rig.download(t.event_snapshot, events);
  out->snapshot_count = rig.download(t.snapshot_count, n);
  out->entry_event = rig.download(t.entry_event, n * pairs);
  out->entry_snapshot = rig.download(t.entry_snapshot, n * pairs);
  std::size_t snapshots = 0;
  for (const std::int32_t count : out->snapshot_count)
    snapshots += count > 0 && count <= static_cast<std::int32_t>(pairs) ? count : 0;
  out->snapshots = rig.download(t.snapshots, snapshots * (HV / n) * in.K * in.V);
}

}  // namespace

SparseGdnOutcome run_sparse_gdn(OpRig& rig, const SparseGdnInput& in) {
  SparseGdnOutcome out;
  float* state = rig.upload(in.state);
  float* o = rig.poisoned(static_cast<std::size_t>(in.T) * in.HV * in.V);
  SparseGdnArgs args{};
  DeltaRuleArgs& d = args.delta;
  d.dtype = DType::kF32;
  d.phase = Phase::kPrefill;
  d.batch = rig.batch({in.T});
  d.key_heads = in.HK, d.value_heads = in.HV, d.key_dim = in.K, d.value_dim = in.V;
  d.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(in.K)));
  d.q = rows(rig.upload(in.q), in.HK * in.K);
  d.k = rows(rig.upload(in.k), in.HK * in.K);
  d.v = rows(rig.upload(in.v), in.HV * in.V);
  d.log_decay = rig.upload(in.g);
  d.beta = rig.upload(in.beta);
  d.states = rig.upload(std::vector<float*>{state});
  d.out = rows(o, in.HV * in.V);
  args.policy = in.policy;
  args.full_inverse = in.full_inverse;
  args.seed = in.seed;
  if (!in.gate.empty()) args.gate = rows(rig.upload(in.gate), in.HV * in.V);
  if (!in.norm_weight.empty()) args.norm_weight = rig.upload(in.norm_weight);
  if (!in.mask.empty()) args.given_mask = rig.upload(in.mask);
  if (!in.tier.empty()) args.given_tier = rig.upload(in.tier);
  const SparseGdnTrace trace = make_trace(rig, in);
  args.trace = &trace;
  out.trouble = rig.run(rig.ops().sparse_gdn, args);
  if (out.trouble.empty()) {
    out.o = rig.download(o, static_cast<std::size_t>(in.T) * in.HV * in.V);
    out.state = rig.download(state, in.state.size());
    fetch(rig, in, trace, &out);
  }
  rig.clear();
  return out;
}

SparseGdnOutcome run_sparse_gdn_on(OpRig& rig, SparseGdnInput in, std::int32_t width,
                                   const std::vector<float>& columns) {
  in.V = width;
  in.v = columns;
  in.state.assign(static_cast<std::size_t>(in.HV) * in.K * width, 0.0F);
  in.gate.clear();
  in.norm_weight.clear();
  in.mask.clear();
  in.tier.clear();
  in.policy = SparsePolicy::kAll;
  return run_sparse_gdn(rig, in);
}

std::vector<float> decayed_keys(const SparseGdnInput& in) {
  std::vector<float> columns(static_cast<std::size_t>(in.T) * in.HV * in.K);
  for (std::int32_t h = 0; h < in.HV; ++h) {
    double log_decay = 0;
    for (std::int32_t t = 0; t < in.T; ++t) {
      log_decay = (t % 64 ? log_decay : 0) + in.g[static_cast<std::size_t>(t) * in.HV + h];
      const float* key = in.k.data() + (static_cast<std::size_t>(t) * in.HK + h / (in.HV / in.HK)) * in.K;
      float* to = columns.data() + (static_cast<std::size_t>(t) * in.HV + h) * in.K;
      for (std::int32_t i = 0; i < in.K; ++i) to[i] = static_cast<float>(std::exp(log_decay) * key[i]);
    }
  }
  return columns;
}

}  // namespace cairn::test
