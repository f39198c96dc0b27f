// Kind sparse: every stage of a SparseGDN prefill under every policy; kind select: the selector alone.
#include "backends/reference/sparse_gdn_layout.h"
#include "backends/reference/sparse_gdn_select.h"
#include "tests/golden/vector_kinds.h"
#include "tests/support/sparse_gdn_run.h"

namespace cairn::test {
namespace {

SparseGdnInput input_of(const VectorCase& v) {
  SparseGdnInput in{v.dim("q", 0),
                    v.dim("q", 1),
                    v.dim("v", 1),
                    v.dim("q", 2),
                    v.dim("v", 2),
                    v.floats("q"),
                    v.floats("k"),
                    v.floats("v"),
                    v.floats("g"),
                    v.floats("beta"),
                    {},
                    v.floats("Z"),
                    v.floats("nu")};
  in.state = v.has("S0") ? v.floats("S0") : std::vector<float>(static_cast<std::size_t>(in.HV) * in.K * in.V, 0.0F);
  in.full_inverse = v.flag("full_inverse");
  return in;
}

void give(const VectorCase& v, const std::string& mask, const std::string& tier, SparseGdnInput* in) {
  const std::vector<std::int64_t> given_mask = v.integers(mask), given_tier = v.integers(tier);
  in->policy = SparsePolicy::kGiven;
  in->mask.assign(given_mask.begin(), given_mask.end());
  in->tier.assign(given_tier.begin(), given_tier.end());
}

/// Rows 0, step, 2 step, ... of [T, width].
std::vector<float> every(const std::vector<float>& values, std::size_t width, std::size_t step) {
  std::vector<float> result;
  for (std::size_t i = 0; i < values.size(); i += width * step)
    result.insert(result.end(), values.begin() + i, values.begin() + i + width);
  return result;
}

/// The first `heads` of [T, HV, V].
std::vector<float> first_heads(const std::vector<float>& values, const SparseGdnInput& in, std::size_t heads) {
  std::vector<float> result;
  for (std::int32_t t = 0; t < in.T; ++t) {
    const auto row = values.begin() + static_cast<std::ptrdiff_t>(t) * in.HV * in.V;
    result.insert(result.end(), row, row + static_cast<std::ptrdiff_t>(heads) * in.V);
  }
  return result;
}

/// Below -150 a decay is 0 in f32: backends may clamp what they sum, so both sides are cut there.
std::vector<float> cut_decay(std::vector<float> log2) {
  for (float& value : log2) value = std::fmax(value, -150.0F);
  return log2;
}

void compare_outputs(const VectorCase& v, const SparseGdnInput& in, const SparseGdnOutcome& out, Comparison& result) {
  const std::size_t width = static_cast<std::size_t>(in.HV) * in.V;
  result.floats("o", out.o);
  result.floats("S", out.state);
  if (v.has("o_heads")) result.floats("o_heads", first_heads(out.o, in, v.dim("o_heads", 1)));
  result.floats("o_every10", every(out.o, width, 10));
  result.floats("U", out.u);
  if (v.has("U_heads")) result.floats("U_heads", first_heads(out.u, in, v.dim("U_heads", 1)));
  result.floats("U_new", out.u_new);
  result.floats("scores", out.scores);
  if (v.has("gamma_log2")) {
    result.floats_against("gamma_log2", cut_decay(out.gamma_log2), cut_decay(v.floats("gamma_log2")), Path::kChunked,
                          "");
  }
  result.floats("snapshots", out.snapshots);
  if (v.has("inverse_blocks")) {
    const std::size_t covered = v.tensor("inverse_blocks").count();
    result.floats("inverse_blocks", {out.inverse_blocks.begin(),
                                     out.inverse_blocks.begin() + std::min(covered, out.inverse_blocks.size())});
  }
}

void compare_layout(const SparseGdnOutcome& out, Comparison& result) {
  result.integers("csr_row_group", out.row_group);
  result.integers("csr_row_ptr", out.row_ptr);
  result.integers("csr_chunk", out.event_chunk);
  result.integers("csr_snapshot", out.event_snapshot);
  result.integers("n_snapshots", out.snapshot_count);
  result.integers("entry_event", out.entry_event);
  result.integers("entry_snapshot", out.entry_snapshot);
}

/// Room for the selector of the host.
struct HostSelection {
  HostSelection(std::int32_t C, std::int32_t n, std::int32_t HV) {
    ScratchLayout counter(nullptr);
    reference::carve_sparse_gdn_selection(C, n, HV, counter);
    reference::carve_sparse_gdn_layout(C, n, counter);
    memory.resize(counter.size_bytes());
    ScratchLayout layout_memory(memory.data());
    selection = reference::carve_sparse_gdn_selection(C, n, HV, layout_memory);
    layout = reference::carve_sparse_gdn_layout(C, n, layout_memory);
  }
  std::vector<std::byte> memory;
  reference::SparseGdnSelection selection;
  reference::SparseGdnLayout layout;
};

void run_selector(const std::vector<float>& scores, const std::vector<float>& gamma, const std::vector<float>& eta,
                  std::int32_t n, SparsePolicy policy, HostSelection* host) {
  const std::vector<double> s(scores.begin(), scores.end()), g(gamma.begin(), gamma.end()), e(eta.begin(), eta.end());
  const auto heads = static_cast<std::int32_t>(eta.size()), C = static_cast<std::int32_t>(scores.size() / eta.size());
  reference::select_sparse_gdn({C, n, heads, s.data(), g.data(), e.data(), policy, 0, nullptr, nullptr},
                               &host->selection);
}

template <class T>
std::vector<float> as_floats(const T* values, std::size_t count) {
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = static_cast<float>(values[i]);
  return result;
}

template <class T>
std::vector<std::int64_t> as_integers(const T* values, std::size_t count) {
  return {values, values + count};
}

/// B(x, k) of both counts: the operator does not show them, the selector does on the operator's own stage tensors.
void compare_separations(const reference::SparseGdnSelection& s, Comparison& result) {
  result.floats("BH", as_floats(s.high_separation, s.high_choices));
  result.floats("BM", as_floats(s.medium_separation, s.medium_choices));
  result.integers("BM_counts", as_integers(s.medium_counts, s.medium_choices));
}

void compare_selection(const SparseGdnInput& in, const SparseGdnOutcome& out, Comparison& result) {
  result.floats("rank", out.rank);
  result.integers("order", out.order);
  result.floats("retention", out.retention);
  result.floats("lifetime", out.lifetime);
  result.floats("eta_out", out.eta);
  result.floats("visibility", out.visibility);
  result.floats("gain_LM", out.gain_low_medium);
  result.floats("gain_MH", out.gain_medium_high);
  result.integers("tier", out.tier);
  HostSelection host(in.chunks(), in.HK, in.HV);
  run_selector(out.scores, out.gamma_log2, out.eta, in.HK, in.policy, &host);
  compare_separations(host.selection, result);
}

void check_correction_w(const VectorCase& v, OpRig& rig, const SparseGdnInput& in, Comparison& result) {
  if (!v.has("W_all_chunks")) return;
  const SparseGdnOutcome keys = run_sparse_gdn_on(rig, in, in.K, decayed_keys(in));
  if (result.ran(keys.trouble, "W by keys in the place of values")) result.floats("W_all_chunks", keys.u);
}

/// The whole inverse, column by column: with e_j / beta_j as values, U is the inverse. Columns with beta = 0 say
/// nothing.
void check_full_inverse(const VectorCase& v, OpRig& rig, const SparseGdnInput& in, Comparison& result) {
  if (!v.has("inverse_full")) return;
  const std::size_t HV = in.HV;
  std::vector<float> columns(in.T * HV * 64, 0.0F);
  for (std::size_t i = 0; i < in.T * HV; ++i) {
    if (in.beta[i] > 0) columns[i * 64 + i / HV % 64] = 1 / in.beta[i];
  }
  const SparseGdnOutcome out = run_sparse_gdn_on(rig, in, 64, columns);
  if (!result.ran(out.trouble, "inverse by unit values")) return;
  std::vector<float> want = v.floats("inverse_full"), got(want.size(), 0.0F);
  for (std::size_t i = 0; i < want.size(); ++i) {  // [C, HV, 64, 64]
    const std::size_t c = i / (HV * 4096), h = i / 4096 % HV, row = c * 64 + i / 64 % 64, column = c * 64 + i % 64;
    const bool known =
        row < static_cast<std::size_t>(in.T) && column < static_cast<std::size_t>(in.T) && in.beta[column * HV + h] > 0;
    if (known)
      got[i] = out.u[(row * HV + h) * 64 + i % 64];
    else
      want[i] = 0;
  }
  result.floats_against("inverse_full", got, want, Path::kChunked, "");
}

void check_other_policies(const VectorCase& v, OpRig& rig, const SparseGdnInput& base, Comparison& result) {
  if (!v.params().contains("policies")) return;
  for (const std::string policy : v.params()["policies"]) {
    if (!result.is_known("policy", policy, "adaptive all fixed random")) continue;
    SparseGdnInput in = base;
    in.full_inverse = false;
    in.policy = SparsePolicy::kAdaptive;
    if (policy == "all") in.policy = SparsePolicy::kAll;
    if (policy == "fixed") in.policy = SparsePolicy::kFixed;
    if (policy == "random") give(v, "mask_" + policy, "tier_" + policy, &in);  // another generator's draw
    const SparseGdnOutcome out = run_sparse_gdn(rig, in);
    if (!result.ran(out.trouble, policy.c_str())) continue;
    result.floats("S_" + policy, out.state);
    result.floats("o_every50_" + policy, every(out.o, static_cast<std::size_t>(in.HV) * in.V, 50));
    result.integers("mask_" + policy, out.mask);
    result.integers("tier_" + policy, out.tier);
  }
}

}  // namespace

void check_sparse_gdn(const VectorCase& v, OpRig& rig, Comparison& result) {
  SparseGdnInput in = input_of(v);
  const std::string policy = v.params().value("policy", "adaptive");
  if (!result.is_known("policy", policy, "adaptive all fixed random free")) return;
  if (policy == "all") in.policy = SparsePolicy::kAll;
  if (policy == "fixed") in.policy = SparsePolicy::kFixed;
  if (policy == "random" && v.has("rank")) {  // what was ranked is adaptive's; only the draw differs
    const SparseGdnOutcome adaptive = run_sparse_gdn(rig, in);
    if (result.ran(adaptive.trouble, "adaptive")) compare_selection(in, adaptive, result);
  }
  if (policy == "random" || policy == "free") give(v, "mask", "tier", &in);
  const SparseGdnOutcome out = run_sparse_gdn(rig, in);
  if (!result.ran(out.trouble, policy.c_str())) return;
  compare_outputs(v, in, out, result);
  compare_layout(out, result);
  result.integers("mask", out.mask);
  result.integers("tier", out.tier);
  if (policy == "adaptive" || policy == "fixed") compare_selection(in, out, result);
  check_correction_w(v, rig, in, result);
  check_full_inverse(v, rig, in, result);
  check_other_policies(v, rig, in, result);
}

void check_select(const VectorCase& v, OpRig& rig, Comparison& result) {
  const std::string backend = rig.backend().name;
  if (backend != "reference" && backend != "cpu")
    result.note("run by the selector on the host; backend '" + backend + "' has its own");
  const std::int32_t C = v.dim("scores", 0), HV = v.dim("scores", 1), n = v.param("HK");
  const std::string policy = v.params().value("policy", "adaptive");
  if (!result.is_known("policy", policy, "adaptive fixed random")) return;
  HostSelection host(C, n, HV);
  run_selector(v.floats("scores"), v.floats("gamma_log2"), v.floats("eta"), n,
               policy == "fixed" ? SparsePolicy::kFixed : SparsePolicy::kAdaptive, &host);
  const reference::SparseGdnSelection& s = host.selection;
  const std::size_t cells = static_cast<std::size_t>(n) * C;
  if (policy == "random") {  // all but the mask is adaptive's; the mask is another generator's draw
    const std::vector<std::int64_t> drawn = v.integers("mask");
    std::copy(drawn.begin(), drawn.end(), s.mask);
    result.mark("mask");
  } else {
    result.integers("mask", as_integers(s.mask, cells));
  }
  result.integers("tier", as_integers(s.tier, n));
  result.floats("rank", as_floats(s.rank, cells));
  result.integers("order", as_integers(s.order, cells));
  result.floats("retention", as_floats(s.retention, HV));
  result.floats("lifetime", as_floats(s.lifetime, HV));
  result.floats("eta_out", v.floats("eta"));
  result.floats("visibility", as_floats(s.visibility, HV));
  result.floats("gain_LM", as_floats(s.gain_low_medium, n));
  result.floats("gain_MH", as_floats(s.gain_medium_high, n));
  compare_separations(s, result);

  reference::lay_out_sparse_gdn(s.mask, s.tier, C, n, host.layout);
  const std::size_t events = host.layout.row_ptr[n], pairs = static_cast<std::size_t>(n) * ((C + 1) / 2);
  result.integers("csr_row_group", as_integers(host.layout.row_group, n));
  result.integers("csr_row_ptr", as_integers(host.layout.row_ptr, n + 1));
  result.integers("csr_chunk", as_integers(host.layout.event_chunk, events));
  result.integers("csr_snapshot", as_integers(host.layout.event_snapshot, events));
  result.integers("n_snapshots", as_integers(host.layout.snapshot_count, n));
  result.integers("entry_event", as_integers(host.layout.entry_event, pairs));
  result.integers("entry_snapshot", as_integers(host.layout.entry_snapshot, pairs));
}

}  // namespace cairn::test
