#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "runtime/import/import_folder.h"
#include "runtime/import/json_reader.h"
#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/element_conversion.h"
#include "runtime/model/pack.h"
#include "tests/runtime/file_fixture.h"

namespace cairn::test {
namespace {

using Json = nlohmann::json;

const std::string kWayfarer = CAIRN_SHARED_DIR "/models/wayfarer";

std::string safetensors(const std::string& header, const std::string& data) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return bytes + header + data;
}

Result<SafetensorsMap> read_text(const std::string& bytes, const SafetensorsLimits& limits = {}) {
  CAIRN_TRY_ASSIGN(auto source, copied_source(bytes.data(), bytes.size()));
  return read_safetensors(std::move(source), "t", limits);
}

std::string refusal(const std::string& header, const std::string& data, cairn_status code = CAIRN_STATUS_FORMAT) {
  const Status status = read_text(safetensors(header, data)).status();
  CHECK(status.code() == code);
  return status.message();
}

bool contains(const std::string& text, const char* part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, text);
  return found;
}

/// Writes a native folder: config and tensors [rows, columns] of zeros but their index as first element.
class NativeFolder {
 public:
  Json config = Json::parse(
      R"json({"format": "cairn-native/1", "name": "tiny", "tensors": {"layout": "every matrix is [out, in]"}, "tokenizer": {"kind": "bytes", "bos": 256, "eos": 257, "vocab": 264},
    "d_model": 8, "n_layers": 1, "mlp_hidden": 6, "norm_eps": 1e-6, "norm_zero_centered": false, "tie_embeddings": true, "max_trained_length": 64,
    "layers": ["gdn"], "gdn": {"qk_heads": 2, "v_heads": 4, "key_dim": 3, "value_dim": 5, "conv_kernel": 4, "conv_bias": false,
    "conv_activation": "silu", "qk_l2norm": true, "query_scale": "1/sqrt(key_dim)", "output_gate": "silu"}})json");
  std::map<std::string, std::vector<std::int64_t>> tensors = {
      {"embed.weight", {264, 8}}, {"final_norm.weight", {8}}, {"blocks.0.norm1.weight", {8}}, {"blocks.0.norm2.weight", {8}},
      {"blocks.0.mlp.gate.weight", {6, 8}}, {"blocks.0.mlp.up.weight", {6, 8}}, {"blocks.0.mlp.down.weight", {8, 6}},
      {"blocks.0.gdn.q.weight", {6, 8}}, {"blocks.0.gdn.k.weight", {6, 8}}, {"blocks.0.gdn.v.weight", {20, 8}},
      {"blocks.0.gdn.z.weight", {20, 8}}, {"blocks.0.gdn.a.weight", {4, 8}}, {"blocks.0.gdn.b.weight", {4, 8}},
      {"blocks.0.gdn.o.weight", {8, 20}}, {"blocks.0.gdn.conv.weight", {32, 4}}, {"blocks.0.gdn.A_log", {4}},
      {"blocks.0.gdn.dt_bias", {4}}, {"blocks.0.gdn.norm.weight", {5}}};

  Result<ModelDescription> imported() const {
    Json header = Json::object();
    std::string data;
    for (const auto& [name, shape] : tensors) {
      std::size_t count = 1;
      for (std::int64_t dim : shape) count *= static_cast<std::size_t>(dim);
      std::vector<float> values(count);
      for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i);
      header[name] = {{"dtype", "F32"}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + count * 4}}};
      data.append(reinterpret_cast<const char*>(values.data()), count * 4);
    }
    put_file(folder_ / "model.safetensors", safetensors(header.dump(), data));
    put_file(folder_ / "config.json", config.dump());
    return import_folder(folder_.path());
  }
  std::string refusal(cairn_status code) const {
    const Status status = imported().status();
    CHECK(status.code() == code);
    return status.message();
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace

TEST_CASE("safetensors of every floating type are read, others are told apart") {
  const std::string header = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"F8_E4M3","shape":[1,2],"data_offsets":[8,10]},"s":{"shape":[],"data_offsets":[10,18],"dtype":"F64"}})";
  auto map = read_text(safetensors(header, std::string(18, '\0')));
  REQUIRE_MESSAGE(map.ok(), map.status().message());
  CHECK(map.value().size() == 3);
  CHECK(map.value()["s"].shape.empty());
  CHECK(map.value()["b"].size_bytes == 2);
}

