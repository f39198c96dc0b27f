// gpu_sparse_gdn_bench PLUGIN [check] [prefill] [batch]: SparseGDN prefill on a CUDA device.
// check: the tuned form against the general one of the same plug-in (a call that traces runs the general form), on the
// same inputs: outputs agree only where both choose the same masks. The others: medians of graph replays beside the
// dense operator's.
#include <thread>

#include "tests/bench/gpu_bench_rig.h"

namespace {

using namespace cairn;
using namespace cairn::bench;

constexpr int kDim = 128;

struct Shape {
  int key_heads, value_heads;
};

struct Inputs {
  std::vector<std::uint16_t> q, k, v, z;
  std::vector<float> g, beta;
};

/// Unit queries and keys; gates of a model (g = -A softplus(a + dt), A in [1, 16], dt in [1e-3, 0.1]), or to -1e4;
/// chunks of different weight.
Inputs make_inputs(const Shape& s, std::size_t tokens, unsigned seed, bool harsh) {
  Inputs in;
  in.q.resize(tokens * s.key_heads * kDim), in.k.resize(in.q.size()), in.v.resize(tokens * s.value_heads * kDim),
      in.z.resize(in.v.size());
  in.g.resize(tokens * s.value_heads), in.beta.resize(tokens * s.value_heads);
  std::vector<float> weight(tokens / 64 + 1);
  std::mt19937 head_random(99);
  std::normal_distribution<float> normal_weight;
  for (float& w : weight) w = std::exp(0.8f * normal_weight(head_random));
  const HeadGates gates(s.value_heads, head_random);
  std::vector<std::thread> pool;
  constexpr int kThreads = 16;
  for (int w = 0; w < kThreads; ++w) {
    pool.emplace_back([&, w] {
      std::mt19937 random(seed * 64 + w);
      std::normal_distribution<float> normal;
      for (std::size_t t = tokens * w / kThreads; t < tokens * (w + 1) / kThreads; ++t) {
        for (int h = 0; h < s.key_heads; ++h) {
          for (auto* out : {&in.q, &in.k}) {
            float x[kDim], sum = 1e-6f;
            for (float& y : x) y = normal(random), sum += y * y;
            for (int i = 0; i < kDim; ++i) (*out)[(t * s.key_heads + h) * kDim + i] = bf16(x[i] / std::sqrt(sum));
          }
        }
        for (int i = 0; i < s.value_heads * kDim; ++i) {
          in.v[t * s.value_heads * kDim + i] = bf16(weight[t / 64] * normal(random));
          in.z[t * s.value_heads * kDim + i] = bf16(normal(random));
        }
        for (int h = 0; h < s.value_heads; ++h) {
          in.beta[t * s.value_heads + h] = 1 / (1 + std::exp(-normal(random)));
          const float g = gates.draw(h, random, normal);
          in.g[t * s.value_heads + h] = harsh ? draw_harsh_gate(random, normal) : g;
        }
      }
    });
  }
  for (auto& t : pool) t.join();
  return in;
}

/// A call's arguments and what they point to.
struct Problem {
  SparseGdnArgs args = {};
  std::vector<std::int32_t> offsets;
  std::vector<float*> states;
  std::size_t out_count = 0, state_count = 0;
  Memory memory;

