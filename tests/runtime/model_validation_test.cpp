#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "runtime/model/model_limits.h"
#include "tests/support/model_builder.h"

namespace cairn::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Layers of every_mechanism_model.
enum : std::size_t { kGdn = 0, kKda = 1, kWindow = 2, kDeltaNet = 3, kGdn2 = 4, kSse = 5, kSdm = 6, kFull = 7 };

struct Case {
  const char* message;  ///< part of it
  std::function<void(ModelDescription&)> spoil;
};

void check_cases(const std::vector<Case>& cases, cairn_status code) {
  const auto good = every_mechanism_model(1);
  REQUIRE_MESSAGE(validate(*good).ok(), validate(*good).message());
  REQUIRE_MESSAGE(check_tensors(*good).ok(), check_tensors(*good).message());
  for (const Case& c : cases) {
    CAPTURE(c.message);
    ModelDescription bad = *good;
    c.spoil(bad);
    const Status status = validate(bad);
    CHECK(status.code() == code);
    CHECK_MESSAGE(status.message().find(c.message) != std::string::npos, status.message());
  }
}

LayerConfig moe_layer() {
  LayerConfig layer = delta_layer(Mechanism::kGdn);
  layer.mlp = {MlpKind::kMoe, 16, 6, 2, RouterKind::kSoftmax, true, false, 1, 3, 2, 0, false};
  return layer;
}

}  // namespace

TEST_CASE("validate names the layer, the field and the range") {
  ModelDescription bad = *every_mechanism_model(1);
  bad.layers[kKda].delta.key_dim = -4;
  CHECK(validate(bad).message() == "layer 1 (kda): key_dim is -4 (1 to 65536)");
}

