#include "tests/support/model_builder.h"

#include <cmath>
#include <random>

namespace cairn::test {
namespace {

LayerConfig with_mlp() {
  LayerConfig layer;
  layer.mlp.hidden_dim = 40;
  return layer;
}

bool ends_with(const std::string& text, const char* end) {
  const std::string tail(end);
  return text.size() >= tail.size() && text.compare(text.size() - tail.size(), tail.size(), tail) == 0;
}

/// Norms near 1; decays of a few tokens to a few thousand; the rest so that activations stay near 1.
void fill(const TensorSpec& spec, std::mt19937_64& random, std::vector<float>& values) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  for (float& value : values) {
    if (ends_with(spec.name, "a_log")) {
      value = std::log(0.1F + 4 * uniform(random));
    } else if (ends_with(spec.name, "dt_bias")) {
      value = -4 + 3 * uniform(random);
    } else if (ends_with(spec.name, "a_bias")) {
      value = 4 * uniform(random);
    } else if (spec.name.find("norm") != std::string::npos && spec.shape.size() == 1) {
      value = 1 + 0.1F * normal(random);
    } else if (spec.shape.size() == 2) {
      value = normal(random) / std::sqrt(static_cast<float>(spec.shape[1]));
    } else {
      value = 0.5F * normal(random);
    }
  }
}

}  // namespace

LayerConfig delta_layer(Mechanism mechanism) {
  LayerConfig layer = with_mlp();
  layer.mechanism = mechanism;
  layer.delta.key_heads = 2;
  layer.delta.value_heads = 4;
  layer.delta.key_dim = 8;
  layer.delta.value_dim = 12;
  if (mechanism == Mechanism::kKda || mechanism == Mechanism::kGdn2) layer.delta.decay_rank = 4;
  return layer;
}

LayerConfig sse_layer() {
  LayerConfig layer = with_mlp();
  layer.mechanism = Mechanism::kSse;
  layer.sse.heads = 2;
  layer.sse.key_dim = 8;
  layer.sse.value_dim = 12;
  layer.sse.partitions = 4;
  layer.sse.top_k = 1;
  layer.sse.adapter_rank = 4;
  layer.sse.decay_rank = 4;
  return layer;
}

LayerConfig sdm_layer() {
  LayerConfig layer = with_mlp();
  layer.mechanism = Mechanism::kSdm;
  layer.sdm.heads = 2;
  layer.sdm.side = 6;
  layer.sdm.value_dim = 12;
  layer.sdm.write_count = 4;
  layer.sdm.read_count = 6;
  return layer;
}

LayerConfig attention_layer(std::int32_t window) {
  LayerConfig layer = with_mlp();
  layer.mechanism = Mechanism::kSoftmaxAttention;
  layer.attention.query_heads = 4;
  layer.attention.kv_heads = 2;
  layer.attention.head_dim = 8;
  layer.attention.rotary_dim = 8;
  layer.attention.window = window;
  return layer;
}

std::shared_ptr<const ModelDescription> random_model(std::vector<LayerConfig> layers, std::uint64_t seed) {
  auto model = std::make_shared<ModelDescription>();
  model->architecture = "cairn-native";
  model->name = "random";
  model->model_dim = 24;
  model->vocab_size = 40;
  model->tied_embedding = true;
  model->layers = std::move(layers);
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i < model->fingerprint.size(); ++i) model->fingerprint[i] = static_cast<std::uint8_t>(random());
  for (const TensorSpec& spec : expected_tensors(*model)) {
    std::size_t count = 1;
    for (const std::int64_t dim : spec.shape) count *= static_cast<std::size_t>(dim);
    auto values = std::make_shared<std::vector<float>>(count);
    fill(spec, random, *values);
    TensorEntry tensor;
    tensor.name = spec.name;
    tensor.shape = spec.shape;
    tensor.data = values->data();
    tensor.size_bytes = count * sizeof(float);
    model->tensors.push_back(tensor);
    model->storage.push_back(values);
  }
  return model;
}

std::shared_ptr<const ModelDescription> every_mechanism_model(std::uint64_t seed) {
  return random_model({delta_layer(Mechanism::kGdn), delta_layer(Mechanism::kKda), attention_layer(16),
                       delta_layer(Mechanism::kDeltaNet), delta_layer(Mechanism::kGdn2), sse_layer(), sdm_layer(),
                       attention_layer(0)},
                      seed);
}

}  // namespace cairn::test
