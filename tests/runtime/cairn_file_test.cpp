#include <doctest/doctest.h>

#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <set>

#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/cairn_file_writer.h"
#include "runtime/model/container_reader.h"
#include "runtime/model/model_fingerprint.h"
#include "runtime/model/pack.h"
#include "runtime/support/allocator.h"
#include "runtime/support/log.h"
#include "tests/runtime/file_fixture.h"
#include "tests/support/model_builder.h"

namespace cairn::test {
namespace {

std::vector<std::byte> file_of(const ModelDescription& model) {
  VectorSink sink;
  const Status status = write_cairn(model, sink);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return sink.bytes();
}

ModelDescription with_texts() {
  ModelDescription model = *every_mechanism_model(3);
  model.layers[0].routing.kind = Routing::kNone;
  model.tokenizer.kind = TokenizerKind::kBpe;
  model.tokenizer.data = "{\"vocab\": 1}";
  model.tokenizer.extra = "extra";
  model.tokenizer.chat_template = "{{ evil }}";
  model.tokenizer.bos = 1;
  model.tokenizer.eos = 2;
  model.tokenizer.add_bos = true;
  model.tokenizer.stop_tokens = {2, 3};
  model.trained_tokens = 1LL << 40;
  return model;
}

void check_equal(const ModelDescription& a, const ModelDescription& b) {
  CHECK(a.architecture == b.architecture);
  CHECK(a.name == b.name);
  CHECK(a.trained_tokens == b.trained_tokens);
  CHECK(a.layers.size() == b.layers.size());
  CHECK(a.tokenizer.data == b.tokenizer.data);
  CHECK(a.tokenizer.extra == b.tokenizer.extra);
  CHECK(a.tokenizer.chat_template == b.tokenizer.chat_template);
  CHECK(a.tokenizer.stop_tokens == b.tokenizer.stop_tokens);
  CHECK(a.tokenizer.add_bos == b.tokenizer.add_bos);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    CHECK(a.tensors[i].name == b.tensors[i].name);
    CHECK(a.tensors[i].shape == b.tensors[i].shape);
    CHECK(a.tensors[i].group_size == b.tensors[i].group_size);
    REQUIRE(a.tensors[i].size_bytes == b.tensors[i].size_bytes);
    CHECK(std::memcmp(a.tensors[i].data, b.tensors[i].data, a.tensors[i].size_bytes) == 0);
  }
}

}  // namespace

TEST_CASE("a model file gives back the model, from memory, mapped and read") {
  const TemporaryFolder folder;
  ModelDescription model = with_texts();
  REQUIRE(compute_fingerprint(model).ok());
  REQUIRE(write_cairn_file(model, folder / "m.cairn", {AtomicFile::Verify::kAlways}).ok());
  const auto bytes = file_of(model);
  CHECK(file_bytes(folder / "m.cairn") == std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));

  CairnFileReadOptions options;
  for (const bool no_mmap : {false, true}) {
    for (const bool verify : {false, true}) {
      options.no_mmap = no_mmap;
      options.verify_payload = verify;
      options.check_finite = true;
      auto loaded = read_cairn_file(folder / "m.cairn", options);
      REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
      check_equal(loaded.value(), model);
      CHECK(loaded.value().fingerprint == model.fingerprint);
      for (const TensorEntry& tensor : loaded.value().tensors) CHECK(reinterpret_cast<std::uintptr_t>(tensor.data) % 64 == 0);
    }
  }
  auto from_memory = read_cairn_memory(bytes.data(), bytes.size());
  REQUIRE(from_memory.ok());
  check_equal(from_memory.value(), model);
}