TEST_CASE("F8 and F64 tensors become bf16 and f32") {
  const double wide = 0.1;
  std::string data(reinterpret_cast<const char*>(&wide), 8);
  data += std::string("\x38\xb9\x01\x7f", 4);  // e4m3: 1, -1.125, 2^-9, NaN
  data += std::string("\x3c\x7c\x01\xfc", 4);  // e5m2: 1, inf, 2^-16, -inf
  auto map = read_text(safetensors(R"({"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},"e":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[8,12]},)"
                                   R"("f":{"dtype":"F8_E5M2","shape":[4],"data_offsets":[12,16]},"i":{"dtype":"I8","shape":[0],"data_offsets":[16,16]}})", data));
  REQUIRE_MESSAGE(map.ok(), map.status().message());
  ModelDescription model;
  ImportedTensors tensors(std::move(map).value(), model);
  REQUIRE(tensors.take("d", "d", {1}).ok());
  REQUIRE(tensors.take("e", "e", {2, 2}).code() == CAIRN_STATUS_FORMAT);
  REQUIRE(tensors.take("e", "e", {1, 4}).ok());
  REQUIRE(tensors.take("f", "f", {4}).ok());
  CHECK(tensors.take("i", "i", {0}).code() == CAIRN_STATUS_UNSUPPORTED);
  CHECK(*static_cast<const float*>(model.tensors[0].data) == 0.1F);
  const auto element = [&](std::size_t t, std::size_t i) { return bf16_to_f32(static_cast<const std::uint16_t*>(model.tensors[t].data)[i]); };
  CHECK(element(1, 0) == 1);
  CHECK(element(1, 1) == -1.125F);
  CHECK(element(1, 2) == 0x1p-9F);
  CHECK(std::isnan(element(1, 3)));
  CHECK(element(2, 0) == 1);
  CHECK(std::isinf(element(2, 1)));
  CHECK(element(2, 2) == 0x1p-16F);
  CHECK(element(2, 3) < 0);
}

TEST_CASE("hostile safetensors are refused with the tensor and the numbers") {
  const std::string four(4, 'x'), eight(8, 'x');
  const char* a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  contains(refusal("{" + std::string(a) + "," + a + "}", four), "overlap");
  contains(refusal("{" + std::string(a) + R"(,"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four), "overlap");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", eight), "hole");
  contains(refusal("{" + std::string(a) + "}", eight), "trailing bytes");
  contains(refusal("{" + std::string(a) + "}", "xxx"), "truncated");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", four), "its shape takes 8");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", four), "offsets [4, 0)");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[2147483647,2147483647,2147483647],"data_offsets":[0,4]}})", four), "overflows");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[4294967296],"data_offsets":[0,4]}})", four), "2147483647");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", four), "negative");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})", four), "fraction");
  contains(refusal(R"({"a":{"dtype":"Q4","shape":[1],"data_offsets":[0,4]}})", four, CAIRN_STATUS_UNSUPPORTED), "Q4");
  contains(refusal(R"({"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", four), "there twice");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", four), "unknown field 'x'");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[1]}})", four), "lacks");
  contains(refusal(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2,4]}})", four), "two numbers");
  contains(refusal(R"({"a":[1]})", four), "an array");
  contains(refusal(R"({"a":{"dtype":{"dtype":"F32"},"shape":[1],"data_offsets":[0,4]}})", four), "an object");
  contains(refusal(R"({"__metadata__":{"x":{"y":"z"}}})", ""), "an object");
  contains(refusal(R"([1])", ""), "'{'");
  contains(refusal(R"({"a")", ""), "not valid JSON");
  contains(refusal(std::string(100000, '{'), ""), "");
  CHECK(read_text("").status().code() == CAIRN_STATUS_FORMAT);
  CHECK(read_text(std::string(9, '\xff')).status().code() == CAIRN_STATUS_FORMAT);
  CHECK(read_text(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10)).status().code() == CAIRN_STATUS_FORMAT);
}

