// Benchmark cases of the dense operators. T tokens, D width, H heads, N outputs.
#include <cmath>

#include "tests/bench/op_bench_cases.h"

namespace cairn::bench {

namespace {
constexpr double kRow = 4;  // bytes of an f32 element; 16-bit activations count half in element_bytes()
double element_bytes(const Rig& rig) { return rig.dtype() == DType::kF32 ? kRow : 2; }
DType weight_type(Shape& shape) { return static_cast<DType>(shape.get("W", static_cast<int>(DType::kBF16))); }
}  // namespace

Case make_args(Rig& rig, Shape& s, EmbedArgs& a) {
  const std::int32_t tokens = s.get("T", 512), dim = s.get("D", 1024), vocab = s.get("V", 8192);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens));
  for (std::int32_t t = 0; t < tokens; ++t)
    ids[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(t * 7919LL % vocab);
  a = {rig.dtype(),
       tokens,
       dim,
       rig.upload(ids),
       rig.weight(vocab, dim, DType::kBF16).data,
       DType::kBF16,
       {rig.activations(static_cast<std::int64_t>(tokens) * dim), dim}};
  return {"", {}, tokens * dim * (2 + element_bytes(rig)), 0};
}

Case make_args(Rig& rig, Shape& s, GatherRowsArgs& a) {
  const std::int32_t rows = s.get("R", 64), dim = s.get("D", 1024);
  std::vector<std::int32_t> index(static_cast<std::size_t>(rows));
  for (std::int32_t i = 0; i < rows; ++i) index[static_cast<std::size_t>(i)] = rows - 1 - i;
  a = {rig.dtype(),
       rows,
       dim,
       rig.upload(index),
       {rig.activations(static_cast<std::int64_t>(rows) * dim), dim},
       {rig.activations(static_cast<std::int64_t>(rows) * dim), dim}};
  return {"", {}, 2.0 * rows * dim * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, LinearArgs& a) {
  const std::int32_t tokens = s.get("T", 512), in_dim = s.get("D", 1024), out_dim = s.get("N", 1024);
  const DType type = weight_type(s);
  a.dtype = a.out_dtype = rig.dtype();
  a.phase = s.get("decode", tokens <= 64) ? Phase::kDecode : Phase::kPrefill;
  a.token_count = tokens;
  a.weight = rig.keep(rig.weight(out_dim, in_dim, type));
  a.in = {rig.activations(static_cast<std::int64_t>(tokens) * in_dim), in_dim};
  a.out = {rig.activations(static_cast<std::int64_t>(tokens) * out_dim), out_dim};
  const double weights = static_cast<double>(out_dim) * in_dim;
  return {
      "", {}, weights * dtype_bits(type) / 8 + tokens * (in_dim + out_dim) * element_bytes(rig), 2 * weights * tokens};
}

/// Decode: B sequences of one token, through the four operators' worth of a GDN layer.
Case make_args(Rig& rig, Shape& s, DeltaInputsArgs& a) {
  const std::int32_t sequences = s.get("B", 1), key_heads = s.get("HK", 16), value_heads = s.get("HV", 32), dim = s.get("K", 128);
  const std::int32_t channels = (2 * key_heads + value_heads) * dim, taps = 4;
  const Batch batch = rig.batch(sequences, 1);
  std::vector<float*> tails;
  for (std::int32_t b = 0; b < sequences; ++b) tails.push_back(rig.numbers(std::int64_t{channels} * (taps - 1), -1, 1));
  const auto rows = [&](std::int64_t width) { return Rows{rig.activations(sequences * width), width}; };
  a.conv = {rig.dtype(), GateKind::kSilu, batch, channels, taps, rig.numbers(channels * taps, -0.5f, 0.5f), nullptr,
            rows(channels), rig.upload(tails), rows(channels)};
  a.key_heads = key_heads;
  a.key_dim = dim;
  a.norm = FeatureMap::kL2;
  a.decay = {rig.dtype(), DecayKind::kSoftplus, 0, sequences, value_heads, 1, rig.numbers(value_heads, 0, 2),
             rig.numbers(value_heads, -1, 1), rows(value_heads), rig.numbers(sequences * value_heads, 0, 1)};
  a.beta = {rig.dtype(), DType::kF32, FeatureMap::kSigmoid, sequences, 1, value_heads, 1, 1, rows(value_heads),
            {rig.numbers(sequences * value_heads, 0, 1), value_heads}};
  return {"", {}, sequences * channels * (2 * element_bytes(rig) + 2 * (taps - 1) * kRow), 0};
}

/// The same with the rule and its norm.
Case make_args(Rig& rig, Shape& s, DeltaStepArgs& a) {
  const Case inputs = make_args(rig, s, a.inputs);
  const std::int32_t value_heads = a.inputs.decay.head_count, key_heads = a.inputs.key_heads, dim = a.inputs.key_dim;
  const Batch& batch = a.inputs.conv.batch;
  const std::int64_t state = std::int64_t{value_heads} * dim * dim, width = std::int64_t{value_heads} * dim;
  std::vector<float*> states;
  for (std::int32_t b = 0; b < batch.sequence_count; ++b) states.push_back(rig.numbers(state, -0.1f, 0.1f));
  const auto rows = [&] { return Rows{rig.activations(batch.token_count * width), width}; };
  const auto part = [&](std::int32_t heads) {
    const std::int64_t bytes = std::int64_t{heads} * dim * (dtype_bits(rig.dtype()) / 8);
    return ConstRows(static_cast<std::byte*>(a.inputs.conv.out.data) + bytes, a.inputs.conv.out.stride);
  };
  DeltaRuleArgs& rule = a.rule;
  rule.dtype = rig.dtype(), rule.phase = Phase::kDecode, rule.batch = batch;
  rule.key_heads = key_heads, rule.value_heads = value_heads, rule.key_dim = rule.value_dim = dim;
  rule.scale = 1 / std::sqrt(static_cast<float>(dim));
  rule.q = part(0), rule.k = part(key_heads), rule.v = part(2 * key_heads);
  rule.log_decay = a.inputs.decay.out, rule.beta = static_cast<const float*>(a.inputs.beta.out.data);
  rule.states = rig.upload(states);
  rule.out = rows();
  a.norm = {rig.dtype(), NormKind::kRms, GateKind::kSilu, batch.token_count, value_heads, dim, 1e-6f,
            rig.numbers(dim, 0.5f, 1.5f), nullptr, rule.out, rows(), rule.out};
  return {"", {}, inputs.bytes + 8.0 * batch.sequence_count * static_cast<double>(state), 0};
}

Case make_args(Rig& rig, Shape& s, RmsNormArgs& a) {
  const std::int32_t tokens = s.get("T", 512), heads = s.get("H", 1), dim = s.get("D", 1024);
  const std::int32_t width = heads * dim;
  a = {rig.dtype(), tokens, heads, dim, 1e-6f, rig.numbers(dim, 0.5f, 1.5f), {}, {}};
  a.in = {rig.activations(static_cast<std::int64_t>(tokens) * width), width};
  a.out = {rig.activations(static_cast<std::int64_t>(tokens) * width), width};
  return {"", {}, 2.0 * tokens * width * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, GatedRmsNormArgs& a) {
  const std::int32_t tokens = s.get("T", 512), heads = s.get("H", 16), dim = s.get("D", 128), width = heads * dim;
  const std::int64_t count = static_cast<std::int64_t>(tokens) * width;
  a = {rig.dtype(),
       NormKind::kRms,
       GateKind::kSilu,
       tokens,
       heads,
       dim,
       1e-6f,
       rig.numbers(dim, 0.5f, 1.5f),
       nullptr,
       {rig.activations(count), width},
       {rig.activations(count), width},
       {rig.activations(count), width}};
  return {"", {}, 3.0 * static_cast<double>(count) * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, ShortConvArgs& a) {
  const std::int32_t sequences = s.get("B", 1), tokens = s.get("T", 512), channels = s.get("C", 6144),
                     size = s.get("n", 4);
  a.dtype = rig.dtype();
  a.activation = GateKind::kSilu;
  a.batch = rig.batch(sequences, tokens);
  a.channel_count = channels;
  a.kernel_size = size;
  a.weight = rig.numbers(static_cast<std::int64_t>(channels) * size, -1, 1);
  std::vector<float*> tails;
  for (std::int32_t b = 0; b < sequences; ++b)
    tails.push_back(rig.numbers(static_cast<std::int64_t>(size - 1) * channels, -1, 1));
  a.tails = rig.upload(tails);
  const std::int64_t count = static_cast<std::int64_t>(a.batch.token_count) * channels;
  a.in = {rig.activations(count), channels};
  a.out = {rig.activations(count), channels};
  return {"", {}, 2.0 * static_cast<double>(count) * element_bytes(rig), 2.0 * size * static_cast<double>(count)};
}

Case make_args(Rig& rig, Shape& s, FeatureMapArgs& a) {
  const std::int32_t tokens = s.get("T", 512), heads = s.get("H", 16), dim = s.get("D", 128), width = heads * dim;
  const std::int64_t count = static_cast<std::int64_t>(tokens) * width;
  a = {rig.dtype(),
       rig.dtype(),
       static_cast<FeatureMap>(s.get("map", static_cast<int>(FeatureMap::kL2))),
       tokens,
       heads,
       dim,
       1,
       1,
       {rig.activations(count), width},
       {rig.activations(count), width}};
  return {"", {}, 2.0 * static_cast<double>(count) * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, DecayGateArgs& a) {
  const std::int32_t tokens = s.get("T", 512), heads = s.get("H", 16), rows = s.get("K", 128), width = heads * rows;
  const std::int64_t count = static_cast<std::int64_t>(tokens) * width;
  a = {rig.dtype(),
       DecayKind::kSoftplus,
       16,
       tokens,
       heads,
       rows,
       rig.numbers(heads, -1, 1),
       rig.numbers(width, -4, -1),
       {rig.activations(count), width},
       rig.numbers(count, 0, 1)};
  return {"", {}, static_cast<double>(count) * (element_bytes(rig) + 4), 0};
}

Case make_args(Rig& rig, Shape& s, AddArgs& a) {
  const std::int32_t tokens = s.get("T", 512), dim = s.get("D", 1024);
  const std::int64_t count = static_cast<std::int64_t>(tokens) * dim;
  a = {rig.dtype(),
       tokens,
       dim,
       nullptr,
       {rig.activations(count), dim},
       {rig.activations(count), dim},
       {rig.activations(count), dim}};
  return {"", {}, 3.0 * static_cast<double>(count) * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, GateArgs& a) {
  const std::int32_t tokens = s.get("T", 512), dim = s.get("D", 2048);
  const std::int64_t count = static_cast<std::int64_t>(tokens) * dim;
  a = {rig.dtype(),
       GateKind::kSigmoid,
       tokens,
       dim,
       {rig.activations(count), dim},
       {rig.activations(count), dim},
       {rig.activations(count), dim}};
  return {"", {}, 3.0 * static_cast<double>(count) * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, SwigluArgs& a) {
  const std::int32_t tokens = s.get("T", 512), dim = s.get("D", 3584);
  const std::int64_t count = static_cast<std::int64_t>(tokens) * dim;
  a = {rig.dtype(),
       tokens,
       dim,
       {rig.activations(count), dim},
       {rig.activations(count), dim},
       {rig.activations(count), dim}};
  return {"", {}, 3.0 * static_cast<double>(count) * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, CrossLayerAddArgs& a) {
  const std::int32_t tokens = s.get("T", 512), heads = s.get("H", 16), dim = s.get("D", 128), width = heads * dim;
  const std::int64_t count = static_cast<std::int64_t>(tokens) * width;
  a = {rig.dtype(),
       tokens,
       heads,
       dim,
       rig.numbers(heads, 0, 1),
       1,
       0,
       {rig.activations(count), width},
       {rig.activations(count), width},
       {rig.activations(count), width}};
  return {"", {}, 3.0 * static_cast<double>(count) * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, MoeArgs& a) {
  const std::int32_t tokens = s.get("T", 64), dim = s.get("D", 1024), hidden = s.get("F", 512),
                     experts = s.get("E", 64);
  const DType type = weight_type(s);
  std::vector<LinearWeight> gate, up, down;
  for (std::int32_t e = 0; e < experts; ++e) {
    gate.push_back(rig.weight(hidden, dim, type));
    up.push_back(rig.weight(hidden, dim, type));
    down.push_back(rig.weight(dim, hidden, type));
  }
  a.dtype = rig.dtype();
  a.phase = tokens <= 64 ? Phase::kDecode : Phase::kPrefill;
  a.router = RouterKind::kSoftmax;
  a.renormalize = true;
  a.routed_scale = 1;
  a.token_count = tokens;
  a.dim = dim;
  a.hidden_dim = hidden;
  a.expert_count = experts;
  a.top_k = s.get("k", 8);
  a.group_count = a.top_groups = 1;
  a.router_logits = rig.numbers(static_cast<std::int64_t>(tokens) * experts, -3, 3);
  a.gate = rig.keep(std::move(gate))->data();
  a.up = rig.keep(std::move(up))->data();
  a.down = rig.keep(std::move(down))->data();
  a.in = {rig.activations(static_cast<std::int64_t>(tokens) * dim), dim};
  a.out = {rig.activations(static_cast<std::int64_t>(tokens) * dim), dim};
  const double used = tokens * a.top_k < experts ? tokens * a.top_k : experts, each = 3.0 * dim * hidden;
  return {"",
          {},
          used * each * dtype_bits(type) / 8 + 2.0 * tokens * dim * element_bytes(rig),
          2 * each * tokens * a.top_k};
}

}  // namespace cairn::bench