TEST_CASE("every field of every mechanism survives a file") {
  // Numbers that are all different from the defaults and from each other, so that a swapped or lost field shows.
  LayerConfig delta = delta_layer(Mechanism::kKda);
  delta.delta = {2, 6, 10, 14, 3, true, QkActivation::kEluPlusOne, QkNorm::kSum, true, 1.5F, DecayKind::kLowerBound, -5, 7, 9};
  delta.output = {NormKind::kLayerNorm, GateKind::kSigmoid, 1e-3F};
  delta.routing = {Routing::kClerH, RoutingGamma::kHead, 5, true, true};
  delta.norm_after = true;
  LayerConfig sse = sse_layer();
  sse.sse = {2, 6, 10, 5, 3, SseTransition::kDelta, true, true, 4, 7, 8, true, QkActivation::kRelu, true, false, true, false, false, 3, 9};
  LayerConfig both = sse_layer();
  both.has_side_attention = true;
  both.side_attention = {4, 2, 6, 5, 2, 77, true, false, true, true, 0, NormCentering::kPlain};
  LayerConfig sdm = sdm_layer();
  sdm.sdm = {3, 5, 7, 4, 6, false, true, true, true, 0.5F, 0.25F};
  LayerConfig attention = attention_layer(9);
  attention.attention = {6, 3, 10, 9, 4, 12345, false, true, true, true, 1e-4F, NormCentering::kZeroCentered};
  LayerConfig latent;
  latent.mechanism = Mechanism::kLatentAttention;
  latent.latent = {3, 5, 4, 6, 7, 1e-4F};
  latent.mlp = {MlpKind::kMoe, 11, 6, 2, RouterKind::kSigmoid, false, true, 2.5F, 3, 2, 13, true};
  LayerConfig bare = delta_layer(Mechanism::kDeltaNet);
  bare.delta.has_beta = false;
  bare.delta.conv_kernel = 0;
  bare.output.gate = GateKind::kNone;
  bare.mlp.kind = MlpKind::kNone;
  ModelDescription model = *random_model({delta, sse, both, sdm, attention, latent, bare}, 11);
  REQUIRE_MESSAGE(validate(model).ok(), validate(model).message());
  REQUIRE(compute_fingerprint(model).ok());
  const auto bytes = file_of(model);

  auto loaded = read_cairn_memory(bytes.data(), bytes.size());

  REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
  CHECK(loaded.value().fingerprint == model.fingerprint);  // covers every number of the configuration
  CHECK(file_of(loaded.value()) == bytes);
}

TEST_CASE("the fingerprint depends on every weight and number, and on no name or text") {
  ModelDescription model = with_texts();
  REQUIRE(compute_fingerprint(model).ok());
  const Digest original = model.fingerprint;
  std::set<Digest> seen = {original};
  const auto changed = [&](auto change) {
    ModelDescription other = model;
    change(other);
    CHECK(compute_fingerprint(other).ok());
    CHECK(seen.insert(other.fingerprint).second);
  };
  changed([](ModelDescription& m) { m.norm_eps = 1e-5F; });
  changed([](ModelDescription& m) { m.norm_zero_centered = true; });
  changed([](ModelDescription& m) { m.layers[6].sdm.write_count = 5; });
  changed([](ModelDescription& m) { m.layers[5].sse.decay_root = 8; });
  changed([](ModelDescription& m) { m.layers[7].attention.qk_norm_eps = 1e-5F; });
  changed([](ModelDescription& m) { m.layers[7].attention.qk_norm_centering = NormCentering::kPlain; });
  std::vector<float> copy;
  changed([&](ModelDescription& m) {
    TensorEntry& tensor = m.tensors[m.tensors.size() / 2];
    copy.resize(tensor.size_bytes / 4);
    std::memcpy(copy.data(), tensor.data, tensor.size_bytes);
    copy.back() += 1;
    tensor.data = copy.data();
  });
  model.name = "another";
  model.tokenizer.chat_template.clear();
  REQUIRE(compute_fingerprint(model).ok());
  CHECK(model.fingerprint == original);
}

TEST_CASE("loading reports progress, and can be cancelled") {
  const auto bytes = file_of(*every_mechanism_model(5));
  std::uint64_t last = 0, total_bytes = 0;
  CairnFileReadOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    last = done;
    total_bytes = total;
    return true;
  };
  CHECK(read_cairn_memory(bytes.data(), bytes.size(), options).ok());
  CHECK(last == total_bytes);
  options.progress = [](std::uint64_t, std::uint64_t) { return false; };
  CHECK(read_cairn_memory(bytes.data(), bytes.size(), options).status().code() == CAIRN_STATUS_CANCELLED);
}

