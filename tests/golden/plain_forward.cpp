#include "tests/golden/plain_forward.h"

#include <algorithm>
#include <cmath>

namespace cairn::test {

double plain_sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double plain_silu(double x) { return x * plain_sigmoid(x); }
double plain_softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

Row plain_rms_norm(const Row& x, const Row& weight, double eps) {
  Row out(x.size());
  for (std::size_t begin = 0; begin < x.size(); begin += weight.size()) {
    double square = 0;
    for (std::size_t i = 0; i < weight.size(); ++i) square += x[begin + i] * x[begin + i];
    const double scale = 1 / std::sqrt(square / static_cast<double>(weight.size()) + eps);
    for (std::size_t i = 0; i < weight.size(); ++i) out[begin + i] = x[begin + i] * scale * weight[i];
  }
  return out;
}

PlainWeights::PlainWeights(const FileTensors& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const std::vector<float> values = tensor.floats();
    values_[name] = Row(values.begin(), values.end());
  }
}

Row PlainWeights::linear(const std::string& name, const Row& x) const {
  const Row& weight = at(name + ".weight");
  Row y = has(name + ".bias") ? at(name + ".bias") : Row(weight.size() / x.size());
  for (std::size_t o = 0; o < y.size(); ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) y[o] += weight[o * x.size() + i] * x[i];
  }
  return y;
}

namespace {

class DeltaMixer : public PlainMixer {
 public:
  explicit DeltaMixer(const PlainDelta& config)
      : c_(config), state_(static_cast<std::size_t>(c_.value_heads * c_.key_dim * c_.value_dim)) {}

  Row step(const PlainWeights& w, const Row& x) override {
    Row q = projected(w, x, 'q'), k = projected(w, x, 'k');
    const Row v = projected(w, x, 'v');
    normalise(q);
    normalise(k);
    const Row decay = decays(w, x), erase = erasures(w, x), write = writes(w, x);
    Row o(v.size());
    for (int h = 0; h < c_.value_heads; ++h) step_head(h, q, k, v, decay, erase, write, o);
    return output(w, x, o);
  }

 private:
  /// Projection, causal convolution where the checkpoint has one, activation.
  Row projected(const PlainWeights& w, const Row& x, char which) {
    const std::string stem = c_.prefix + which;
    Row y = w.linear(stem + "_proj", x);
    if (w.has(stem + "_conv1d.weight")) {
      const Row& taps = w.at(stem + "_conv1d.weight");
      const std::size_t n = taps.size() / y.size();
      std::vector<Row>& tail = tails_[which];
      if (tail.empty()) tail.assign(n - 1, Row(y.size()));
      tail.push_back(y);
      for (std::size_t c = 0; c < y.size(); ++c) {
        y[c] = 0;
        for (std::size_t j = 0; j < n; ++j) y[c] += taps[c * n + j] * tail[j][c];
      }
      tail.erase(tail.begin());
    }
    const std::string kind = which == 'v' ? "silu" : c_.qk_activation;
    for (double& value : y) {
      if (kind == "silu") value = plain_silu(value);
      if (kind == "relu") value = std::max(value, 0.0);
      if (kind == "elu") value = value > 0 ? value + 1 : std::exp(value);  // elu + 1
    }
    return y;
  }

  void normalise(Row& rows) const {
    const auto dim = static_cast<std::size_t>(c_.key_dim);
    for (std::size_t begin = 0; begin < rows.size(); begin += dim) {
      double sum = 0, square = 1e-6;
      for (std::size_t i = begin; i < begin + dim; ++i) sum += rows[i], square += rows[i] * rows[i];
      for (std::size_t i = begin; i < begin + dim; ++i) rows[i] /= c_.qk_norm == "sum" ? sum : std::sqrt(square);
    }
  }

  int repeat() const { return c_.value_heads / c_.key_heads; }