TEST_CASE("a million names are refused at the limit, before they cost memory") {
  std::string header = "{";
  for (int i = 0; i < 1000000; ++i) header += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  const Status status = read_text(safetensors(header + "}", "")).status();
  CHECK(status.code() == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(status.message() == "t: more than 131072 tensors");
}

TEST_CASE("sharded folders: every tensor in its shard, and shards in the folder only") {
  const std::string one = safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "a");
  const std::string two = safetensors(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "b");
  const auto read = [&](const std::string& index) {
    const TemporaryFolder folder;
    put_file(folder / "model-1.safetensors", one);
    put_file(folder / "model-2.safetensors", two);
    put_file(folder / "model.safetensors.index.json", index);
    return read_safetensors_folder(folder.path(), FileAccess::kReadAll);
  };
  auto good = read(R"({"metadata":{"total_size":2,"x":[{"y":1.5}]},"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  REQUIRE_MESSAGE(good.ok(), good.status().message());
  CHECK(good.value().size() == 2);
  const auto message = [&](const std::string& index, cairn_status code = CAIRN_STATUS_FORMAT) {
    const Status status = read(index).status();
    CHECK(status.code() == code);
    return status.message();
  };
  contains(message(R"({"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors"}})"), "listed, but not there");
  contains(message(R"({"weight_map":{"a":"model-2.safetensors"}})"), "not listed for this shard");
  contains(message(R"({"weight_map":{"a":"../model-1.safetensors"}})"), "no .safetensors file of this folder");
  contains(message(R"({"weight_map":{"a":"/etc/passwd"}})"), "no .safetensors file of this folder");
  contains(message(R"({"weight_map":{"a":"sub/model-1.safetensors"}})"), "no .safetensors file of this folder");
  contains(message(R"({"weight_map":{"a":""}})"), "no .safetensors file of this folder");
  contains(message(R"({"weight_map":{"a":"gone.safetensors"}})", CAIRN_STATUS_NOT_FOUND), "gone.safetensors");
  contains(message(R"({"weight_map":{"a":"model-1.safetensors","a":"model-1.safetensors"}})"), "there twice");
  contains(message(R"({"weight_map":{"a":1}})"), "a number");
  contains(message(R"({"metadata":{}})"), "no weight_map");
  contains(message("[]"), "an array");
}

TEST_CASE("JSON is strict: duplicates, depth, trailing text, UTF-8") {
  CHECK(parse_json(R"({"a": [1, {"b": null}]})", "x").ok());
  CHECK(parse_json(R"({"a": 1, "a": 2})", "x").status().message() == "x: key 'a' is there twice");
  CHECK(parse_json(R"({"a": {"b": 1}, "c": {"b": 1}})", "x").ok());
  CHECK(parse_json(std::string(40, '[') + std::string(40, ']'), "x").status().message() == "x: more than 32 levels");
  CHECK(parse_json(std::string(1000000, '['), "x").status().code() == CAIRN_STATUS_FORMAT);
  CHECK(parse_json("{} x", "x").status().code() == CAIRN_STATUS_FORMAT);
  CHECK(parse_json("{\"a\": \"\xff\"}", "x").status().code() == CAIRN_STATUS_FORMAT);
  CHECK(parse_json("{\"a\": NaN}", "x").status().code() == CAIRN_STATUS_FORMAT);
}

TEST_CASE("JSON of very many values takes time and memory by its size, or is refused") {
  const auto list_of = [](const char* item, int count) {
    std::string text = "[";
    for (int i = 0; i < count; ++i) text += (i ? "," : "") + std::string(item);
    return text + "]";
  };
  const std::clock_t begin = std::clock();
  CHECK(parse_json(list_of("{}", 500000), "x").ok());
  CHECK(parse_json(list_of("{\"a\":{}}", 250000), "x").ok());
  CHECK(parse_json(list_of("[[1],\"a\"]", 250000), "x").ok());
  CHECK(parse_json(list_of("{}", 2000000), "x").status().message() == "x: more than 1,048,576 objects and arrays");
  CHECK(parse_json(list_of("1", 5000000), "x").status().message() == "x: more than 4,194,304 values");
  CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < 20);  // n * n steps for n objects take minutes
}

