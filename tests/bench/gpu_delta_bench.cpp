// gpu_delta_bench PLUGIN [check] [kda] [gdn2] [gdn64] [sse] [decode] [short]: chunked rules and SSE of the cuda
// backend. check: against a float64 recurrence, relative RMS of outputs and states. The others: medians of graph
// replays, a layer a call, bf16, over two sets of inputs. Gates are a model's (as in gpu_gdn_bench); numbers of 4,096
// tokens are repeated.
#include <memory>
#include <string>
#include <thread>

#include "tests/bench/gpu_bench_rig.h"

namespace {

using namespace cairn;
using namespace cairn::bench;
using Bits = std::vector<std::uint16_t>;
using Floats = std::vector<float>;

enum class Rule { kGdn, kKda, kGdn2, kGla, kSseDelta, kSseGdn };

struct Shape {
  Rule rule;
  int key_heads, value_heads, K, V, partitions = 0, top_k = 1;
  bool harsh = false;
  bool is_sse() const { return rule >= Rule::kGla; }
  int decays() const { return rule == Rule::kGdn || rule == Rule::kSseGdn ? 1 : K; }
};

struct Inputs {
  std::size_t tokens;
  Bits q, k, v, erase, write, shared_q, shared_k;
  Floats g, beta, logits;
};

void fill(const Shape& s, Inputs& in, std::size_t begin, std::size_t end, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::mt19937 head_random(99);
  const HeadGates gates(s.value_heads, head_random);
  std::uniform_real_distribution<float> uniform(0, 1);
  Floats x(s.K);
  for (std::size_t t = begin; t < end; ++t) {
    for (auto* rows : {&in.q, &in.k, &in.shared_q, &in.shared_k}) {
      for (int h = 0; h < s.key_heads && !rows->empty(); ++h) {
        float sum = 1e-6f;
        for (float& y : x) y = normal(random), sum += y * y;
        for (int i = 0; i < s.K; ++i) (*rows)[(t * s.key_heads + h) * s.K + i] = bf16(x[i] / std::sqrt(sum));
      }
    }
    for (int i = 0; i < s.value_heads * s.V; ++i) in.v[t * s.value_heads * s.V + i] = bf16(normal(random));
    for (int i = 0; i < s.value_heads * s.K && !in.erase.empty(); ++i)
      in.erase[t * s.value_heads * s.K + i] = bf16(uniform(random));
    for (int i = 0; i < s.value_heads * s.V && !in.write.empty(); ++i)
      in.write[t * s.value_heads * s.V + i] = bf16(uniform(random));
    for (int i = 0; i < s.partitions; ++i) in.logits[t * s.partitions + i] = normal(random);
    for (int h = 0; h < s.value_heads; ++h) {
      in.beta[t * s.value_heads + h] = 1 / (1 + std::exp(-normal(random)));
      for (int r = 0; r < s.decays(); ++r) {
        float g = s.is_sse() ? -std::log1p(std::exp(-normal(random))) / 16 : gates.draw(h, random, normal);
        if (s.harsh) g = draw_harsh_gate(random, normal);
        in.g[(t * s.value_heads + h) * s.decays() + r] = g;
      }
    }
  }
}

Inputs make_inputs(const Shape& s, std::size_t tokens, unsigned seed) {
  Inputs in{tokens,
            Bits(tokens * s.key_heads * s.K),
            Bits(tokens * s.key_heads * s.K),
            Bits(tokens * s.value_heads * s.V),
            {},
            {},
            {},
            {},
            Floats(tokens * s.value_heads * s.decays()),
            Floats(tokens * s.value_heads),
            Floats(tokens * s.partitions)};
  if (s.rule == Rule::kGdn2) in.erase.resize(tokens * s.value_heads * s.K), in.write.resize(in.v.size());
  if (s.is_sse()) in.shared_q.resize(in.q.size()), in.shared_k.resize(in.k.size());
  std::vector<std::thread> pool;
  for (std::size_t w = 0; w < 16; ++w)
    pool.emplace_back(
        [&, w] { fill(s, in, tokens * w / 16, tokens * (w + 1) / 16, seed * 64 + static_cast<unsigned>(w)); });
  for (auto& t : pool) t.join();
  return in;
}

struct Problem {
  Shape shape;
  std::vector<std::int32_t> offsets{0};
  DeltaRuleArgs delta = {};
  SseArgs sse = {};
  std::vector<float*> states, shared_states;
  std::size_t state_size;
  Memory memory;

