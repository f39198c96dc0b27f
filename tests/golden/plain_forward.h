// A checkpoint's forward pass in double, one token at a time, under the checkpoint's own tensor names. It is written
// from the published formulas alone and shares nothing with the library, so that an importer's mistake shows in the
// logits.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/safetensors_file.h"

namespace cairn::test {

using Row = std::vector<double>;

double plain_sigmoid(double x);
double plain_silu(double x);
double plain_softplus(double x);
/// Rows of `dim`, each divided by the root of its mean square plus eps, times weight [dim].
Row plain_rms_norm(const Row& x, const Row& weight, double eps);

class PlainWeights {
 public:
  explicit PlainWeights(const FileTensors& tensors);
  const Row& at(const std::string& name) const { return values_.at(name); }
  bool has(const std::string& name) const { return values_.count(name) > 0; }
  /// name.weight [out, in] times x, plus name.bias where there is one.
  Row linear(const std::string& name, const Row& x) const;

 private:
  std::map<std::string, Row> values_;
};

/// A mixer with its state: a token in [D], a token out [D].
class PlainMixer {
 public:
  virtual ~PlainMixer() = default;
  virtual Row step(const PlainWeights& weights, const Row& x) = 0;
};

enum class PlainRule { kDeltaNet, kGdn, kKda, kGdn2 };

struct PlainDelta {
  PlainRule rule;
  std::string prefix;  ///< "model.layers.0.attn."
  int key_heads, value_heads, key_dim, value_dim;
  double eps = 1e-6, beta_scale = 1;
  double lower_bound = 0;  ///< KDA: below 0, the gate with a bound
  std::string qk_activation = "silu", qk_norm = "l2", gate = "silu";
};
std::unique_ptr<PlainMixer> plain_delta(const PlainDelta& config);

struct PlainAttention {
  std::string prefix;  ///< before "q_proj.weight"
  int query_heads, kv_heads, head_dim;
  int window = 0;  ///< 0: full; n: a token and the n - 1 before it
  double theta = 10000, eps = 1e-6;
  std::string suffix = "_proj", norm_prefix;  ///< norm_prefix + "q_norm.weight" where there is one
  bool has_neighbour_pairs = false;           ///< columns 2 i and 2 i + 1 turn together, not i and i + D / 2
  std::string gate;                           ///< a projection whose sigmoid multiplies the heads' output
};
std::unique_ptr<PlainMixer> plain_attention(const PlainAttention& config);

/// What a family calls the tensors around its mixers.
struct PlainNames {
  std::string embed, final_norm, head, block;  ///< block: before the layer's number
  std::string norm1, norm2, gate, up, down;    ///< the last three without ".weight"
};

class PlainModel {
 public:
  PlainModel(const FileTensors& tensors, PlainNames names, int model_dim, double eps)
      : weights_(tensors), names_(std::move(names)), model_dim_(model_dim), eps_(eps) {}
  void add(std::unique_ptr<PlainMixer> mixer) { mixers_.push_back(std::move(mixer)); }
  /// Logits after this token.
  Row step(int token);

 private:
  PlainWeights weights_;
  PlainNames names_;
  int model_dim_;
  double eps_;
  std::vector<std::unique_ptr<PlainMixer>> mixers_;
};

}  // namespace cairn::test