  /// exp(g) for every value head and row of the state [HV, K].
  Row decays(const PlainWeights& w, const Row& x) const {
    Row decay(static_cast<std::size_t>(c_.value_heads * c_.key_dim), 1);
    if (c_.rule == PlainRule::kDeltaNet) return decay;
    const bool is_gdn = c_.rule == PlainRule::kGdn;
    const Row raw = is_gdn ? w.linear(c_.prefix + "a_proj", x)
                           : w.linear(c_.prefix + "f_proj.1", w.linear(c_.prefix + "f_proj.0", x));
    const Row &a_log = w.at(c_.prefix + "A_log"), &bias = w.at(c_.prefix + "dt_bias");
    for (int h = 0; h < c_.value_heads; ++h) {
      for (int i = 0; i < c_.key_dim; ++i) {
        const int head = c_.rule == PlainRule::kGdn2 ? h / repeat() : h, at = is_gdn ? head : head * c_.key_dim + i;
        const double rate = std::exp(a_log[head]), in = raw[at] + bias[at];
        const double g = c_.lower_bound < 0 ? c_.lower_bound * plain_sigmoid(rate * in) : -rate * plain_softplus(in);
        decay[h * c_.key_dim + i] = std::exp(g);
      }
    }
    return decay;
  }

  double beta(const Row& raw, int head) const { return raw.empty() ? 1 : c_.beta_scale * plain_sigmoid(raw[head]); }

  /// [HV, K]: how much of what the keys recall is taken away.
  Row erasures(const PlainWeights& w, const Row& x) const {
    Row erase(static_cast<std::size_t>(c_.value_heads * c_.key_dim));
    const Row raw = w.has(c_.prefix + "b_proj.weight") ? w.linear(c_.prefix + "b_proj", x) : Row();
    for (int h = 0; h < c_.value_heads; ++h) {
      for (int i = 0; i < c_.key_dim; ++i) {
        const int at = c_.rule == PlainRule::kGdn2 ? h / repeat() * c_.key_dim + i : h;
        erase[h * c_.key_dim + i] = beta(raw, at);
      }
    }
    return erase;
  }

  /// [HV, V]: how much of the value is written.
  Row writes(const PlainWeights& w, const Row& x) const {
    Row write(static_cast<std::size_t>(c_.value_heads * c_.value_dim));
    const bool is_gdn2 = c_.rule == PlainRule::kGdn2;
    const std::string name = c_.prefix + (is_gdn2 ? "w_proj" : "b_proj");
    const Row raw = w.has(name + ".weight") ? w.linear(name, x) : Row();
    for (int h = 0; h < c_.value_heads; ++h) {
      for (int j = 0; j < c_.value_dim; ++j) {
        const int at = h * c_.value_dim + j;
        write[at] = is_gdn2 ? plain_sigmoid(raw[at]) : beta(raw, h);
      }
    }
    return write;
  }

  /// S <- Diag(decay) S;  S <- S + k (write v - S^T (erase k))^T;  o = S^T q / sqrt(K).
  void step_head(int h, const Row& q, const Row& k, const Row& v, const Row& decay, const Row& erase, const Row& write,
                 Row& o) {
    const int K = c_.key_dim, V = c_.value_dim, key_head = h / repeat();
    double* state = &state_[static_cast<std::size_t>(h * K * V)];
    for (int j = 0; j < V; ++j) {
      double recalled = 0;
      for (int i = 0; i < K; ++i) {
        state[i * V + j] *= decay[h * K + i];
        recalled += state[i * V + j] * erase[h * K + i] * k[key_head * K + i];
      }
      const double change = write[h * V + j] * v[h * V + j] - recalled;
      double read = 0;
      for (int i = 0; i < K; ++i) {
        state[i * V + j] += k[key_head * K + i] * change;
        read += state[i * V + j] * q[key_head * K + i];
      }
      o[h * V + j] = read / std::sqrt(K);
    }
  }

  Row output(const PlainWeights& w, const Row& x, const Row& o) const {
    Row y = plain_rms_norm(o, w.at(c_.prefix + "o_norm.weight"), c_.eps);
    if (c_.gate != "none") {
      const std::string name = c_.prefix + "g_proj";
      const Row z = w.has(name + ".weight") ? w.linear(name, x) : w.linear(name + ".1", w.linear(name + ".0", x));
      for (std::size_t i = 0; i < y.size(); ++i) y[i] *= c_.gate == "silu" ? plain_silu(z[i]) : plain_sigmoid(z[i]);
    }
    return w.linear(c_.prefix + "o_proj", y);
  }

  PlainDelta c_;
  Row state_;  // [HV, K, V]
  std::map<char, std::vector<Row>> tails_;
};

class AttentionMixer : public PlainMixer {
 public:
  explicit AttentionMixer(const PlainAttention& config) : c_(config) {}