TEST_CASE("a native folder becomes a model, with its convolution split") {
  const NativeFolder folder;
  auto model = folder.imported();
  REQUIRE_MESSAGE(model.ok(), model.status().message());
  const ModelDescription& d = model.value();
  CHECK(d.tokenizer.add_bos);
  CHECK(d.tokenizer.stop_tokens == std::vector<std::int32_t>{257});
  CHECK(d.layers[0].delta.value_heads == 4);
  const TensorEntry* conv = d.find("layers.0.mixer.conv_v.weight");
  REQUIRE(conv);
  CHECK(conv->shape == std::vector<std::int64_t>{20, 4});
  float first = 0;
  std::memcpy(&first, conv->data, 4);
  CHECK(first == 12 * 4);
}

TEST_CASE("native configs are refused by the name of the field") {
  const auto refused = [](auto spoil, cairn_status code) {
    NativeFolder folder;
    spoil(folder.config);
    return folder.refusal(code);
  };
  contains(refused([](Json& c) { c["new_flag"] = true; }, CAIRN_STATUS_UNSUPPORTED), "unknown field 'new_flag'");
  contains(refused([](Json& c) { c["gdn"]["future"] = 1; }, CAIRN_STATUS_UNSUPPORTED), "config.json: gdn: unknown field 'future'");
  contains(refused([](Json& c) { c["format"] = "cairn-native/2"; }, CAIRN_STATUS_UNSUPPORTED), "'cairn-native/2' is not known");
  contains(refused([](Json& c) { c["layers"] = {"mamba"}; }, CAIRN_STATUS_UNSUPPORTED), "layer 0 is 'mamba'");
  contains(refused([](Json& c) { c["layers"] = {"sdm"}; }, CAIRN_STATUS_FORMAT), "field 'sdm' is missing");
  contains(refused([](Json& c) { c["n_layers"] = 3; }, CAIRN_STATUS_FORMAT), "n_layers is 3, but layers names 1");
  contains(refused([](Json& c) { c["d_model"] = "8"; }, CAIRN_STATUS_FORMAT), "field 'd_model' is \"8\" (expected an integer)");
  contains(refused([](Json& c) { c["d_model"] = 4294967304; }, CAIRN_STATUS_FORMAT), "32 bits");
  contains(refused([](Json& c) { c.erase("d_model"); }, CAIRN_STATUS_FORMAT), "field 'd_model' is missing");
  contains(refused([](Json& c) { c["d_model"] = 16; }, CAIRN_STATUS_FORMAT), "has shape");
  contains(refused([](Json& c) { c["gdn"]["v_heads"] = 3; }, CAIRN_STATUS_FORMAT), "does not divide");
  contains(refused([](Json& c) { c["gdn"]["output_gate"] = "tanh"; }, CAIRN_STATUS_UNSUPPORTED), "'tanh' (supported: silu, sigmoid, none)");
  contains(refused([](Json& c) { c["gdn"]["query_scale"] = 1; }, CAIRN_STATUS_UNSUPPORTED), "query_scale");
  contains(refused([](Json& c) { c["tensors"]["layout"] = "column-major"; }, CAIRN_STATUS_UNSUPPORTED), "layout");
  contains(refused([](Json& c) { c["tensors"]["layout"] = "[in, out] or [out, in]"; }, CAIRN_STATUS_UNSUPPORTED),
           "layout");
  contains(refused([](Json& c) { c["tensors"]["layout"] = "[in, out]"; }, CAIRN_STATUS_FORMAT),
           "a.weight' has shape [4, 8] (expected [8, 4])");
  contains(refused([](Json& c) { c["norm_eps"] = 0; }, CAIRN_STATUS_FORMAT), "norm_eps is 0");
}