  Problem(const Shape& s, const std::vector<int>& lengths, const Inputs& in, const Floats& initial, Phase phase)
      : shape(s) {
    for (int n : lengths) offsets.push_back(offsets.back() + n);
    const std::size_t tokens = offsets.back(), keys = tokens * s.key_heads * s.K, values = tokens * s.value_heads * s.V;
    const Batch batch = {static_cast<int>(lengths.size()), offsets.back(), memory.upload(offsets), offsets.data()};
    state_size = static_cast<std::size_t>(s.value_heads) * s.K * s.V;
    const std::size_t lists = s.is_sse() ? s.partitions : 1;
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      states.push_back(memory.upload(initial, state_size * lists));
      if (s.is_sse()) shared_states.push_back(memory.upload(initial, state_size));
    }
    const std::int64_t key_row = s.key_heads * s.K, value_row = s.value_heads * s.V, erase_row = s.value_heads * s.K;
    const ConstRows q{memory.upload(in.q, keys), key_row}, k{memory.upload(in.k, keys), key_row},
        v{memory.upload(in.v, values), value_row};
    const float* g = memory.upload(in.g, tokens * s.value_heads * s.decays());
    const float* beta = memory.upload(in.beta, tokens * s.value_heads);
    const Rows out{memory.take<std::uint16_t>(values), value_row};
    if (s.is_sse()) {
      sse.dtype = DType::kBF16, sse.phase = phase, sse.gate_write = sse.gate_read = true, sse.batch = batch;
      sse.transition = s.rule == Rule::kGla      ? SseTransition::kGla
                       : s.rule == Rule::kSseGdn ? SseTransition::kGdn
                                                 : SseTransition::kDelta;
      sse.head_count = s.value_heads, sse.key_dim = s.K, sse.value_dim = s.V, sse.partition_count = s.partitions,
      sse.top_k = s.top_k;
      sse.route_logits = memory.upload(in.logits, tokens * s.partitions);
      sse.q = q, sse.k = k, sse.v = v, sse.log_decay = g, sse.out = out;
      if (s.rule != Rule::kGla) sse.beta = beta;
      sse.shared_q = {memory.upload(in.shared_q, keys), key_row},
      sse.shared_k = {memory.upload(in.shared_k, keys), key_row};
      sse.states = memory.upload(states), sse.shared_states = memory.upload(shared_states);
      return;
    }
    delta.dtype = DType::kBF16, delta.phase = phase, delta.batch = batch;
    delta.key_heads = s.key_heads, delta.value_heads = s.value_heads, delta.key_dim = s.K, delta.value_dim = s.V;
    delta.scale = 1 / std::sqrt(static_cast<float>(s.K));
    delta.q = q, delta.k = k, delta.v = v, delta.log_decay = g, delta.out = out;
    if (s.rule != Rule::kGdn2) delta.beta = beta;
    if (s.rule == Rule::kGdn2)
      delta.erase = {memory.upload(in.erase, tokens * erase_row), erase_row},
      delta.write = {memory.upload(in.write, values), value_row};
    delta.states = memory.upload(states);
  }
  const Op<DeltaRuleArgs>& op() const {
    const OpTable& ops = *backend->ops;
    return shape.rule == Rule::kGdn ? ops.gdn : shape.rule == Rule::kKda ? ops.kda : ops.gdn2;
  }
  std::size_t scratch_bytes() const {
    return shape.is_sse() ? backend->ops->sse.scratch_bytes(sse) : op().scratch_bytes(delta);
  }
  void run(void* scratch) const {
    const char* reason = shape.is_sse() ? backend->ops->sse.unsupported_reason(sse) : op().unsupported_reason(delta);
    require(!reason, "unsupported", reason);
    shape.is_sse() ? backend->ops->sse.run(queue, sse, scratch) : op().run(queue, delta, scratch);
  }
  const std::uint16_t* out() const {
    return static_cast<const std::uint16_t*>(shape.is_sse() ? sse.out.data : delta.out.data);
  }
};