TEST_CASE("validate refuses numbers out of range (cases 34-43)") {
  check_cases(
      {
          {"0 layers", [](auto& m) { m.layers.clear(); }},
          {"model_dim is 0", [](auto& m) { m.model_dim = 0; }},
          {"model_dim is -1", [](auto& m) { m.model_dim = -1; }},
          {"vocab_size is 0", [](auto& m) { m.vocab_size = 0; }},
          {"vocab_size is -2147483648", [](auto& m) { m.vocab_size = INT32_MIN; }},
          {"trained_tokens", [](auto& m) { m.trained_tokens = -1; }},
          {"norm_eps is 0", [](auto& m) { m.norm_eps = 0; }},
          {"norm_eps is -1", [](auto& m) { m.norm_eps = -1; }},
          {"norm_eps is nan", [](auto& m) { m.norm_eps = kNaN; }},
          {"output eps is inf", [](auto& m) { m.layers[kGdn].output.eps = kInfinity; }},
          {"key_heads is 0", [](auto& m) { m.layers[kGdn].delta.key_heads = 0; }},
          {"does not divide value_heads (5)", [](auto& m) { m.layers[kGdn].delta.value_heads = 5; }},
          {"value_dim", [](auto& m) { m.layers[kDeltaNet].delta.value_dim = 1 << 20; }},
          {"value_heads * key_dim", [](auto& m) { m.layers[kGdn].delta.value_heads = m.layers[kGdn].delta.key_heads = 60000, m.layers[kGdn].delta.key_dim = 60000; }},
          {"conv_kernel is 33 ", [](auto& m) { m.layers[kGdn].delta.conv_kernel = 33; }},
          {"conv_bias without", [](auto& m) { m.layers[kGdn].delta.conv_kernel = 0, m.layers[kGdn].delta.conv_bias = true; }},
          {"qk_norm has the unknown value 9", [](auto& m) { m.layers[kGdn].delta.qk_norm = static_cast<QkNorm>(9); }},
          {"beta_scale is nan", [](auto& m) { m.layers[kGdn].delta.beta_scale = kNaN; }},
          {"only delta_net may go without beta", [](auto& m) { m.layers[kGdn].delta.has_beta = false; }},
          {"decay_lower_bound must be negative", [](auto& m) { m.layers[kKda].delta.decay = DecayKind::kLowerBound; }},
          {"decay_rank belongs to", [](auto& m) { m.layers[kGdn].delta.decay_rank = 4; }},
          {"decay log_sigmoid", [](auto& m) { m.layers[kGdn].delta.decay = DecayKind::kLogSigmoid; }},
          {"kv_heads (3) does not divide", [](auto& m) { m.layers[kFull].attention.kv_heads = 3; }},
          {"window is -1", [](auto& m) { m.layers[kWindow].attention.window = -1; }},
          {"window is -2147483648", [](auto& m) { m.layers[kWindow].attention.window = INT32_MIN; }},
          {"rotary_dim is odd", [](auto& m) { m.layers[kFull].attention.rotary_dim = 3; }},
          {"rotary_dim is 10", [](auto& m) { m.layers[kFull].attention.rotary_dim = 10; }},
          {"rope_theta is 0", [](auto& m) { m.layers[kFull].attention.rope_theta = 0; }},
          {"qk_norm and qk_norm_full", [](auto& m) { m.layers[kFull].attention.qk_norm = m.layers[kFull].attention.qk_norm_full = true; }},
          {"qk_norm_eps is -1", [](auto& m) { m.layers[kFull].attention.qk_norm_eps = -1; }},
          {"qk_norm_eps is nan", [](auto& m) { m.layers[kFull].attention.qk_norm_eps = kNaN; }},
          {"qk_norm_centering has", [](auto& m) { m.layers[kFull].attention.qk_norm_centering = static_cast<NormCentering>(3); }},
          {"partitions is 0", [](auto& m) { m.layers[kSse].sse.partitions = 0; }},
          {"top_k is 5 (1 to 4)", [](auto& m) { m.layers[kSse].sse.top_k = 5; }},
          {"top_k is 0", [](auto& m) { m.layers[kSse].sse.top_k = 0; }},
          {"decay_root is 0", [](auto& m) { m.layers[kSse].sse.decay_root = 0; }},
          {"separate_shared_gates", [](auto& m) { m.layers[kSse].sse.adapter_rank = 0, m.layers[kSse].sse.has_shared = false, m.layers[kSse].sse.separate_shared_gates = true; }},
          {"side is 0", [](auto& m) { m.layers[kSdm].sdm.side = 0; }},
          {"side is 4097", [](auto& m) { m.layers[kSdm].sdm.side = 4097; }},
          {"write_count is 4097 (1 to 4096)", [](auto& m) { m.layers[kSdm].sdm.side = 65, m.layers[kSdm].sdm.write_count = 4097; }},
          {"read_count is 0", [](auto& m) { m.layers[kSdm].sdm.read_count = 0; }},
          {"write_scale is not finite", [](auto& m) { m.layers[kSdm].sdm.write_scale = kNaN; }},
          {"nothing to route", [](auto& m) { m.layers[kFull].routing.kind = Routing::kClvr; }},
          {"sse has no residual", [](auto& m) { m.layers[kSse].routing.kind = Routing::kCler; }},
          {"slot_residual", [](auto& m) { m.layers[kSdm].sdm.slot_residual = true, m.layers[kSdm].routing.kind = Routing::kClerH; }},
          {"layer 6: cler routes 24 values, but layer 0 below left 48", [](auto& m) { m.layers[kGdn].routing.kind = m.layers[kSdm].routing.kind = Routing::kCler; }},
          {"mechanism has the unknown value 99", [](auto& m) { m.layers[0].mechanism = static_cast<Mechanism>(99); }},
          {"mlp hidden_dim is 0", [](auto& m) { m.layers[0].mlp.hidden_dim = 0; }},
          {"top_k is 5 (1 to 4)", [](auto& m) { m.layers[0] = moe_layer(), m.layers[0].mlp.top_k = 5; }},
          {"group_count (4) does not divide", [](auto& m) { m.layers[0] = moe_layer(), m.layers[0].mlp.group_count = 4; }},
          {"shared_gate without", [](auto& m) { m.layers[0] = moe_layer(), m.layers[0].mlp.shared_gate = true; }},
          {"bos is 40", [](auto& m) { m.tokenizer.bos = 40; }},
          {"eos is -2", [](auto& m) { m.tokenizer.eos = -2; }},
          {"add_bos without", [](auto& m) { m.tokenizer.add_bos = true; }},
          {"a stop token is 1000", [](auto& m) { m.tokenizer.stop_tokens = {1000}; }},
          {"at least 256", [](auto& m) { m.tokenizer.kind = TokenizerKind::kBytes; }},
      },
      CAIRN_STATUS_FORMAT);
}

TEST_CASE("validate refuses a name that a snapshot could not be read back with") {
  ModelDescription model = *every_mechanism_model(1);
  for (const std::string& name : {std::string("a\0b", 3), std::string("\xff"), std::string("\xed\xa0\x80")}) {
    model.name = name;
    CHECK(validate(model).code() == CAIRN_STATUS_FORMAT);
  }
  model.name = std::string(257, 'x');
  CHECK(validate(model).message() == "name has 257 bytes (limit 256)");
  model.name = "\u72b6\u614b \U0001faa8";
  CHECK(validate(model).ok());
}

TEST_CASE("validate keeps the default limits") {
  check_cases(
      {
          {"4097 layers (limit 4096)", [](auto& m) { m.layers.resize(4097, m.layers[0]); }},
          {"vocab_size is 4194305 (limit 4194304)", [](auto& m) { m.vocab_size = 4194305; }},
          {"metadata of", [](auto& m) { m.tokenizer.chat_template = std::string((1 << 20) + 1, 'x'); }},
          {"tokenizer: data", [](auto& m) { m.tokenizer.data = std::string((32 << 20) + 1, 'x'); }},
          {"132000 experts make more tensors than the limit of 131072",
           [](auto& m) {
             LayerConfig layer = moe_layer();
             layer.mlp.expert_count = 33;
             m.layers.assign(4000, layer);
           }},
      },
      CAIRN_STATUS_LIMIT_EXCEEDED);
}