TEST_CASE("native matrices may be [in, out], as they are where nothing is said: all but embedding and head") {
  for (const bool says_so : {true, false}) {
    NativeFolder folder;
    if (says_so)
      folder.config["tensors"]["layout"] = "[in, out]";
    else
      folder.config.erase("tensors");
    folder.config["tie_embeddings"] = false;
    folder.config["gdn"]["routing"] = {{"kind", "clvr"}};
    for (auto& [name, shape] : folder.tensors) {
      const bool is_projection = shape.size() == 2 && name != "embed.weight" && !name.ends_with("conv.weight");
      if (is_projection) std::swap(shape[0], shape[1]);
    }
    folder.tensors["head.weight"] = {264, 8};
    folder.tensors["blocks.0.gdn.clvr_p.weight"] = {20, 8};

    auto model = folder.imported();

    REQUIRE_MESSAGE(model.ok(), model.status().message());
    const auto element = [&](const char* name, std::size_t i) {
      float value;  // where it lies in the file is not aligned
      std::memcpy(&value, static_cast<const char*>(model.value().find(name)->data) + i * sizeof value, sizeof value);
      return value;
    };
    CHECK(model.value().find("layers.0.mixer.q.weight")->shape == std::vector<std::int64_t>{6, 8});
    CHECK(element("layers.0.mixer.q.weight", 1) == 6);  // row 0, column 1: the source's row 1, column 0
    CHECK(element("layers.0.mixer.q.weight", 8) == 1);
    CHECK(element("layers.0.mlp.down.weight", 5 + 6) == 41);  // row 1, column 5 of [8, 6]: row 5, column 1 of [6, 8]
    CHECK(element("layers.0.routing.p.weight", 20) == 1);
    CHECK(element("layers.0.mixer.conv_q.weight", 1) == 1);
    CHECK(element("embed.weight", 1) == 1);
    CHECK(element("head.weight", 1) == 1);
  }
}

TEST_CASE("native folders miss or hold tensors by name") {
  NativeFolder missing, extra;
  missing.tensors.erase("blocks.0.gdn.A_log");
  extra.tensors["blocks.7.gdn.A_log"] = {4};
  contains(missing.refusal(CAIRN_STATUS_FORMAT), "'blocks.0.gdn.A_log' is missing");
  contains(extra.refusal(CAIRN_STATUS_FORMAT), "'blocks.7.gdn.A_log' is not part of this model");
  CHECK(import_folder("/nowhere/at/all").status().code() == CAIRN_STATUS_NOT_FOUND);
}

TEST_CASE("native configs may choose other mixers and numbers") {
  NativeFolder folder;
  folder.config["layers"] = {"kda"};
  folder.config["kda"] = folder.config["gdn"];
  folder.config["kda"]["gate_rank"] = 2;
  folder.config["kda"]["output_gate"] = nullptr;
  folder.config["kda"]["routing"] = {{"kind", "cler"}, {"gamma", "head"}};
  folder.config["gdn"]["unused"] = "a section that no layer names is not read";
  std::map<std::string, std::vector<std::int64_t>> tensors;
  for (auto [name, shape] : folder.tensors) {
    if (name.find(".gdn.z.") != std::string::npos || name.find(".gdn.a.") != std::string::npos) continue;
    if (name.ends_with("dt_bias")) shape = {4, 3};  // a row for each head
    std::string renamed = name;
    if (const std::size_t at = name.find(".gdn."); at != std::string::npos) renamed.replace(at, 5, ".kda.");
    tensors[renamed] = shape;
  }
  tensors["blocks.0.kda.g_a.weight"] = {2, 8};
  tensors["blocks.0.kda.g_b.weight"] = {12, 2};
  tensors["blocks.0.kda.cler_gamma"] = {4};
  folder.tensors = tensors;
  auto model = folder.imported();
  REQUIRE_MESSAGE(model.ok(), model.status().message());
  CHECK(model.value().layers[0].mechanism == Mechanism::kKda);
  CHECK(model.value().layers[0].delta.decay_rank == 2);
  CHECK(model.value().find("layers.0.mixer.dt_bias")->shape == std::vector<std::int64_t>{12});
  CHECK(model.value().layers[0].output.gate == GateKind::kNone);
}