/// One token over one state in float64; adds to out.
struct Step {
  const std::uint16_t *q, *k, *v, *erase, *write;
  const float* g;
  double beta, predict_weight, key_weight, query_weight;
  bool is_delta;
};
void step(const Shape& s, const Step& x, std::vector<double>& state, double* out) {
  std::vector<double> r(s.V);
  for (int v = 0; v < s.V; ++v) r[v] = value_of(x.v[v]) * (x.write ? value_of(x.write[v]) : 1);
  for (int i = 0; i < s.K; ++i) {
    const double decay = std::exp(static_cast<double>(x.g[s.decays() == 1 ? 0 : i]));
    const double key = x.predict_weight * value_of(x.k[i]) * (x.erase ? value_of(x.erase[i]) : 1);
    for (int v = 0; v < s.V; ++v) {
      double& m = state[i * s.V + v];
      m *= decay;
      if (x.is_delta) r[v] -= m * key;
    }
  }
  for (int i = 0; i < s.K; ++i) {
    const double key = value_of(x.k[i]) * x.key_weight * x.beta, query = value_of(x.q[i]) * x.query_weight;
    for (int v = 0; v < s.V; ++v) state[i * s.V + v] += key * r[v], out[v] += query * state[i * s.V + v];
  }
}

struct Errors {
  double out = 0, out_reference = 0, state = 0, state_reference = 0;
};

/// Sequence b, head h.
Errors compare(const Problem& p, const Inputs& in, const Floats& initial, const Bits& got, int b, int h) {
  const Shape& s = p.shape;
  const int key_head = h / (s.value_heads / s.key_heads), lists = s.is_sse() ? s.partitions + 1 : 1;
  const std::size_t matrix = static_cast<std::size_t>(s.K) * s.V;
  std::vector<std::vector<double>> state(
      lists, std::vector<double>(initial.begin() + h * matrix, initial.begin() + (h + 1) * matrix));
  Errors e;
  std::vector<double> out(s.V);
  for (std::size_t t = p.offsets[b]; t < static_cast<std::size_t>(p.offsets[b + 1]); ++t) {
    std::fill(out.begin(), out.end(), 0.0);
    const std::size_t key = (t * s.key_heads + key_head) * s.K, value = (t * s.value_heads + h) * s.V,
                      row = t * s.value_heads + h;
    Step x{&in.q[key], &in.k[key], &in.v[value], nullptr, nullptr, &in.g[row * s.decays()], in.beta[row], 1,
           1,          1,          true};
    if (!s.is_sse()) {
      x.query_weight = 1 / std::sqrt(static_cast<double>(s.K));
      if (s.rule == Rule::kGdn2) x.erase = &in.erase[row * s.K], x.write = &in.write[value], x.beta = 1;
      step(s, x, state[0], out.data());
    } else {
      const float* logits = &in.logits[t * s.partitions];
      std::vector<int> order(s.partitions);
      for (int i = 0; i < s.partitions; ++i) order[i] = i;
      std::stable_sort(order.begin(), order.end(), [&](int a, int c) { return logits[a] > logits[c]; });
      double sum = 0;
      for (int i = 0; i < s.partitions; ++i) sum += std::exp(static_cast<double>(logits[i]) - logits[order[0]]);
      x.is_delta = s.rule != Rule::kGla;
      if (!x.is_delta) x.beta = 1;
      for (int j = 0; j < s.top_k; ++j) {
        const double weight = std::exp(static_cast<double>(logits[order[j]]) - logits[order[0]]) / sum;
        Step y = x;
        y.key_weight = y.query_weight = weight;
        if (s.rule == Rule::kSseGdn) y.predict_weight = weight;
        step(s, y, state[order[j]], out.data());
      }
      x.q = &in.shared_q[key], x.k = &in.shared_k[key];
      step(s, x, state[s.partitions], out.data());
    }
    for (int v = 0; v < s.V; ++v) {
      const double d = value_of(got[value + v]) - out[v];
      e.out += d * d, e.out_reference += out[v] * out[v];
    }
  }
  for (int l = 0; l < lists; ++l) {
    const bool is_shared = s.is_sse() && l == s.partitions;
    const Floats end = download((is_shared ? p.shared_states[b] : p.states[b] + l * p.state_size) + h * matrix, matrix);
    for (std::size_t i = 0; i < matrix; ++i) {
      const double d = end[i] - state[l][i];
      e.state += d * d, e.state_reference += state[l][i] * state[l][i];
    }
  }
  return e;
}

