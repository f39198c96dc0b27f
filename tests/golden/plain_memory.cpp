#include "tests/golden/plain_memory.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace cairn::test {
namespace {

/// The `count` largest of `scores`, largest first.
std::vector<int> largest(const Row& scores, int count) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return scores[a] > scores[b]; });
  order.resize(static_cast<std::size_t>(count));
  return order;
}

class SdmMixer : public PlainMixer {
 public:
  explicit SdmMixer(const PlainSdm& config) : c_(config) {}

  Row step(const PlainWeights& w, const Row& x) override {
    const std::string& p = c_.prefix;
    const int V = c_.value_dim, slots = c_.side * c_.side;
    if (table_.empty())
      table_ = c_.is_learned ? w.at(p + "memory") : Row(static_cast<std::size_t>(c_.heads * slots * V));
    const Row q = scores(w, x, "Wq_read", "query_bn"), k = scores(w, x, "Wk_write", "key_bn"),
              v = w.linear(p + "Wv_write", x);
    const Row a = w.linear(p + "a_proj", x), b = w.linear(p + "b_proj", x);
    Row y(v.size());
    for (int h = 0; h < c_.heads; ++h) {
      const double g = -std::exp(w.at(p + "A_log")[h]) * plain_softplus(a[h] + w.at(p + "dt_bias")[h]);
      write(h, address(k, h, c_.write_count), &v[static_cast<std::size_t>(h * V)], g, plain_sigmoid(b[h]));
      for (const auto& [slot, weight] : address(q, h, c_.read_count)) {
        for (int j = 0; j < V; ++j) y[h * V + j] += weight * table_[(h * slots + slot) * V + j];
      }
    }
    return output(w, x, y);
  }

 private:
  /// The projection, and its batch norm with the statistics of training.
  Row scores(const PlainWeights& w, const Row& x, const std::string& projection, const std::string& norm) const {
    Row s = w.linear(c_.prefix + projection, x);
    const std::string stem = c_.prefix + norm + ".";
    for (std::size_t i = 0; c_.has_score_norms && i < s.size(); ++i) {
      const double deviation = std::sqrt(w.at(stem + "running_var")[i] + 1e-5);
      s[i] = (s[i] - w.at(stem + "running_mean")[i]) / deviation * w.at(stem + "weight")[i] + w.at(stem + "bias")[i];
    }
    return s;
  }

  struct Chosen {
    int slot;
    double weight;
  };

  /// Of all sums of a row score and a column score, the largest `count`, with their softmax.
  std::vector<Chosen> address(const Row& scores, int head, int count) const {
    const int n = c_.side, begin = head * 2 * n;
    Row sums;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) sums.push_back(scores[begin + i] + scores[begin + n + j]);
    }
    std::vector<Chosen> chosen;
    double total = 0;
    for (const int slot : largest(sums, count)) {
      chosen.push_back({slot, std::exp(sums[slot])});
      total += chosen.back().weight;
    }
    for (Chosen& one : chosen) one.weight /= total;
    return chosen;
  }

  void write(int head, const std::vector<Chosen>& chosen, const double* v, double g, double beta) {
    const int V = c_.value_dim, slots = c_.side * c_.side;
    Row residual(v, v + V);
    for (const auto& [slot, weight] : chosen) {
      double* row = &table_[static_cast<std::size_t>((head * slots + slot) * V)];
      const double kept = std::exp(c_.decays_by_key ? g * weight : g);
      for (int j = 0; j < V; ++j) residual[j] -= weight * (row[j] *= kept);
    }
    for (const auto& [slot, weight] : chosen) {
      for (int j = 0; j < V; ++j) table_[(head * slots + slot) * V + j] += beta * weight * residual[j];
    }
  }

  /// Layer norm of each head's reading, gate, projection.
  Row output(const PlainWeights& w, const Row& x, Row y) const {
    const int V = c_.value_dim;
    const Row &scale = w.at(c_.prefix + "readings_norm.weight"), &shift = w.at(c_.prefix + "readings_norm.bias");
    for (int h = 0; h < c_.heads; ++h) {
      double mean = 0, square = 0;
      for (int j = 0; j < V; ++j) mean += y[h * V + j] / V;
      for (int j = 0; j < V; ++j) square += (y[h * V + j] - mean) * (y[h * V + j] - mean) / V;
      for (int j = 0; j < V; ++j) y[h * V + j] = (y[h * V + j] - mean) / std::sqrt(square + 1e-6) * scale[j] + shift[j];
    }
    if (c_.has_gate) {
      const Row z = w.linear(c_.prefix + "Wog", x);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] *= plain_sigmoid(z[i]);
    }
    return w.linear(c_.prefix + "Wo", y);
  }

  PlainSdm c_;
  Row table_;  // [H, N, V]
};