TEST_CASE("limits of the caller are kept") {
  const auto bytes = file_of(with_texts());
  const auto code = [&](auto change) {
    CairnFileReadOptions options;
    change(options.limits);
    return read_cairn_memory(bytes.data(), bytes.size(), options).status().code();
  };
  CHECK(code([](ModelLimits&) {}) == CAIRN_STATUS_OK);
  CHECK(code([](ModelLimits& l) { l.max_layers = 7; }) == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(code([](ModelLimits& l) { l.max_vocab = 39; }) == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(code([](ModelLimits& l) { l.max_tensors = 20; }) == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(code([](ModelLimits& l) { l.max_tensor_bytes = 100; }) == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(code([](ModelLimits& l) { l.max_metadata_bytes = 20; }) == CAIRN_STATUS_LIMIT_EXCEEDED);
}

TEST_CASE("damage in the payload is found by full verification, and only by it") {
  const TemporaryFolder folder;
  auto bytes = file_of(*every_mechanism_model(5));
  auto loaded = read_cairn_memory(bytes.data(), bytes.size());
  REQUIRE(loaded.ok());
  bytes[bytes.size() / 2] ^= std::byte{4};

  const auto full = read_cairn_memory(bytes.data(), bytes.size());
  CairnFileReadOptions structure;
  structure.verify_payload = false;

  CHECK(full.status().code() == CAIRN_STATUS_CHECKSUM);
  CHECK(full.status().message().find("section '") != std::string::npos);
  CHECK(read_cairn_memory(bytes.data(), bytes.size(), structure).ok());
}

TEST_CASE("files that were written by format 1.0 open for ever") {
  const std::string source_dir = CAIRN_SOURCE_DIR;
  const auto model = read_cairn_file(source_dir + "/tests/golden/format_v1/quantized_v1.cairn", {.check_finite = true});
  REQUIRE_MESSAGE(model.ok(), model.status().message());
  CHECK(model.value().find("layers.0.mixer.q.weight")->dtype == DType::kI8);
  CHECK(model.value().tokenizer.chat_template == "{{ messages }}");
  CHECK(model.value().fingerprint[0] == 0x5a);
  auto file = file_source(source_dir + "/tests/golden/format_v1/container_v1.cairnstate", FileAccess::kPositional);
  REQUIRE(file.ok());
  const auto snapshot = ContainerReader::open(file.value(), ContainerKind::kSnapshot);
  REQUIRE_MESSAGE(snapshot.ok(), snapshot.status().message());
  CHECK(snapshot.value().verify_payload().ok());
  CHECK(snapshot.value().require("last_logits", DType::kF32, {5}).ok());
  if (const std::string sample = source_dir + "/samples/models/wayfarer.cairn"; std::filesystem::exists(sample)) {
    CHECK_MESSAGE(read_cairn_file(sample).ok(), read_cairn_file(sample).status().message());
  }
}

TEST_CASE("paths that hold no model are refused with the path and the reason (cases 16-20)") {
  const TemporaryFolder folder;
  mkfifo((folder / "fifo").c_str(), 0600);
  std::filesystem::create_symlink("loop", folder / "loop");
  put_file(folder / "empty", "");
  const auto refused = [](const std::string& path) {
    const Status status = read_cairn_file(path).status();
    CHECK(status.message().find(path.substr(0, 60)) != std::string::npos);
    return status.code();
  };
  CHECK(refused(folder / "absent") == CAIRN_STATUS_NOT_FOUND);
  CHECK(refused(folder.path()) == CAIRN_STATUS_IO);
  CHECK(refused(folder / "fifo") == CAIRN_STATUS_IO);
  CHECK(refused(folder / "loop") == CAIRN_STATUS_IO);
  CHECK(refused("/dev/zero") == CAIRN_STATUS_IO);
  CHECK(refused(folder / "empty") == CAIRN_STATUS_FORMAT);
  CHECK(read_cairn_file(std::string(5000, 'p')).status().code() == CAIRN_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("a fault in any call of loading is an error, and nothing is kept") {
  const TemporaryFolder folder;
  REQUIRE(write_cairn_file(*every_mechanism_model(4), folder / "m.cairn", {AtomicFile::Verify::kNever}).ok());
  for (const bool makes_short : {false, true}) {
    for (int fail_at = 0; fail_at < 100; ++fail_at) {
      CAPTURE(fail_at);
      const std::uint64_t live = allocator_counters().live_bytes;
      FaultyIo io;
      io.fail_at = fail_at;
      io.makes_short = makes_short;
      const Status status = read_cairn_file(folder / "m.cairn", {.no_mmap = true}).status();
      CHECK(allocator_counters().live_bytes == live);
      if (io.failed_call.empty()) break;
      if (makes_short || io.failed_call == "close") {
        CHECK_MESSAGE(status.ok(), status.message());
      } else {
        CHECK(status.code() == CAIRN_STATUS_IO);
      }
    }
  }
}

TEST_CASE("packing keeps, widens, narrows and quantises as documented") {
  const TemporaryFolder folder;
  ModelDescription model = *random_model({delta_layer(Mechanism::kGdn), sdm_layer()}, 8);
  REQUIRE(compute_fingerprint(model).ok());
  const struct {
    WeightFormat format;
    DType matrix, table;
    double limit;  // of a matrix's relative error
  } cases[] = {{WeightFormat::kKeep, DType::kF32, DType::kF32, 0},
               {WeightFormat::kF32, DType::kF32, DType::kF32, 0},
               {WeightFormat::kBf16, DType::kBF16, DType::kBF16, 0x1p-8},     // half an ulp of 8 bits
               {WeightFormat::kI8, DType::kI8, DType::kF32, 0.01}};           // 1/127 of the largest, over sqrt(12)
  for (const auto& expected : cases) {
    PackOptions options;
    options.format = expected.format;
    std::size_t reports = 0;
    double worst = 0;
    options.report = [&](const PackedTensor& tensor) {
      ++reports;
      worst = std::max(worst, tensor.error.relative_rms);
    };
    const Status status = pack_description(model, folder / "p.cairn", options);
    REQUIRE_MESSAGE(status.ok(), status.message());
    auto packed = read_cairn_file(folder / "p.cairn", {.check_finite = true});
    REQUIRE_MESSAGE(packed.ok(), packed.status().message());
    CHECK(reports == model.tensors.size());
    CHECK(worst <= expected.limit);
    CHECK((worst > 0) == (expected.limit > 0));
    CHECK(packed.value().find("layers.0.mixer.q.weight")->dtype == expected.matrix);
    CHECK(packed.value().find("embed.weight")->dtype == expected.table);
    CHECK(packed.value().find("layers.1.mixer.initial")->dtype == DType::kF32);
    CHECK(packed.value().find("layers.0.mixer.a.weight")->dtype == DType::kF32);
    CHECK((packed.value().fingerprint == model.fingerprint) == (expected.limit == 0));
  }
}

TEST_CASE("4-bit packing falls back to 8 bits where groups do not fit, and stays within its error") {
  const TemporaryFolder folder;
  ModelDescription model = *random_model({delta_layer(Mechanism::kGdn)}, 8);
  PackOptions options;
  options.format = WeightFormat::kI4;
  std::map<std::string, std::pair<DType, double>> seen;
  options.report = [&](const PackedTensor& t) { seen[t.name] = {t.to, t.error.relative_rms}; };
  REQUIRE(pack_description(model, folder / "p.cairn", options).ok());
  CHECK(seen["layers.0.mixer.q.weight"].first == DType::kI8);   // rows of 24
  CHECK(seen["layers.0.mlp.down.weight"].first == DType::kI8);  // rows of 40
  options.group_size = 48;
  CHECK(pack_description(model, folder / "p.cairn", options).code() == CAIRN_STATUS_INVALID_ARGUMENT);

  std::vector<float> values(4 * 64);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * i)) * (1 + static_cast<float>(i / 64));
  for (const int group : {32, 64}) {
    const QuantizedMatrix matrix = quantize_i4(values.data(), 4, 64, group);
    std::vector<float> rounded(values.size());
    dequantize_i4(matrix, 4, 64, group, rounded.data());
    CHECK(quantization_error(values.data(), rounded.data(), values.size()).relative_rms < 0.1);
    CHECK(matrix.scales.size() == static_cast<std::size_t>(4 * 64 / group));
  }
}

TEST_CASE("quantising by hand: 8 bits by row, 4 bits low nibble first") {
  const float row[4] = {127, -127, 1.4F, 0};
  const QuantizedMatrix i8 = quantize_i8(row, 1, 4);
  CHECK(i8.scales[0] == 1);
  CHECK(i8.data == std::vector<std::uint8_t>{127, 0x81, 1, 0});

  std::vector<float> group(32, 0.0F);
  group[0] = -8;
  group[1] = 7;
  group[2] = 1;
  const QuantizedMatrix i4 = quantize_i4(group.data(), 1, 32, 32);
  CHECK(i4.scales[0] == doctest::Approx(1));
  CHECK(i4.data[0] == 0x78);
  CHECK(i4.data[1] == 0x01);

  const float zeros[4] = {0, 0, 0, 0};
  CHECK(quantize_i8(zeros, 1, 4).data == std::vector<std::uint8_t>(4, 0));
}

TEST_CASE("progress of packing grows to a total that stays, and the log tells the error of each rounded tensor") {
  const TemporaryFolder folder;
  std::string log;
  set_log_callback([](void* user, cairn_log_level, const char*, const char* message) { *static_cast<std::string*>(user) += std::string(message) + "\n"; },
                   &log, CAIRN_LOG_INFO);
  PackOptions options;
  options.format = WeightFormat::kI8;
  std::uint64_t last = 0, total_bytes = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    const bool is_steady = total_bytes == 0 || total == total_bytes;
    const bool grows = done >= last && done <= total;
    CHECK(is_steady);
    CHECK(grows);
    last = done;
    total_bytes = total;
    return true;
  };

  CHECK(pack_description(*random_model({delta_layer(Mechanism::kGdn)}, 8), folder / "p.cairn", options).ok());
  set_log_callback(nullptr, nullptr, 0);

  CHECK(total_bytes > 0);
  CHECK(last == total_bytes);
  CHECK(log.find("layers.0.mixer.q.weight: f32 to i8, relative error 0.0") != std::string::npos);
  CHECK(log.find("embed.weight") == std::string::npos);
}

TEST_CASE("packing that is cancelled or cannot write leaves the old file") {
  const TemporaryFolder folder;
  put_file(folder / "p.cairn", "old");
  const auto model = random_model({delta_layer(Mechanism::kGdn)}, 8);
  for (int stop_after : {0, 1, 25}) {
    PackOptions options;
    int calls = 0;
    options.progress = [&](std::uint64_t, std::uint64_t) { return calls++ < stop_after; };
    CHECK(pack_description(*model, folder / "p.cairn", options).code() == CAIRN_STATUS_CANCELLED);
    CHECK(file_bytes(folder / "p.cairn") == "old");
    CHECK(folder.entry_count() == 1);
  }
  for (int fail_at = 0;; ++fail_at) {
    CAPTURE(fail_at);
    FaultyIo io;
    io.fail_at = fail_at;
    const Status status = pack_description(*model, folder / "p.cairn", {});
    if (io.failed_call.empty()) break;
    if (status.ok() || status.code() == CAIRN_STATUS_DURABILITY) {
      CHECK(file_bytes(folder / "p.cairn") != "old");
      put_file(folder / "p.cairn", "old");
    }
    CHECK(file_bytes(folder / "p.cairn") == "old");
  }
}

}  // namespace cairn::test