void check(const char* name, const Shape& s, const std::vector<int>& lengths, Phase phase,
           const std::vector<int>& heads) {
  std::size_t tokens = 0;
  for (int n : lengths) tokens += n;
  const Inputs in = make_inputs(s, tokens, 7 + static_cast<unsigned>(tokens));
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  Floats initial(static_cast<std::size_t>(s.value_heads) * s.K * s.V);
  for (float& x : initial) x = normal(random);
  const Problem p(s, lengths, in, initial, phase);
  Memory memory;
  p.run(memory.take<char>(p.scratch_bytes()));
  finish();
  const Bits got = download(p.out(), in.v.size());
  std::vector<Errors> errors(heads.size() * lengths.size());
  std::vector<std::thread> pool;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    pool.emplace_back([&, i] {
      errors[i] = compare(p, in, initial, got, static_cast<int>(i / heads.size()), heads[i % heads.size()]);
    });
  }
  for (auto& t : pool) t.join();
  double out = 0, state = 0;
  for (const Errors& e : errors) {
    const double o = std::sqrt(e.out / (e.out_reference + 1e-300)),
                 st = std::sqrt(e.state / (e.state_reference + 1e-300));
    if (!(o <= out)) out = o == o ? o : 1e9;
    if (!(st <= state)) state = st == st ? st : 1e9;
  }
  std::printf("check %-26s T %6zu: out %.2e state %.2e %s\n", name, tokens, out, state,
              verdict(out < 1.2e-2 && state < 1.2e-2));
  std::fflush(stdout);
}