TEST_CASE("native configs that say nothing mean a convolution of 4 taps and a shared rank of 64") {
  NativeFolder folder;
  folder.config["gdn"].erase("conv_kernel");
  folder.config["layers"] = {"gdn", "sse"};
  folder.config["n_layers"] = 2;
  folder.config["sse"] = {{"heads", 1},      {"key_dim", 3}, {"value_dim", 5},
                          {"partitions", 2}, {"top_k", 1},   {"gate_rank", 2}};
  for (const char* name : {"norm1.weight", "norm2.weight"}) folder.tensors[std::string("blocks.1.") + name] = {8};
  for (const char* name : {"gate", "up"}) folder.tensors[std::string("blocks.1.mlp.") + name + ".weight"] = {6, 8};
  const std::pair<const char*, std::vector<std::int64_t>> sse[] = {
      {"q.weight", {3, 8}},    {"k.weight", {3, 8}},    {"v.weight", {5, 8}},    {"z.weight", {5, 8}},
      {"e.weight", {2, 8}},    {"o.weight", {8, 5}},    {"q_a.weight", {64, 8}}, {"k_a.weight", {64, 8}},
      {"q_b.weight", {3, 64}}, {"k_b.weight", {3, 64}}, {"g_a.weight", {2, 8}},  {"g_b.weight", {3, 2}},
      {"g_bias", {1, 3}},      {"norm.weight", {5}}};
  for (const auto& [name, shape] : sse) folder.tensors[std::string("blocks.1.sse.") + name] = shape;
  folder.tensors["blocks.1.mlp.down.weight"] = {8, 6};

  const auto model = folder.imported();

  REQUIRE_MESSAGE(model.ok(), model.status().message());
  CHECK(model.value().layers[0].delta.conv_kernel == 4);
  CHECK(model.value().layers[1].sse.adapter_rank == 64);
}

TEST_CASE("native q and k norms may have an eps and a centring of their own") {
  NativeFolder folder;
  folder.config["layers"] = {"attn"};
  folder.config["attn"] = {
      {"heads", 2}, {"head_dim", 4}, {"qk_norm", true}, {"qk_norm_eps", 1e-4}, {"qk_norm_zero_centered", true}};
  std::erase_if(folder.tensors, [](const auto& tensor) { return tensor.first.find(".gdn.") != std::string::npos; });
  for (const char* name : {"q", "k", "v", "o"})
    folder.tensors[std::string("blocks.0.attn.") + name + ".weight"] = {8, 8};
  for (const char* name : {"q", "k"}) folder.tensors[std::string("blocks.0.attn.") + name + "_norm.weight"] = {4};

  const auto model = folder.imported();

  REQUIRE_MESSAGE(model.ok(), model.status().message());
  CHECK(model.value().layers[0].attention.qk_norm_eps == 1e-4F);
  CHECK(model.value().layers[0].attention.qk_norm_centering == NormCentering::kZeroCentered);
}

TEST_CASE("wayfarer imports, packs, loads, and keeps its fingerprint") {
  if (!std::filesystem::exists(kWayfarer)) return;
  const TemporaryFolder folder;
  auto model = import_folder(kWayfarer, {.check_finite = true});
  REQUIRE_MESSAGE(model.ok(), model.status().message());
  std::uint64_t parameters = 0;
  for (const TensorEntry& tensor : model.value().tensors) parameters += tensor.size_bytes / 2;
  CHECK(parameters == 11949352);

  REQUIRE(pack(kWayfarer, folder / "w.cairn", {}).ok());
  auto packed = read_cairn_file(folder / "w.cairn");

  REQUIRE(packed.ok());
  CHECK(packed.value().fingerprint == model.value().fingerprint);
  CHECK(std::filesystem::file_size(folder / "w.cairn") <= 25000000);
}

TEST_CASE("wayfarer's matrices in 8 and 4 bits stay within the error of their grids") {
  if (!std::filesystem::exists(kWayfarer)) return;
  const TemporaryFolder folder;
  for (const auto& [format, limit] : {std::pair(WeightFormat::kI8, 0.02), std::pair(WeightFormat::kI4, 0.13)}) {
    double worst = 0;
    PackOptions options;
    options.format = format;
    options.report = [&](const PackedTensor& tensor) { worst = std::max(worst, tensor.error.relative_rms); };
    REQUIRE(pack(kWayfarer, folder / "w.cairn", options).ok());
    CHECK(worst < limit);
    MESSAGE("worst relative error of a matrix: ", worst);
  }
}

}  // namespace cairn::test