TEST_CASE("validate accepts what the specification allows") {
  ModelDescription model = *every_mechanism_model(1);
  model.layers[kGdn].delta.key_dim = 33;     // odd
  model.layers[kGdn].delta.value_heads = 6;  // three value heads a key head
  model.layers[kGdn].delta.conv_kernel = 1;
  model.layers[kSdm].sdm.write_count = 36;   // more than side
  model.layers[kSdm].sdm.read_count = 5000;  // more than all slots: all
  model.layers[kWindow].attention.window = 1;
  model.layers[kSse].sse.top_k = 4;
  model.norm_eps = 1e-12F;
  CHECK_MESSAGE(validate(model).ok(), validate(model).message());
}

TEST_CASE("check_tensors names what is missing, extra, twice, or of another shape or type (cases 30-33)") {
  const auto good = every_mechanism_model(1);
  const auto message = [&](auto spoil) {
    ModelDescription bad = *good;
    spoil(bad);
    const Status status = check_tensors(bad);
    CHECK(status.code() == CAIRN_STATUS_FORMAT);
    return status.message();
  };
  const auto at = [](ModelDescription& m, const char* name) -> TensorEntry& {
    return *const_cast<TensorEntry*>(m.find(name));
  };
  CHECK(message([&](auto& m) { m.tensors.erase(m.tensors.begin()); }) == "tensor 'embed.weight' is missing");
  CHECK(message([&](auto& m) { m.tensors.pop_back(); }).ends_with("is missing"));
  CHECK(message([&](auto& m) { at(m, "final_norm.weight").name = "final_nork"; }) == "tensor 'final_nork' is not part of this model");
  CHECK(message([&](auto& m) { m.tensors.push_back(m.tensors.back()); }).find("twice") != std::string::npos);
  CHECK(message([&](auto& m) { m.tied_embedding = false; }) == "tensor 'head.weight' is missing");
  CHECK(message([&](auto& m) { at(m, "embed.weight").shape = {24, 40}; }) == "tensor 'embed.weight' has shape [24, 40] (expected [40, 24])");
  CHECK(message([&](auto& m) { m.layers[kGdn].delta.conv_kernel = 3; }).find("conv_k.weight' has shape [16, 4] (expected [16, 3])") != std::string::npos);
  CHECK(message([&](auto& m) { at(m, "embed.weight").dtype = DType::kI8; }).find("bytes, but") != std::string::npos);
  CHECK(message([&](auto& m) { at(m, "embed.weight").dtype = static_cast<DType>(200); }).find("unknown element type") != std::string::npos);
  CHECK(message([&](auto& m) { at(m, "final_norm.weight").dtype = DType::kI32; }).find("i32 is not allowed") != std::string::npos);
  CHECK(message([&](auto& m) { at(m, "final_norm.weight").size_bytes -= 1; }).find("95 bytes") != std::string::npos);
}

TEST_CASE("check_finite finds NaN, infinities and decays that overflow (cases 40-42)") {
  const auto good = every_mechanism_model(1);
  CHECK(check_finite(*good).ok());
  const auto message = [&](const char* name, DType dtype, std::vector<std::uint8_t> bytes, std::vector<float> scales = {}) {
    ModelDescription bad = *good;
    TensorEntry& tensor = *const_cast<TensorEntry*>(bad.find(name));
    tensor.dtype = dtype;
    tensor.data = bytes.data();
    tensor.size_bytes = bytes.size();
    if (!scales.empty()) tensor.scales = scales.data(), tensor.scales_bytes = scales.size() * 4;
    const Status status = check_finite(bad);
    CHECK(status.code() == CAIRN_STATUS_NUMERIC);
    return status.message();
  };
  const char* norm = "final_norm.weight";
  CHECK(message(norm, DType::kF32, {0, 0, 0, 0, 0, 0, 0xc0, 0x7f}) == "tensor 'final_norm.weight': element 1 is not finite");
  CHECK(message(norm, DType::kF32, {0, 0, 0x80, 0xff}).find("element 0") != std::string::npos);
  CHECK(message(norm, DType::kBF16, {0, 0, 0x80, 0x7f}).find("element 1") != std::string::npos);
  CHECK(message(norm, DType::kF16, {0, 0x7c}).find("element 0") != std::string::npos);
  CHECK(message(norm, DType::kI8, {1}, {kNaN}).find("scale 0") != std::string::npos);
  CHECK(message("layers.0.mixer.a_log", DType::kF32, {0xca, 0xf2, 0x49, 0x71}).find("exponential is not finite") != std::string::npos);  // 1e30
}

}  // namespace cairn::test
