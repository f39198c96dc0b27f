// gpu_gdn_bench PLUGIN [check] [check_decode] [prefill] [batch] [decode] [small] [profile]: GDN on a CUDA device.
// check: against a float64 recurrence. The others: medians of graph replays of 24 calls over rotating inputs.
// Gates are those of a model: g = -exp(A_log) softplus(a + dt_bias), A in [1, 16], dt in [1e-3, 0.1]; keys are unit
// vectors.
#include <string>
#include <thread>

#include "tests/bench/gpu_bench_rig.h"

namespace {

using namespace cairn;
using namespace cairn::bench;

struct Shape {
  int key_heads = 16, value_heads = 32, dim = 128;
};

struct Inputs {
  std::vector<std::uint16_t> q, k, v;
  std::vector<float> g, beta;
};

enum class Gates { kModel, kHarsh, kNone };

Inputs make_inputs(const Shape& s, std::size_t tokens, unsigned seed, Gates gates) {
  Inputs in;
  in.q.resize(tokens * s.key_heads * s.dim), in.k.resize(in.q.size()), in.v.resize(tokens * s.value_heads * s.dim);
  in.g.resize(tokens * s.value_heads), in.beta.resize(tokens * s.value_heads);
  std::mt19937 head_random(99);
  const HeadGates head_gates(s.value_heads, head_random);
  const int threads = 16;
  std::vector<std::thread> pool;
  for (int w = 0; w < threads; ++w) {
    pool.emplace_back([&, w] {
      std::mt19937 random(seed * 64 + w);
      std::normal_distribution<float> normal;
      const std::size_t begin = tokens * w / threads, end = tokens * (w + 1) / threads;
      for (std::size_t t = begin; t < end; ++t) {
        for (int h = 0; h < s.key_heads; ++h) {
          for (auto* out : {&in.q, &in.k}) {
            std::vector<float> x(s.dim);
            float sum = 1e-6f;
            for (float& y : x) y = normal(random), sum += y * y;
            for (int i = 0; i < s.dim; ++i) (*out)[(t * s.key_heads + h) * s.dim + i] = bf16(x[i] / std::sqrt(sum));
          }
        }
        for (int i = 0; i < s.value_heads * s.dim; ++i) in.v[t * s.value_heads * s.dim + i] = bf16(normal(random));
        for (int h = 0; h < s.value_heads; ++h) {
          in.beta[t * s.value_heads + h] = 1 / (1 + std::exp(-normal(random)));
          float& g = in.g[t * s.value_heads + h];
          g = head_gates.draw(h, random, normal);
          if (gates == Gates::kHarsh) g = draw_harsh_gate(random, normal);
          if (gates == Gates::kNone) g = 0;
        }
      }
    });
  }
  for (auto& t : pool) t.join();
  return in;
}

/// One head of one sequence in float64; state [K, V] in place.
void recurrence(const Shape& s, const Inputs& in, std::size_t begin, std::size_t end, int h, std::vector<double>& state,
                std::vector<double>& out) {
  const int d = s.dim, kh = h / (s.value_heads / s.key_heads);
  std::vector<double> r(d);
  out.assign((end - begin) * d, 0);
  for (std::size_t t = begin; t < end; ++t) {
    const double beta = in.beta[t * s.value_heads + h], decay = std::exp(static_cast<double>(in.g[t * s.value_heads + h]));
    const auto* k = &in.k[(t * s.key_heads + kh) * d];
    const auto* q = &in.q[(t * s.key_heads + kh) * d];
    for (int v = 0; v < d; ++v) r[v] = value_of(in.v[(t * s.value_heads + h) * d + v]);
    for (int i = 0; i < d; ++i) {
      const double key = value_of(k[i]);
      double* row = &state[i * d];
      for (int v = 0; v < d; ++v) row[v] *= decay, r[v] -= row[v] * key;
    }
    double* o = &out[(t - begin) * d];
    for (int i = 0; i < d; ++i) {
      const double key = value_of(k[i]) * beta, query = value_of(q[i]) / std::sqrt(static_cast<double>(d));
      double* row = &state[i * d];
      for (int v = 0; v < d; ++v) row[v] += key * r[v], o[v] += query * row[v];
    }
  }
}

struct Problem {
  DeltaRuleArgs args = {};
  std::vector<std::int32_t> offsets;
  std::vector<float*> states;
  Memory memory;
};

/// Uploads everything; states start as `initial` for every sequence.
void build(Problem& p, const Shape& s, const std::vector<int>& lengths, const Inputs& in, const std::vector<float>& initial,
           Phase phase) {
  p.offsets = {0};
  for (int n : lengths) p.offsets.push_back(p.offsets.back() + n);
  const int tokens = p.offsets.back();
  DeltaRuleArgs& a = p.args;
  a.dtype = DType::kBF16, a.phase = phase;
  a.batch = {static_cast<int>(lengths.size()), tokens, p.memory.upload(p.offsets), p.offsets.data()};
  a.key_heads = s.key_heads, a.value_heads = s.value_heads, a.key_dim = a.value_dim = s.dim;
  a.scale = 1 / std::sqrt(static_cast<float>(s.dim));
  a.q = {p.memory.upload(in.q), s.key_heads * s.dim}, a.k = {p.memory.upload(in.k), s.key_heads * s.dim};
  a.v = {p.memory.upload(in.v), s.value_heads * s.dim};
  a.log_decay = p.memory.upload(in.g), a.beta = p.memory.upload(in.beta);
  a.out = {p.memory.take<std::uint16_t>(in.v.size()), s.value_heads * s.dim};
  for (std::size_t b = 0; b < lengths.size(); ++b) p.states.push_back(p.memory.upload(initial));
  a.states = p.memory.upload(p.states);
}

void run(const Op<DeltaRuleArgs>& op, const DeltaRuleArgs& args, void* scratch) {
  const char* reason = op.unsupported_reason(args);
  require(!reason, "unsupported", reason);
  op.run(queue, args, scratch);
}

struct Errors {
  double out = 0, state = 0;
};
double relative(double difference, double reference) { return std::sqrt(difference / (reference + 1e-300)); }

/// ||x - ref|| / ||ref|| of outputs and final states over the heads named; NaN never passes.
Errors compare(const Shape& s, const Problem& p, const Inputs& in, const std::vector<float>& initial,
               const std::vector<int>& heads) {
  const auto out = download(static_cast<const std::uint16_t*>(p.args.out.data), in.v.size());
  const int d = s.dim;
  struct Sums { double o = 0, oref = 0, s = 0, sref = 0; };
  const std::size_t count = heads.size() * p.states.size();
  std::vector<Sums> sums(count);
  std::vector<int> first_bad(count, -1);
  std::vector<std::vector<float>> states;
  for (float* state : p.states) states.push_back(download(state, initial.size()));
  std::vector<std::thread> pool;
  std::size_t next = 0;
  const auto work = [&](std::size_t i) {
    const std::size_t b = i / heads.size();
    const int h = heads[i % heads.size()];
    std::vector<double> state(initial.begin() + h * d * d, initial.begin() + (h + 1) * d * d), ref;
    recurrence(s, in, p.offsets[b], p.offsets[b + 1], h, state, ref);
    for (std::size_t t = p.offsets[b]; t < static_cast<std::size_t>(p.offsets[b + 1]); ++t) {
      for (int v = 0; v < d; ++v) {
        const double r = ref[(t - p.offsets[b]) * d + v], x = value_of(out[(t * s.value_heads + h) * d + v]);
        sums[i].o += (x - r) * (x - r), sums[i].oref += r * r;
        if (!(std::fabs(x - r) < 0.5) && first_bad[i] < 0) first_bad[i] = static_cast<int>(t) - p.offsets[b];
      }
    }
    for (int j = 0; j < d * d; ++j) {
      const double x = states[b][h * d * d + j];
      sums[i].s += (x - state[j]) * (x - state[j]), sums[i].sref += state[j] * state[j];
    }
  };
  while (next < count) {
    pool.clear();
    for (int w = 0; w < 16 && next < count; ++w) pool.emplace_back(work, next++);
    for (auto& t : pool) t.join();
  }
  Errors worst;
  for (const Sums& x : sums) {
    const double o = relative(x.o, x.oref), st = relative(x.s, x.sref);
    const std::size_t i = static_cast<std::size_t>(&x - sums.data());
    if (!(o < 1.2e-2 && st < 1.2e-2)) {
      std::printf("  bad: sequence %zu head %d out %.2e state %.2e first bad token %d\n", i / heads.size(), heads[i % heads.size()], o, st,
                  first_bad[i]);
    }
    if (!(o <= worst.out)) worst.out = o == o ? o : 1e9;
    if (!(st <= worst.state)) worst.state = st == st ? st : 1e9;
  }
  return worst;
}

std::vector<int> all_heads(int n) {
  std::vector<int> heads(n);
  for (int i = 0; i < n; ++i) heads[i] = i;
  return heads;
}

std::vector<float> random_state(const Shape& s, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> state(static_cast<std::size_t>(s.value_heads) * s.dim * s.dim);
  for (float& x : state) x = normal(random);
  return state;
}

void check_case(const char* name, const Op<DeltaRuleArgs>& op, const Shape& s, const std::vector<int>& lengths, Gates gates,
                Phase phase, const std::vector<int>& heads) {
  std::size_t tokens = 0;
  for (int n : lengths) tokens += n;
  const Inputs in = make_inputs(s, tokens, 7 + static_cast<unsigned>(tokens), gates);
  const std::vector<float> initial = random_state(s, 5);
  Problem p;
  build(p, s, lengths, in, initial, phase);
  if (phase == Phase::kDecode && gates == Gates::kNone) p.args.log_decay = nullptr;  // as DeltaNet has it
  run(op, p.args, p.memory.take<char>(op.scratch_bytes(p.args)));
  finish();
  const Errors e = compare(s, p, in, initial, heads);
  std::printf("check %-34s HK %d HV %d T %zu: out %.2e state %.2e %s\n", name, s.key_heads, s.value_heads, tokens, e.out, e.state,
              verdict(e.out < 1.2e-2 && e.state < 1.2e-2));
  std::fflush(stdout);
}

/// Runs a batch, the same again, and one of its sequences alone: whether all outputs, and that sequence's states, are equal.
/// Its outputs begin at `first` of the batch's, which are `size` numbers.
bool same_bits(const Op<DeltaRuleArgs>& op, Problem& batch, Problem& again, Problem& alone, int sequence, std::size_t first,
               std::size_t size, std::size_t alone_size, std::size_t state_size) {
  void* scratch = batch.memory.take<char>(op.scratch_bytes(batch.args));
  for (Problem* p : {&batch, &again, &alone}) run(op, p->args, scratch);
  finish();
  const auto a = download(static_cast<const std::uint16_t*>(batch.args.out.data), size);
  const auto b = download(static_cast<const std::uint16_t*>(again.args.out.data), size);
  const auto c = download(static_cast<const std::uint16_t*>(alone.args.out.data), alone_size);
  const auto state = download(batch.states[sequence], state_size), state_alone = download(alone.states[0], state_size);
  return a == b && std::equal(c.begin(), c.end(), a.begin() + static_cast<std::ptrdiff_t>(first)) && state == state_alone;
}

/// A sequence alone and as the third of a batch: the same bits; and twice in a row.
void check_bits(const Op<DeltaRuleArgs>& op, const Shape& s) {
  const std::vector<int> lengths = {130, 7, 1000, 64};
  const Inputs in = make_inputs(s, 1201, 3, Gates::kModel);
  const std::vector<float> initial = random_state(s, 6);
  Problem batch, again, alone;
  build(batch, s, lengths, in, initial, Phase::kPrefill), build(again, s, lengths, in, initial, Phase::kPrefill);
  Inputs one;
  const auto cut = [&](const auto& from, std::size_t width) {
    return std::decay_t<decltype(from)>(from.begin() + 137 * width, from.begin() + 1137 * width);
  };
  one.q = cut(in.q, s.key_heads * s.dim), one.k = cut(in.k, s.key_heads * s.dim), one.v = cut(in.v, s.value_heads * s.dim);
  one.g = cut(in.g, s.value_heads), one.beta = cut(in.beta, s.value_heads);
  build(alone, s, {1000}, one, initial, Phase::kPrefill);
  const bool same = same_bits(op, batch, again, alone, 2, std::size_t{137} * s.value_heads * s.dim, in.v.size(), one.v.size(),
                              initial.size());
  std::printf("check bits: batch against alone, and repeated: %s\n", verdict(same, "equal", "DIFFERENT"));
}

/// A decode of many sequences, twice, and of the last of them alone: the same bits. Sizes take different forms of the
/// kernel.
void check_decode_bits(const Op<DeltaRuleArgs>& op, const Shape& s, int sequences) {
  const Inputs in = make_inputs(s, sequences, 11, Gates::kModel);
  const std::vector<float> initial = random_state(s, 8);
  Inputs one;
  const auto last = [&](const auto& from) {
    return std::decay_t<decltype(from)>(from.end() - static_cast<std::ptrdiff_t>(from.size() / sequences), from.end());
  };
  one.q = last(in.q), one.k = last(in.k), one.v = last(in.v), one.g = last(in.g), one.beta = last(in.beta);
  Problem batch, again, alone;
  build(batch, s, std::vector<int>(sequences, 1), in, initial, Phase::kDecode);
  build(again, s, std::vector<int>(sequences, 1), in, initial, Phase::kDecode);
  build(alone, s, {1}, one, initial, Phase::kDecode);
  const bool same = same_bits(op, batch, again, alone, sequences - 1, in.v.size() - one.v.size(), in.v.size(), one.v.size(),
                              initial.size());
  std::printf("check bits of a decode of %d: batch against alone, and repeated: %s\n", sequences,
              verdict(same, "equal", "DIFFERENT"));
}

/// Median microseconds of one call, the problems in turn.
double median_us(const Op<DeltaRuleArgs>& op, const std::vector<Problem*>& problems, int calls, int replays) {
  std::size_t bytes = 0;
  for (Problem* p : problems) bytes = std::max(bytes, op.scratch_bytes(p->args));
  void* scratch = problems[0]->memory.take<char>(bytes);
  return bench::median_us(calls, replays, [&](int i) { run(op, problems[i % problems.size()]->args, scratch); });
}

void time_prefill(const char* name, const Op<DeltaRuleArgs>& op, const Shape& s, int sequences, int length, double bar_ms_24) {
  const int sets = length * sequences <= 16384 ? 4 : 2;
  const std::vector<float> initial(static_cast<std::size_t>(s.value_heads) * s.dim * s.dim, 0.0f);
  // The random numbers of 8,192 tokens are repeated along the sequence: making more would take longer than measuring.
  const Inputs base = make_inputs(s, 8192, 1, Gates::kModel);
  const auto tile = [&](const auto& from, std::size_t tokens) {
    std::decay_t<decltype(from)> to;
    const std::size_t width = from.size() / 8192;
    to.reserve(tokens * width);
    while (to.size() < tokens * width) to.insert(to.end(), from.begin(), from.begin() + std::min(from.size(), tokens * width - to.size()));
    return to;
  };
  const std::size_t tokens = static_cast<std::size_t>(sequences) * length;
  const Inputs in{tile(base.q, tokens), tile(base.k, tokens), tile(base.v, tokens), tile(base.g, tokens), tile(base.beta, tokens)};
  std::vector<Problem> problems(sets);
  std::vector<Problem*> pointers;
  for (Problem& p : problems) build(p, s, std::vector<int>(sequences, length), in, initial, Phase::kPrefill), pointers.push_back(&p);
  const double us = median_us(op, pointers, 24, 9);
  std::printf("time %-8s prefill %d x %6d: %9.1f us a layer, x24 %8.2f ms (bar %.2f), scratch %.1f MB\n", name, sequences, length, us,
              us * 24e-3, bar_ms_24, op.scratch_bytes(problems[0].args) / 1e6);
  std::fflush(stdout);
}

void time_decode(const char* name, const Op<DeltaRuleArgs>& op, const Shape& s, int sequences, double bar_us) {
  const Inputs in = make_inputs(s, sequences, 1, Gates::kModel);
  const std::vector<float> initial = random_state(s, 1);
  const int sets = sequences >= 64 ? 3 : 48 / sequences + 1;
  std::vector<Problem> problems(sets);
  std::vector<Problem*> pointers;
  for (Problem& p : problems) build(p, s, std::vector<int>(sequences, 1), in, initial, Phase::kDecode), pointers.push_back(&p);
  const double us = median_us(op, pointers, 48, 15);
  const double bytes = 2.0 * sequences * s.value_heads * s.dim * s.dim * 4;
  std::printf("time %-8s decode B %3d: %8.2f us a layer (bar %.1f), %.2f TB/s\n", name, sequences, us, bar_us, bytes / us * 1e-6);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc > 1, "usage: gpu_gdn_bench PLUGIN [check] [check_decode] [prefill] [batch] [decode] [small] [profile]");
  open_plugin(argv[1]);
  const auto wants = [&](const char* what) { return argc == 2 || is_named(argc, argv, what); };
  const OpTable& ops = *backend->ops;
  const Shape qwen, small{2, 4, 128}, ungrouped{3, 3, 128}, wide{1, 3, 128};
  if (wants("check")) {
    check_case("gdn one chunk", ops.gdn, small, {64}, Gates::kNone, Phase::kPrefill, all_heads(4));
    check_case("gdn two chunks", ops.gdn, small, {128}, Gates::kModel, Phase::kPrefill, all_heads(4));
    check_case("gdn tail", ops.gdn, small, {500}, Gates::kModel, Phase::kPrefill, all_heads(4));
    check_case("gdn long, one sequence", ops.gdn, small, {1024}, Gates::kModel, Phase::kPrefill, all_heads(4));
    check_case("gdn ungrouped", ops.gdn, ungrouped, {1024}, Gates::kModel, Phase::kPrefill, all_heads(3));
    check_case("gdn two sequences", ops.gdn, small, {640, 640}, Gates::kModel, Phase::kPrefill, all_heads(4));
    check_case("gdn ragged", ops.gdn, small, {0, 1, 63, 64, 65, 500, 2, 0}, Gates::kModel, Phase::kPrefill, all_heads(4));
    check_case("gdn ragged harsh", ops.gdn, ungrouped, {0, 1, 63, 64, 65, 500, 2, 0}, Gates::kHarsh, Phase::kPrefill, all_heads(3));
    check_case("gdn three heads a key", ops.gdn, wide, {1000, 1, 200}, Gates::kModel, Phase::kPrefill, all_heads(3));
    check_case("gdn 16/32, 4096", ops.gdn, qwen, {4096}, Gates::kModel, Phase::kPrefill, {0, 5, 24, 31});
    // Heads 5 and 24 forget fastest: by 2^-84 and 2^-97 a chunk.
    check_case("gdn 16/32, 3 sequences", ops.gdn, qwen, {1000, 2000, 777}, Gates::kModel, Phase::kPrefill, {0, 5, 24, 31});
    check_case("gdn no decay, 2048", ops.gdn, qwen, {2048}, Gates::kNone, Phase::kPrefill, {0, 13, 31});
    check_bits(ops.gdn, qwen);
    check_case("gdn decode", ops.gdn, qwen, std::vector<int>(5, 1), Gates::kModel, Phase::kDecode, all_heads(32));
  }
  if (wants("check") || (argc > 2 && wants("check_decode"))) {
    for (const Shape& s : {ungrouped, small, wide, Shape{2, 8, 128}}) {
      check_case("gdn decode", ops.gdn, s, std::vector<int>(5, 1), Gates::kHarsh, Phase::kDecode,
                 all_heads(s.value_heads));
      check_case("delta_net decode", ops.delta_net, s, std::vector<int>(3, 1), Gates::kNone, Phase::kDecode,
                 all_heads(s.value_heads));
    }
    for (int sequences : {2, 8, 20, 64}) check_decode_bits(ops.gdn, qwen, sequences);
  }
  if (wants("decode")) {
    time_decode("gdn", ops.gdn, qwen, 1, 4.0), time_decode("gdn", ops.gdn, qwen, 8, 12);
    time_decode("gdn", ops.gdn, qwen, 64, 80), time_decode("gdn", ops.gdn, qwen, 256, 300);
  }
  if (wants("prefill")) {
    const double bars[][2] = {{4096, 4.66}, {8192, 9.26}, {16384, 18.5}, {32768, 36.8}, {65536, 73.9}, {131072, 75}};
    for (const auto& bar : bars) time_prefill("gdn", ops.gdn, qwen, 1, static_cast<int>(bar[0]), bar[1]);
  }
  if (wants("batch")) {
    time_prefill("gdn", ops.gdn, qwen, 8, 8192, 0.70 * 24), time_prefill("gdn", ops.gdn, qwen, 2, 8192, 0);
    time_prefill("gdn", ops.gdn, qwen, 4, 8192, 0);
  }
  if (argc > 2 && wants("small")) {  // for compute-sanitizer
    check_case("gdn ragged", ops.gdn, small, {0, 1, 63, 64, 65, 200}, Gates::kModel, Phase::kPrefill, all_heads(4));
    check_case("gdn in order", ops.gdn, qwen, {200, 1, 65}, Gates::kModel, Phase::kPrefill, {0, 31});
    check_case("gdn decode", ops.gdn, qwen, {1, 1}, Gates::kModel, Phase::kDecode, {0, 31});
  }
  if (argc > 2 && wants("profile")) {
    check_case("profile one", ops.gdn, qwen, {8192}, Gates::kModel, Phase::kPrefill, {0});
    check_case("profile two", ops.gdn, qwen, {8192, 8192}, Gates::kModel, Phase::kPrefill, {0});
  }
  return failed_checks ? 1 : 0;
}