  Row step(const PlainWeights& w, const Row& x) override {
    Row q = prepared(w, x, 'q');
    keys_.push_back(prepared(w, x, 'k'));
    values_.push_back(w.linear(c_.prefix + 'v' + c_.suffix, x));
    const int position = static_cast<int>(keys_.size()) - 1;
    const int first = c_.window > 0 ? std::max(0, position - c_.window + 1) : 0;
    Row o(q.size());
    for (int h = 0; h < c_.query_heads; ++h) {
      const int D = c_.head_dim, kv = h / (c_.query_heads / c_.kv_heads);
      Row score;
      for (int t = first; t <= position; ++t) {
        double dot = 0;
        for (int i = 0; i < D; ++i) dot += q[h * D + i] * keys_[t][kv * D + i];
        score.push_back(dot / std::sqrt(D));
      }
      const double top = *std::max_element(score.begin(), score.end());
      double sum = 0;
      for (double& value : score) sum += value = std::exp(value - top);
      for (int t = first; t <= position; ++t) {
        for (int i = 0; i < D; ++i) o[h * D + i] += score[t - first] / sum * values_[t][kv * D + i];
      }
    }
    if (!c_.gate.empty()) {
      const Row z = w.linear(c_.gate, x);
      for (std::size_t i = 0; i < o.size(); ++i) o[i] *= plain_sigmoid(z[i]);
    }
    return w.linear(c_.prefix + 'o' + c_.suffix, o);
  }

 private:
  /// Projection, norm per head where there is one, rotation of pairs of columns.
  Row prepared(const PlainWeights& w, const Row& x, char which) const {
    Row y = w.linear(c_.prefix + which + c_.suffix, x);
    const std::string norm = c_.norm_prefix + which + "_norm.weight";
    if (!c_.norm_prefix.empty()) y = plain_rms_norm(y, w.at(norm), c_.eps);
    const int half = c_.head_dim / 2;
    const auto position = static_cast<double>(keys_.size());  // this token's key is not there yet
    for (std::size_t begin = 0; begin < y.size(); begin += static_cast<std::size_t>(c_.head_dim)) {
      for (int i = 0; i < half; ++i) {
        const double angle = position * std::pow(c_.theta, -2.0 * i / c_.head_dim);
        const std::size_t first = begin + (c_.has_neighbour_pairs ? 2 * i : i);
        const std::size_t second = c_.has_neighbour_pairs ? first + 1 : first + half;
        const double a = y[first], b = y[second];
        y[first] = a * std::cos(angle) - b * std::sin(angle);
        y[second] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
    return y;
  }

  PlainAttention c_;
  std::vector<Row> keys_, values_;
};

}  // namespace

std::unique_ptr<PlainMixer> plain_delta(const PlainDelta& config) { return std::make_unique<DeltaMixer>(config); }
std::unique_ptr<PlainMixer> plain_attention(const PlainAttention& config) {
  return std::make_unique<AttentionMixer>(config);
}

Row PlainModel::step(int token) {
  const Row& embed = weights_.at(names_.embed);
  const auto begin = embed.begin() + static_cast<std::ptrdiff_t>(token) * model_dim_;
  Row h(begin, begin + model_dim_);
  const auto add = [&](const Row& y) {
    for (std::size_t i = 0; i < h.size(); ++i) h[i] += y[i];
  };
  for (std::size_t i = 0; i < mixers_.size(); ++i) {
    const std::string block = names_.block + std::to_string(i) + ".";
    add(mixers_[i]->step(weights_, plain_rms_norm(h, weights_.at(block + names_.norm1), eps_)));
    const Row x = plain_rms_norm(h, weights_.at(block + names_.norm2), eps_);
    Row gate = weights_.linear(block + names_.gate, x);
    const Row up = weights_.linear(block + names_.up, x);
    for (std::size_t c = 0; c < gate.size(); ++c) gate[c] = plain_silu(gate[c]) * up[c];
    add(weights_.linear(block + names_.down, gate));
  }
  const Row x = plain_rms_norm(h, weights_.at(names_.final_norm), eps_);
  const Row& head = weights_.at(weights_.has(names_.head) ? names_.head : names_.embed);
  Row logits(head.size() / x.size());
  for (std::size_t o = 0; o < logits.size(); ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) logits[o] += head[o * x.size() + i] * x[i];
  }
  return logits;
}

}  // namespace cairn::test