  std::vector<std::uint16_t> out() const {
    return download(static_cast<const std::uint16_t*>(args.delta.out.data), out_count);
  }
  std::vector<float> state(std::size_t b) const { return download(states[b], state_count); }
};

/// `repeats`: the inputs are that many times as long as what is given.
void build(Problem& p, const Shape& s, const std::vector<int>& lengths, const Inputs& in,
           const std::vector<float>& initial, SparsePolicy policy, std::size_t repeats = 1) {
  p.offsets = {0};
  for (int n : lengths) p.offsets.push_back(p.offsets.back() + n);
  DeltaRuleArgs& a = p.args.delta;
  a.dtype = DType::kBF16, a.phase = Phase::kPrefill;
  a.batch = {static_cast<int>(lengths.size()), p.offsets.back(), p.memory.upload(p.offsets),
             p.offsets.data()};
  a.key_heads = s.key_heads, a.value_heads = s.value_heads, a.key_dim = a.value_dim = kDim;
  a.scale = 1 / std::sqrt(static_cast<float>(kDim));
  a.q = {p.memory.upload(in.q, in.q.size() * repeats), s.key_heads * kDim},
  a.k = {p.memory.upload(in.k, in.k.size() * repeats), s.key_heads * kDim};
  a.v = {p.memory.upload(in.v, in.v.size() * repeats), s.value_heads * kDim};
  a.log_decay = p.memory.upload(in.g, in.g.size() * repeats), a.beta = p.memory.upload(in.beta, in.beta.size() * repeats);
  p.out_count = in.v.size() * repeats, p.state_count = initial.size();
  a.out = {p.memory.take<std::uint16_t>(p.out_count), s.value_heads * kDim};
  for (std::size_t b = 0; b < lengths.size(); ++b) p.states.push_back(p.memory.upload(initial));
  a.states = p.memory.upload(p.states);
  p.args.policy = policy, p.args.seed = 5;
  p.args.gate = in.z.empty() ? a.v : ConstRows{p.memory.upload(in.z, in.z.size() * repeats), s.value_heads * kDim};
  p.args.norm_weight = p.memory.upload(std::vector<float>(kDim, 1.0f));
}

void run(const SparseGdnArgs& args) {
  const auto& op = backend->ops->sparse_gdn;
  const char* reason = op.unsupported_reason(args);
  require(!reason, "unsupported", reason);
  Memory memory;
  op.run(queue, args, memory.take<char>(op.scratch_bytes(args)));
  finish();
}

std::vector<float> random_state(const Shape& s, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> state(static_cast<std::size_t>(s.value_heads) * kDim * kDim);
  for (float& x : state) x = 0.3f * normal(random);
  return state;
}

/// Largest ||x - ref|| / ||ref|| over blocks of `block` numbers that repeat with `period`; NaN gives 1e9.
template <class T, class Value>
double worst_error(const std::vector<T>& x, const std::vector<T>& ref, std::size_t begin, std::size_t end,
                   std::size_t period, std::size_t block, const Value& value) {
  double worst = 0;
  for (std::size_t first = 0; first < period; first += block) {
    double difference = 0, square = 0;
    for (std::size_t row = begin; row < end; ++row) {
      for (std::size_t i = row * period + first; i < row * period + first + block; ++i) {
        const double a = value(x[i]), b = value(ref[i]);
        difference += (a - b) * (a - b), square += b * b;
      }
    }
    const double error = std::sqrt(difference / (square + 1e-300));
    worst = error == error ? std::max(worst, end > begin ? error : 0.0) : 1e9;
  }
  return worst;
}

struct Case {
  const char* name;
  Shape shape;
  std::vector<int> lengths;
  SparsePolicy policy = SparsePolicy::kAdaptive;
  bool harsh = false;
};

constexpr double kLimit = 1.2e-2;  // as for dense GDN: operands are rounded to bf16

/// Both forms choose by themselves; a different mask would show as an error far above the limit.
void check(const Case& c) {
  const Shape& s = c.shape;
  std::size_t tokens = 0, chunks = 0;
  for (int n : c.lengths) tokens += n, chunks += (n + 63) / 64;
  const Inputs in = make_inputs(s, tokens, 7 + static_cast<unsigned>(tokens), c.harsh);
  const std::vector<float> initial = random_state(s, 5);
  Problem tuned, general;
  build(tuned, s, c.lengths, in, initial, c.policy), build(general, s, c.lengths, in, initial, c.policy);
  std::vector<std::uint8_t> given(chunks * s.key_heads);
  std::vector<std::int32_t> tiers(s.key_heads);
  std::mt19937 random(3);
  for (auto& z : given) z = random() % 2;
  for (auto& t : tiers) t = static_cast<std::int32_t>(random() % 3);
  if (c.policy == SparsePolicy::kGiven) {
    for (Problem* p : {&tuned, &general})
      p->args.given_mask = p->memory.upload(given),
      p->args.given_tier = p->memory.upload(tiers);
  }
  SparseGdnTrace trace = {};
  general.args.trace = &trace;
  run(tuned.args);
  run(general.args);
  const auto out = tuned.out(), want = general.out();
  double out_error = 0, state_error = 0;
  const std::size_t width = static_cast<std::size_t>(s.value_heads) * kDim;
  for (std::size_t b = 0; b < c.lengths.size(); ++b) {
    out_error =
        std::max(out_error, worst_error(out, want, tuned.offsets[b], tuned.offsets[b + 1], width, kDim, value_of));
    state_error = std::max(state_error, worst_error(tuned.state(b), general.state(b), 0, 1, initial.size(),
                                                    std::size_t{kDim} * kDim, [](float x) { return x; }));
  }
  std::printf("check %-26s HK %2d HV %2d T %6zu: out %.2e state %.2e %s\n", c.name, s.key_heads, s.value_heads, tokens,
              out_error, state_error, verdict(out_error < kLimit && state_error < kLimit));
  std::fflush(stdout);
}

/// A sequence alone and as the third of a batch: the same bits; and twice in a row.
void check_bits(const Shape& s) {
  const std::vector<int> lengths = {130, 7, 2000, 64};
  const Inputs in = make_inputs(s, 2201, 3, false);
  const std::vector<float> initial = random_state(s, 6);
  Problem batch, again, alone;
  build(batch, s, lengths, in, initial, SparsePolicy::kAdaptive),
      build(again, s, lengths, in, initial, SparsePolicy::kAdaptive);
  Inputs one;
  const auto cut = [&](const auto& from, std::size_t width) {
    return std::decay_t<decltype(from)>(from.begin() + 137 * width, from.begin() + 2137 * width);
  };
  const std::size_t wide = static_cast<std::size_t>(s.value_heads) * kDim;
  one.q = cut(in.q, s.key_heads * kDim), one.k = cut(in.k, s.key_heads * kDim), one.v = cut(in.v, wide),
  one.z = cut(in.z, wide);
  one.g = cut(in.g, s.value_heads), one.beta = cut(in.beta, s.value_heads);
  build(alone, s, {2000}, one, initial, SparsePolicy::kAdaptive);
  for (Problem* p : {&batch, &again, &alone}) run(p->args);
  const auto a = batch.out(), b = again.out(), c = alone.out();
  const bool repeated = a == b && batch.state(2) == again.state(2);
  const bool same = std::equal(c.begin(), c.end(), a.begin() + 137 * wide) && batch.state(2) == alone.state(0);
  std::printf("check bits: batch against alone %s, repeated %s\n", verdict(same, "equal", "DIFFERENT"),
              verdict(repeated, "equal", "DIFFERENT"));
}

/// Median microseconds of one call of `op`, the problems in turn.
template <class Args, class ArgsOf>
double median_us(const Op<Args>& op, const std::vector<Problem>& problems, int calls, int replays, const ArgsOf& args_of) {
  Memory memory;
  void* scratch = memory.take<char>(op.scratch_bytes(args_of(problems[0])));
  return bench::median_us(calls, replays, [&](int i) { op.run(queue, args_of(problems[i % problems.size()]), scratch); });
}

/// `base`: 4,096 tokens, repeated along the sequences: making more would take longer than measuring.
void time_prefill(const Shape& s, const Inputs& base, int sequences, int length, SparsePolicy policy) {
  const std::size_t tokens = static_cast<std::size_t>(sequences) * length;
  const std::vector<float> initial(static_cast<std::size_t>(s.value_heads) * kDim * kDim, 0.0f);
  std::vector<Problem> problems(tokens <= 16384 ? 4 : tokens <= 131072 ? 2 : 1);
  for (Problem& p : problems) build(p, s, std::vector<int>(sequences, length), base, initial, policy, tokens / 4096);
  const int calls = tokens <= 262144 ? 24 : 6;
  const double sparse = median_us(backend->ops->sparse_gdn, problems, calls, 7,
                                  [](const Problem& p) -> const SparseGdnArgs& { return p.args; });
  const double dense = median_us(backend->ops->gdn, problems, calls, 7,
                                 [](const Problem& p) -> const DeltaRuleArgs& { return p.args.delta; });
  std::printf(
      "time %d x %6d: sparse %9.1f us a layer (x24 %7.2f ms), dense %9.1f (%7.2f), dense / sparse %.3f, scratch %.0f "
      "and %.0f MB\n",
      sequences, length, sparse, sparse * 24e-3, dense, dense * 24e-3, dense / sparse,
      backend->ops->sparse_gdn.scratch_bytes(problems[0].args) / 1e6,
      backend->ops->gdn.scratch_bytes(problems[0].args.delta) / 1e6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc > 1, "usage: gpu_sparse_gdn_bench PLUGIN [check] [prefill] [batch]");
  open_plugin(argv[1]);
  const auto wants = [&](const char* what) { return argc == 2 || is_named(argc, argv, what); };
  const Shape qwen{16, 32}, middle{4, 8}, ungrouped{3, 3}, three{1, 3}, four{2, 8};
  if (wants("check")) {
    check({"one chunk, all", middle, {64}, SparsePolicy::kAll});
    check({"two chunks, all", middle, {128}, SparsePolicy::kAll});
    check({"short, all", middle, {500}, SparsePolicy::kAll});
    check({"given", middle, {1000}, SparsePolicy::kGiven});
    check({"given, harsh gates", middle, {1000}, SparsePolicy::kGiven, true});
    check({"adaptive", middle, {4096}});
    check({"adaptive, ungrouped", ungrouped, {2111}});
    check({"three heads a key", three, {1500}, SparsePolicy::kRandom});
    check({"four heads a key", four, {1500}, SparsePolicy::kFixed});
    check({"adaptive, ragged", middle, {0, 1, 63, 64, 65, 1000, 2, 500, 0}});
    check({"adaptive, 16/32", qwen, {4096}});
    check_bits(qwen);
  }
  if (wants("prefill") || wants("batch")) {
    Inputs base = make_inputs(qwen, 4096, 1, false);
    base.z.clear();  // the values are as good
    for (int sequences : {1, 2, 4, 8}) {
      if (!wants(sequences == 1 ? "prefill" : "batch")) continue;
      for (int length : {4096, 8192, 16384, 32768, 65536, 131072})
        time_prefill(qwen, base, sequences, length, SparsePolicy::kAdaptive);
    }
  }
  return failed_checks ? 1 : 0;
}
