#include "runtime/model/model_description.h"

#include <algorithm>

namespace cairn {

const char* mechanism_name(Mechanism mechanism) {
  switch (mechanism) {
    case Mechanism::kDeltaNet: return "delta_net";
    case Mechanism::kGdn: return "gdn";
    case Mechanism::kKda: return "kda";
    case Mechanism::kGdn2: return "gdn2";
    case Mechanism::kSse: return "sse";
    case Mechanism::kSdm: return "sdm";
    case Mechanism::kSoftmaxAttention: return "softmax_attention";
    case Mechanism::kLatentAttention: return "latent_attention";
  }
  return "unknown";
}

const TensorEntry* ModelDescription::find(const std::string& tensor_name) const {
  const auto found =
      std::lower_bound(tensors.begin(), tensors.end(), tensor_name,
                       [](const TensorEntry& tensor, const std::string& wanted) { return tensor.name < wanted; });
  return found != tensors.end() && found->name == tensor_name ? &*found : nullptr;
}

}  // namespace cairn
