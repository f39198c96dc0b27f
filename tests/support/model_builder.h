// Small random models, made in memory, for tests that need a whole one.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/model/model_description.h"

namespace cairn::test {

/// A layer of each mechanism with small odd-ish dims; start from these and change what the test is about.
LayerConfig delta_layer(Mechanism mechanism);  ///< kDeltaNet, kGdn, kKda, kGdn2: 2 key heads, 4 value heads, K 8, V 12
LayerConfig sse_layer();                       ///< 2 heads, K 8, V 12, 4 partitions, top 1
LayerConfig sdm_layer();                       ///< 2 heads, 36 slots, V 12, W 4, R 6, learned M0
LayerConfig attention_layer(std::int32_t window);

/// A description with these layers, model_dim 24, vocab 40, tied embedding, byte-less tokenizer; tensors are random with
/// sensible scales (gates included), f32, and check_tensors() holds. The same seed gives the same model.
std::shared_ptr<const ModelDescription> random_model(std::vector<LayerConfig> layers, std::uint64_t seed);

/// Every mechanism once: gdn, kda, window attention, delta_net, gdn2, sse, sdm, full attention.
std::shared_ptr<const ModelDescription> every_mechanism_model(std::uint64_t seed);

}  // namespace cairn::test
