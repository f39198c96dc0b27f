// A fused operator gives the bits of its parts: a batch that is too large for it must not change anybody's results.
#include <doctest/doctest.h>

#include "tests/backends/linear_cases.h"
#include "tests/support/backend_access.h"

namespace cairn::test {
namespace {

constexpr std::int32_t kTokens = 5;

/// Rows of random numbers [kTokens, width].
Rows random_rows(OpRig& rig, Random& random, std::int32_t width) {
  return {rig.upload_activations(random.normals(static_cast<std::size_t>(kTokens) * width)), width};
}

using Outputs = std::vector<std::vector<float>>;

/// One call of delta_inputs and its tails.
struct InputsCall {
  DeltaInputsArgs args;
  std::vector<float*> tails;
  std::size_t tail_count;
};

InputsCall random_inputs(OpRig& rig, Random& random, std::int32_t key_heads, std::int32_t value_heads,
                         std::int32_t dim) {
  const std::int32_t channels = (2 * key_heads + value_heads) * dim;
  const auto numbers = [&](std::int32_t count) {
    return rig.upload(random.normals(static_cast<std::size_t>(count), 0.5));
  };
  const Batch batch = rig.batch(std::vector<std::int32_t>(kTokens, 1));
  InputsCall call{{}, {}, static_cast<std::size_t>(3 * channels)};
  for (std::int32_t t = 0; t < kTokens; ++t) call.tails.push_back(numbers(3 * channels));
  DeltaInputsArgs& args = call.args;
  args.conv = {rig.dtype(),
               GateKind::kSilu,
               batch,
               channels,
               4,
               numbers(4 * channels),
               numbers(channels),
               random_rows(rig, random, channels),
               rig.upload(call.tails),
               random_rows(rig, random, channels)};
  args.key_heads = key_heads;
  args.key_dim = dim;
  args.norm = FeatureMap::kL2;
  args.decay = {rig.dtype(),
                DecayKind::kSoftplus,
                0,
                kTokens,
                value_heads,
                1,
                numbers(value_heads),
                numbers(value_heads),
                random_rows(rig, random, value_heads),
                numbers(kTokens * value_heads)};
  args.beta = {rig.dtype(),
               DType::kF32,
               FeatureMap::kSigmoid,
               kTokens,
               1,
               value_heads,
               1,
               2,
               random_rows(rig, random, value_heads),
               {numbers(kTokens * value_heads), value_heads}};
  return call;
}

void check_input_bits(OpRig& rig, std::int32_t key_heads, std::int32_t value_heads, std::int32_t dim) {
  Outputs outputs[2];
  for (const bool is_fused : {false, true}) {
    Random random(62);
    const InputsCall call = random_inputs(rig, random, key_heads, value_heads, dim);
    const DeltaInputsArgs& args = call.args;
    if (rig.ops().delta_inputs.unsupported_reason(args)) break;
    if (is_fused) {
      CHECK(rig.run(rig.ops().delta_inputs, args) == "");
    } else {
      const Rows& out = args.conv.out;
      const FeatureMapArgs norm{rig.dtype(), rig.dtype(), args.norm, kTokens, 2 * key_heads, dim, 1, 1, out, out};
      CHECK(rig.run(rig.ops().short_conv, args.conv) == "");
      CHECK(rig.run(rig.ops().feature_map, norm) == "");
      CHECK(rig.run(rig.ops().decay_gate, args.decay) == "");
      CHECK(rig.run(rig.ops().feature_map, args.beta) == "");
    }
    const std::size_t heads = static_cast<std::size_t>(value_heads) * kTokens;
    outputs[is_fused] = {
        rig.download_activations(args.conv.out.data, static_cast<std::size_t>(kTokens) * args.conv.channel_count),
        rig.download(args.decay.out, heads), rig.download(static_cast<const float*>(args.beta.out.data), heads)};
    for (const float* tail : call.tails) outputs[is_fused].push_back(rig.download(tail, call.tail_count));
  }
  CHECK(outputs[0] == outputs[1]);
  rig.clear();
}

void check_step_bits(OpRig& rig, std::int32_t key_heads, std::int32_t value_heads, std::int32_t dim) {
  const std::int32_t width = value_heads * dim;
  const std::size_t state_count = static_cast<std::size_t>(width) * dim;
  Outputs outputs[2];
  for (const bool is_fused : {false, true}) {
    Random random(63);
    const InputsCall call = random_inputs(rig, random, key_heads, value_heads, dim);
    std::vector<float*> states;
    for (std::int32_t t = 0; t < kTokens; ++t) states.push_back(rig.upload(random.normals(state_count, 0.3)));
    const Rows& qkv = call.args.conv.out;
    const auto part = [&](std::int32_t heads) {
      const std::int64_t bytes = std::int64_t{heads} * dim * (dtype_bits(rig.dtype()) / 8);
      return ConstRows(static_cast<const std::uint8_t*>(qkv.data) + bytes, qkv.stride);
    };
    DeltaStepArgs args{call.args, {}, {}};
    DeltaRuleArgs& rule = args.rule;
    rule.dtype = rig.dtype(), rule.phase = Phase::kDecode, rule.batch = call.args.conv.batch;
    rule.key_heads = key_heads, rule.value_heads = value_heads, rule.key_dim = rule.value_dim = dim;
    rule.scale = 0.1F;
    rule.q = part(0), rule.k = part(key_heads), rule.v = part(2 * key_heads);
    rule.log_decay = call.args.decay.out, rule.beta = static_cast<const float*>(call.args.beta.out.data);
    rule.states = rig.upload(states);
    rule.out = random_rows(rig, random, width);
    args.norm = {rig.dtype(),
                 NormKind::kRms,
                 GateKind::kSilu,
                 kTokens,
                 value_heads,
                 dim,
                 1e-6F,
                 rig.upload(random.normals(static_cast<std::size_t>(dim), 0.2, 1)),
                 nullptr,
                 rule.out,
                 random_rows(rig, random, width),
                 rule.out};
    if (rig.ops().delta_step.unsupported_reason(args)) break;
    if (is_fused) {
      CHECK(rig.run(rig.ops().delta_step, args) == "");
    } else {
      CHECK(rig.run(rig.ops().delta_inputs, args.inputs) == "");
      CHECK(rig.run(rig.ops().gdn, args.rule) == "");
      CHECK(rig.run(rig.ops().gated_rms_norm, args.norm) == "");
    }
    outputs[is_fused] = {rig.download_activations(args.norm.out.data, static_cast<std::size_t>(kTokens) * width)};
    for (const float* tail : call.tails) outputs[is_fused].push_back(rig.download(tail, call.tail_count));
    for (const float* state : states) outputs[is_fused].push_back(rig.download(state, state_count));
  }
  CHECK(outputs[0] == outputs[1]);
  rig.clear();
}

/// Of every tested backend, with its own activations.
template <class Check>
void for_each_rig(const Check& check) {
  for (const std::string& name : tested_backends()) {
    std::string reason;
    const Backend* backend = find_backend(name, &reason);
    CAPTURE(name);
    REQUIRE(backend != nullptr);
    OpRig rig(*backend, 0, backend->activation_dtype);
    check(rig);
  }
}

TEST_CASE("a fused operator gives the bits of its parts") {
  for_each_rig([](OpRig& rig) {
    check_input_bits(rig, 2, 4, 32);
    check_input_bits(rig, 4, 8, 128);
    check_input_bits(rig, 1, 40, 256);
    for (const std::int32_t heads_per_key : {1, 2, 3, 4}) check_step_bits(rig, 2, 2 * heads_per_key, 128);
  });
}

/// `out`: rows of `half` columns with a gap between them, by the fused operator or by its parts.
std::vector<float> swiglu_outputs(OpRig& rig, const HostWeight& host, std::int32_t tokens, bool is_fused) {
  Random random(64);
  const std::int32_t half = host.out_dim / 2, stride = (half + 7) / 8 * 8 + 8;
  LinearWeight weight = bind_weight(rig, host);
  rig.pack(&weight);
  const auto rows = [&](std::int32_t width) {
    return Rows{rig.upload_activations(random.normals(static_cast<std::size_t>(tokens) * width)), width};
  };
  const Rows x = rows(host.in_dim), out = rows(stride), both = rows(host.out_dim);
  LinearArgs args{rig.dtype(), rig.dtype(), Phase::kDecode, false, tokens, &weight, x, out};
  std::vector<float> outputs;
  if (!rig.ops().linear_swiglu.unsupported_reason(args)) {
    if (is_fused) {
      CHECK(rig.run(rig.ops().linear_swiglu, args) == "");
    } else {
      args.out = both;
      CHECK(rig.run(rig.ops().linear, args) == "");
      const ConstRows up = {static_cast<const std::byte*>(both.data) + half * (dtype_bits(rig.dtype()) / 8),
                            both.stride};
      CHECK(rig.run(rig.ops().swiglu, SwigluArgs{rig.dtype(), tokens, half, both, up, out}) == "");
    }
    outputs = rig.download_activations(out.data, static_cast<std::size_t>(tokens) * stride);
  }
  rig.clear();  // weight is unpacked while it lives
  return outputs;
}

TEST_CASE("linear_swiglu gives the bits of linear and swiglu") {
  for_each_rig([](OpRig& rig) {
    const std::pair<std::int32_t, std::int32_t> shapes[] = {{1, 64}, {45, 192}, {133, 2112}, {2201, 704}, {12800, 64}};
    for (const auto& [half, in_dim] : shapes) {
      Random random(65);
      const HostWeight weight = random_weight(random, 2 * half, in_dim, DType::kBF16, half == 45);
      for (const std::int32_t tokens : {1, 2, 7, 8, 9, 17, 40}) {
        CAPTURE(half);
        CAPTURE(tokens);
        CHECK(swiglu_outputs(rig, weight, tokens, true) == swiglu_outputs(rig, weight, tokens, false));
      }
    }
  });
}

}  // namespace
}  // namespace cairn::test
