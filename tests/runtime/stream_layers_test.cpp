// Options of layers as whole models show them, through a stream.
#include <doctest/doctest.h>

#include <span>

#include "tests/runtime/stream_bench.h"

namespace cairn::test {
namespace {

std::vector<float> logits_after(const char* backend, std::shared_ptr<const ModelDescription> model) {
  const StreamBench bench(backend, std::move(model));
  const auto state = bench.state();
  bench.prefill(*state, random_tokens(70));
  bench.decode(*state, 3);
  return last_logits(*state);
}

/// Layers that route, each after its block where that means something.
std::shared_ptr<const ModelDescription> routing_model(bool after_block) {
  std::vector<LayerConfig> layers = {delta_layer(Mechanism::kGdn), delta_layer(Mechanism::kKda)};
  for (LayerConfig& layer : layers) {
    layer.routing.kind = Routing::kCler;
    layer.routing.after_block = after_block;
  }
  return random_model(std::move(layers), 5);
}

}  // namespace

TEST_CASE("an sse query that passes softmax passes no silu: what all its channels share does not show") {
  LayerConfig layer = sse_layer();
  layer.sse.qv_activation = QkActivation::kSilu;
  layer.sse.query_softmax = true;
  const auto model = random_model({layer}, 7);
  const auto shifted = changed_model(*model, "layers.0.mixer.q.weight", [](std::vector<float>& weight) {
    for (std::size_t i = 0; i < weight.size(); ++i) weight[i] += static_cast<float>(i % 24) / 24;  // by column
  });
  for (const char* backend : {"reference", "cpu"}) {
    CAPTURE(backend);
    CHECK(largest_difference(logits_after(backend, model), logits_after(backend, shifted)) < 2e-5);
  }
}

TEST_CASE("an sdm layer that writes and reads more than all slots writes and reads all") {
  LayerConfig all = sdm_layer();
  all.sdm.write_count = all.sdm.read_count = 36;
  LayerConfig more = all;
  more.sdm.write_count = 37, more.sdm.read_count = 1 << 30;
  for (const char* backend : {"reference", "cpu"}) {
    CAPTURE(backend);
    CHECK(same_bits(logits_after(backend, random_model({all}, 8)),
                    logits_after(backend, random_model({more}, 8))));
  }
}

TEST_CASE("q and k norms with the eps and the centring that the model has are the model's") {
  LayerConfig layer = attention_layer(0);
  layer.attention.qk_norm = true;
  auto model = std::make_shared<ModelDescription>(*random_model({layer}, 9));
  model->norm_eps = 0.5F, model->norm_zero_centered = true;
  auto own = std::make_shared<ModelDescription>(*model);
  own->layers[0].attention.qk_norm_eps = 0.5F;
  own->layers[0].attention.qk_norm_centering = NormCentering::kZeroCentered;
  CHECK(same_bits(logits_after("cpu", model), logits_after("cpu", own)));

  auto other = std::make_shared<ModelDescription>(*model);
  other->layers[0].attention.qk_norm_eps = 1e-6F;
  CHECK(largest_difference(logits_after("cpu", model), logits_after("cpu", other)) > 1e-3);
  own->layers[0].attention.qk_norm_centering = NormCentering::kPlain;
  CHECK(largest_difference(logits_after("cpu", model), logits_after("cpu", own)) > 1e-3);
}

TEST_CASE("cler after the block is cler: its residual goes to the layers above in any case") {
  const std::vector<std::int32_t> tokens = random_tokens(130);
  const StreamBench plain("cpu", routing_model(false)), after("cpu", routing_model(true));
  const auto state = plain.state(), other = after.state();
  for (const std::size_t count : {128, 2}) {  // a second step, of another size, finds what the first one left in memory
    plain.prefill(*state, std::span(tokens).first(count));
    after.prefill(*other, std::span(tokens).first(count));

    CHECK(same_bits(last_logits(*state), last_logits(*other)));
  }
}

TEST_CASE("a gdn layer without an output gate reads sparsely") {
  std::vector<LayerConfig> layers = {delta_layer(Mechanism::kGdn)};
  layers[0].output.gate = GateKind::kNone;
  const std::shared_ptr<const ModelDescription> model = random_model(std::move(layers), 6);
  const std::vector<std::int32_t> tokens = random_tokens(64 * 20);
  SparsePrefill sparse;
  sparse.enabled = true;
  std::vector<float> logits[2];
  for (int i = 0; i < 2; ++i) {
    const StreamBench bench(i == 0 ? "cpu" : "reference", model);
    const auto state = bench.state();
    const SequenceInput input{state.get(), tokens, LogitsWanted::kLast};
    const Status status = bench.stream->prefill({&input, 1}, sparse, nullptr);
    REQUIRE_MESSAGE(status.ok(), status.message());
    logits[i] = last_logits(*state);
  }
  CHECK(largest_difference(logits[0], logits[1]) < 1e-3);
}

}  // namespace cairn::test