class SseMixer : public PlainMixer {
 public:
  explicit SseMixer(const PlainSse& config)
      : c_(config),
        attention_(plain_attention(config.attention)),
        states_(static_cast<std::size_t>(c_.partitions + 1),
                Row(static_cast<std::size_t>(c_.heads * c_.head_dim * c_.head_dim))) {}

  Row step(const PlainWeights& w, const Row& x) override {
    const std::string& p = c_.prefix;
    const Row q = w.linear(p + "sse_q_proj", x), k = w.linear(p + "sse_k_proj", x);
    Row v = w.linear(p + "sse_v_proj", x), o(v.size());
    for (double& value : v) value = plain_silu(value);
    add_partition(w, x, 0, prepared(q), prepared(k), v, false, o);
    const Row routed_q = prepared(adapted(w, x, q, 'q')), routed_k = prepared(adapted(w, x, k, 'k'));
    for (const int n : largest(w.linear(p + "sse_e_proj", x), c_.top_k)) {
      add_partition(w, x, n + 1, routed_q, routed_k, v, true, o);
    }
    const Row normed = plain_rms_norm(o, w.at(p + "sse_o_norm.weight"), c_.eps);
    Row y = plain_rms_norm(w.linear(p + "sse_o_proj", normed), w.at(p + "sse_merge_norm.weight"), c_.eps);
    const Row side = plain_rms_norm(attention_->step(w, x), w.at(p + "swa_merge_norm.weight"), c_.eps);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = (y[i] + side[i]) / 2;
    return y;
  }

 private:
  Row adapted(const PlainWeights& w, const Row& x, Row base, char which) const {
    const std::string name = c_.prefix + "lora_" + which + "_proj.";
    const Row change = w.linear(name + "1", w.linear(name + "0", x));
    for (std::size_t i = 0; i < base.size(); ++i) base[i] += change[i];
    return base;
  }

  /// silu, then length 1 per head.
  Row prepared(Row rows) const {
    const auto dim = static_cast<std::size_t>(c_.head_dim);
    for (double& value : rows) value = plain_silu(value);
    for (std::size_t begin = 0; begin < rows.size(); begin += dim) {
      double square = 1e-6;
      for (std::size_t i = begin; i < begin + dim; ++i) square += rows[i] * rows[i];
      for (std::size_t i = begin; i < begin + dim; ++i) rows[i] /= std::sqrt(square);
    }
    return rows;
  }

  /// One step of the gated delta rule in one partition; what it reads is added to o.
  void add_partition(const PlainWeights& w, const Row& x, int partition, const Row& q, const Row& k, const Row& v,
                     bool is_routed, Row& o) {
    const Row a = w.linear(c_.prefix + "sse_a_proj", x), b = w.linear(c_.prefix + "sse_b_proj", x);
    const int D = c_.head_dim;
    for (int h = 0; h < c_.heads; ++h) {
      const int gate = is_routed ? c_.heads + h : h;
      const double rate = std::exp(w.at(c_.prefix + "A_log")[gate]);
      const double decay = std::exp(-rate * plain_softplus(a[gate] + w.at(c_.prefix + "dt_bias")[gate]));
      double* state = &states_[partition][static_cast<std::size_t>(h * D * D)];
      for (int j = 0; j < D; ++j) {
        double recalled = 0, read = 0;
        for (int i = 0; i < D; ++i) recalled += (state[i * D + j] *= decay) * k[h * D + i];
        const double change = plain_sigmoid(b[gate]) * (v[h * D + j] - recalled);
        for (int i = 0; i < D; ++i) read += (state[i * D + j] += k[h * D + i] * change) * q[h * D + i];
        o[h * D + j] += read / std::sqrt(D);
      }
    }
  }

  PlainSse c_;
  std::unique_ptr<PlainMixer> attention_;
  std::vector<Row> states_;  // shared, then routed: [H, K, V]
};

}  // namespace

std::unique_ptr<PlainMixer> plain_sdm(const PlainSdm& config) { return std::make_unique<SdmMixer>(config); }
std::unique_ptr<PlainMixer> plain_sse_with_attention(const PlainSse& config) {
  return std::make_unique<SseMixer>(config);
}

}  // namespace cairn::test