void measure(const char* name, const Shape& s, int sequences, int length, Phase phase, double bar_us) {
  const std::size_t tokens = static_cast<std::size_t>(sequences) * length;
  const Inputs in = make_inputs(s, 4096, 1);
  const Floats initial(static_cast<std::size_t>(s.value_heads) * s.K * s.V, 0.0f);
  const int sets = phase == Phase::kPrefill ? 2 : sequences >= 64 ? 3 : 48 / sequences + 1;
  const int calls = phase == Phase::kDecode ? 48 : tokens >= 65536 ? 2 : 8, replays = tokens >= 65536 ? 3 : 7;
  std::vector<std::unique_ptr<Problem>> problems;
  for (int i = 0; i < sets; ++i)
    problems.push_back(std::make_unique<Problem>(s, std::vector<int>(sequences, length), in, initial, phase));
  Memory memory;
  const std::size_t bytes = problems[0]->scratch_bytes();
  void* scratch = memory.take<char>(bytes);
  const double us = median_us(calls, replays, [&](int i) { problems[i % sets]->run(scratch); });
  std::printf("time  %-14s %s %3d x %6d: %10.1f us a layer (bar %.1f), scratch %.1f MB\n", name,
              phase == Phase::kPrefill ? "prefill" : "decode ", sequences, length, us, bar_us,
              static_cast<double>(bytes) / 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc > 2, "usage: gpu_delta_bench PLUGIN [check] [kda] [gdn2] [gdn64] [sse] [decode] [short]");
  open_plugin(argv[1]);
  const auto wants = [&](const char* what) { return is_named(argc, argv, what); };
  const Shape kda{Rule::kKda, 32, 32, 128, 128}, gdn2{Rule::kGdn2, 32, 32, 128, 128}, gdn64{Rule::kGdn, 32, 32, 64, 64},
      sse{Rule::kGla, 16, 16, 128, 128, 4, 1};
  const std::vector<int> ragged = {0, 1, 63, 64, 65, 500, 0};
  if (wants("check")) {
    for (Rule rule : {Rule::kGdn, Rule::kKda, Rule::kGdn2}) {
      const std::string name = rule == Rule::kGdn ? "gdn" : rule == Rule::kKda ? "kda" : "gdn2";
      check((name + " 64x64").c_str(), {rule, 1, 2, 64, 64}, ragged, Phase::kPrefill, {0, 1});
      check((name + " 96x192").c_str(), {rule, 1, 3, 96, 192}, ragged, Phase::kPrefill, {0, 1, 2});
      if (rule == Rule::kGdn) continue;
      check((name + " 128x128").c_str(), {rule, 2, 2, 128, 128}, ragged, Phase::kPrefill, {0, 1});
      check((name + " 128x128 harsh").c_str(), {rule, 2, 2, 128, 128, 0, 1, true}, ragged, Phase::kPrefill, {0, 1});
      check((name + " 32 heads").c_str(), {rule, 32, 32, 128, 128}, {10000, 200}, Phase::kPrefill, {0, 31});
      check((name + " decode").c_str(), {rule, 32, 32, 128, 128}, {1, 1, 1}, Phase::kDecode, {0, 31});
    }
    for (Rule rule : {Rule::kGla, Rule::kSseDelta, Rule::kSseGdn}) {
      const std::string name = rule == Rule::kGla ? "sse gla" : rule == Rule::kSseDelta ? "sse delta" : "sse gdn";
      check((name + " n4k1").c_str(), {rule, 2, 2, 128, 128, 4, 1}, ragged, Phase::kPrefill, {0, 1});
      check((name + " n8k3 64x64").c_str(), {rule, 2, 2, 64, 64, 8, 3}, ragged, Phase::kPrefill, {0, 1});
      check((name + " n4k1 decode").c_str(), {rule, 2, 2, 128, 128, 4, 1}, {1, 1, 1}, Phase::kDecode, {0, 1});
    }
    check("sse gla n4k1 16 heads", sse, {9000, 300}, Phase::kPrefill, {0, 15});
  }
  if (wants("short")) {
    measure("kda", kda, 1, 32768, Phase::kPrefill, 3572);
    measure("gdn2", gdn2, 1, 32768, Phase::kPrefill, 0);
    measure("sse n4k1", sse, 1, 32768, Phase::kPrefill, 3340);
  }
  if (wants("kda")) {
    for (int n : {4096, 8192, 32768, 131072}) measure("kda", kda, 1, n, Phase::kPrefill, 14290.0 * n / 131072);
    measure("kda", kda, 8, 8192, Phase::kPrefill, 0);
  }
  if (wants("gdn2")) measure("gdn2", gdn2, 1, 32768, Phase::kPrefill, 0);
  if (wants("gdn64")) measure("gdn 64x64", gdn64, 1, 32768, Phase::kPrefill, 0);
  if (wants("sse")) {
    for (int n : {8192, 32768, 131072})
      measure("sse n4k1", sse, 1, n, Phase::kPrefill, n == 8192 ? 1110.0 : n == 32768 ? 3340.0 : 13560.0);
  }
  if (wants("decode")) {
    const double floors[][3] = {{1, 8.2, 4.9}, {8, 21.4, 15.0}, {64, 122.6, 94.3}};
    for (const auto& floor : floors) {
      measure("sse n4k1", sse, static_cast<int>(floor[0]), 1, Phase::kDecode, floor[1]);
      measure("gdn2", gdn2, static_cast<int>(floor[0]), 1, Phase::kDecode, floor[2]);
    }
  }
  return failed_checks ? 1 : 0;
}
