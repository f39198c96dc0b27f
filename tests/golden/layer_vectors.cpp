// Kind layer: one mixer with its routing in the runtime: two prefill calls, then token by token.
#include "tests/golden/runtime_rig.h"
#include "tests/golden/vector_kinds.h"

namespace cairn::test {
namespace {

struct Part {
  std::int32_t begin, end;
  Phase phase;
  const char* tag;  ///< the state tensors that follow it
};

std::vector<Part> parts_of(const VectorCase& v) {
  const std::int32_t T = v.param("T"), D = v.param("D"), split = v.param("split");
  std::vector<Part> parts;
  if (split > 0) parts.push_back({0, split, Phase::kPrefill, "state_mid."});
  parts.push_back({split, T, Phase::kPrefill, "state_prefill."});
  for (std::int32_t t = T; t < T + D; ++t)
    parts.push_back({t, t + 1, Phase::kDecode, t + 1 == T + D ? "state_decode." : ""});
  return parts;
}

std::string policy_of(const VectorCase& v) { return v.params()["sparse"].value("policy", "adaptive"); }

SparsePrefill sparse_of(const VectorCase& v) {
  SparsePrefill sparse;
  if (!v.params().contains("sparse") || v.params()["sparse"].is_null()) return sparse;
  const nlohmann::json& options = v.params()["sparse"];
  sparse.enabled = true;
  sparse.min_chunks = options.value("min_chunks", 16);
  sparse.full_inverse = options.value("full_inverse", false);
  const std::string policy = policy_of(v);
  if (policy == "all") sparse.policy = SparsePolicy::kAll;
  if (policy == "fixed") sparse.policy = SparsePolicy::kFixed;
  return sparse;
}

std::vector<float> rows_of(const std::vector<float>& values, std::int64_t width, const Part& part) {
  return {values.begin() + part.begin * width, values.begin() + part.end * width};
}

struct LayerOutcome {
  std::vector<float> y, side;
};

/// Reads the case's tokens; `after` sees the rig after each part.
Result<LayerOutcome> read_layer(const VectorCase& v, RuntimeRig& rig, const std::function<Status(const Part&)>& after) {
  const std::int32_t d = v.param("d");
  const std::vector<float> x = v.floats("x"), side = v.has("side") ? v.floats("side") : std::vector<float>();
  const LayerConfig& layer = rig.plan()->description().layers[0];
  const std::int32_t width = layer.mechanism == Mechanism::kSdm   ? layer.sdm.heads * layer.sdm.value_dim
                             : layer.mechanism == Mechanism::kSse ? layer.sse.heads * layer.sse.value_dim
                                                                  : layer.delta.value_heads * layer.delta.value_dim;
  LayerOutcome outcome;
  for (const Part& part : parts_of(v)) {
    const std::int32_t count = part.end - part.begin;
    CAIRN_TRY_ASSIGN(const DeviceBuffer in, rig.upload(rows_of(x, d, part)));
    CAIRN_TRY_ASSIGN(const DeviceBuffer out,
                     rig.upload(std::vector<float>(static_cast<std::size_t>(count) * d, std::nanf(""))));
    CAIRN_TRY_ASSIGN(const DeviceBuffer below,
                     rig.upload(side.empty() ? std::vector<float>() : rows_of(side, width, part)));
    CAIRN_TRY_ASSIGN(const DeviceBuffer above,
                     rig.upload(std::vector<float>(static_cast<std::size_t>(count) * width + 1, std::nanf(""))));
    bool has_side = false;
    CAIRN_TRY(rig.read(count, part.phase, sparse_of(v), [&](Step& step) {
      step.bus.buffers[0] = step.bus.buffers[1] = {above.data(), width};
      if (!side.empty()) step.bus.residual = {below.data(), width}, step.bus.width = width;
      rig.plan()->blocks()[0]->run_mixer(step, {in.data(), d}, {out.data(), d});
      has_side = step.bus.residual.data == above.data();
    }));
    CAIRN_TRY_ASSIGN(const std::vector<float> y, rig.download(out.data(), static_cast<std::size_t>(count) * d));
    outcome.y.insert(outcome.y.end(), y.begin(), y.end());
    if (has_side) {
      CAIRN_TRY_ASSIGN(const std::vector<float> up,
                       rig.download(above.data(), static_cast<std::size_t>(count) * width));
      outcome.side.insert(outcome.side.end(), up.begin(), up.end());
    }
    CAIRN_TRY(after(part));
  }
  return outcome;
}

Status check(const VectorCase& v, const std::string& backend, Comparison& result) {
  CAIRN_TRY_ASSIGN(const std::shared_ptr<const ModelDescription> description, layer_description(v, false));
  const std::int64_t room = v.param("T") + v.param("D");
  CAIRN_TRY_ASSIGN(const std::unique_ptr<RuntimeRig> rig, RuntimeRig::create(description, backend, room));
  SparseChoice choice;  // the case holds that of its last sparse call
  CAIRN_TRY_ASSIGN(const LayerOutcome outcome, read_layer(v, *rig, [&](const Part& part) -> Status {
                     if (!rig->sparse_choices().empty()) choice = rig->sparse_choices()[0];
                     return *part.tag ? compare_state(*rig, 0, part.tag, v, result) : Status();
                   }));
  if (!choice.mask.empty()) {
    result.integers("mask", choice.mask);
    result.integers("tier", choice.tier);
    result.floats("scores", choice.scores);
  }
  if (v.param("D") == 0) CAIRN_TRY(compare_state(*rig, 0, "state_decode.", v, result));
  result.floats("y", outcome.y);
  if (v.has("side_out")) result.floats("side_out", outcome.side);
  if (!v.has("r")) return {};
  // The residual of a CLER-H or CLVR layer stays inside; the same layer with CLER in the place of its routing shows it.
  CAIRN_TRY_ASSIGN(const std::shared_ptr<const ModelDescription> shown, layer_description(v, true));
  CAIRN_TRY_ASSIGN(const std::unique_ptr<RuntimeRig> twin, RuntimeRig::create(shown, backend, room));
  CAIRN_TRY_ASSIGN(const LayerOutcome residual, read_layer(v, *twin, [](const Part&) { return Status(); }));
  result.floats("r", residual.side);
  return {};
}

}  // namespace

void check_layer(const VectorCase& v, OpRig& rig, Comparison& result) {
  if (v.params().contains("sparse") && v.params()["sparse"].is_object()) {
    const std::string unknown = unknown_key(v.params()["sparse"], "min_chunks full_inverse policy");
    if (!unknown.empty()) return result.fail("parameter sparse '" + unknown + "' is not known");
    if (!result.is_known("policy", policy_of(v), "adaptive all fixed")) return;
  }
  const Status status = check(v, rig.backend().name, result);
  if (!status.ok()) result.fail(status.message());
}

}  // namespace cairn::test
