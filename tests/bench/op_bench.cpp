// op_bench [--backend NAME] [--threads N] [--reps N] [--sets N] [--json] OP [SIZE=VALUE ...] [, OP ...]
//
// One operator of ops.inc at a time, on any backend (linked in, or a plug-in in CAIRN_BACKEND_PATH): median time, GB/s
// and GFLOP/s of what it cannot avoid, and the share of the limit that this same run measured: the slower of its bytes
// at the speed of a plain read (host memory) or copy (device memory), and its products at the speed of a large f32 or
// native matrix product. "all" runs every operator by default sizes. phase=decode means T=1; types have names: W=i4.
// --sets: argument sets used in turn. Where the backend records: as many as outgrow a cache, at most 24; else one.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/bench/op_bench_cases.h"
#include "tests/bench/op_bench_timing.h"
#include "tests/support/backend_access.h"

namespace cairn::bench {
namespace {

struct Options {
  std::string backend = "cpu";
  std::int32_t threads = 0;
  int repetitions = 0;  // 0: as many as fit half a second, 5 to 201
  int sets = 0;
  bool json = false;
};

struct Limits {
  double bytes_per_second = 0, flops_per_second = 0;
};

/// Bytes per second of `threads` threads that read 256 MiB each once, best of three.
double read_bandwidth(int threads) {
  constexpr std::size_t kWords = 32u << 20;
  std::vector<std::vector<std::uint64_t>> blocks(static_cast<std::size_t>(threads),
                                                 std::vector<std::uint64_t>(kWords, 1));
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    std::atomic<std::uint64_t> keep{0};
    const Clock::time_point start = Clock::now();
    std::vector<std::thread> readers;
    for (const auto& block : blocks) {
      readers.emplace_back([&block, &keep] {
        std::uint64_t sums[8] = {};
        for (std::size_t i = 0; i < kWords; i += 8) {
          for (int j = 0; j < 8; ++j) sums[j] += block[i + static_cast<std::size_t>(j)];
        }
        for (const std::uint64_t sum : sums) keep += sum;
      });
    }
    for (std::thread& reader : readers) reader.join();
    best = std::max(best, static_cast<double>(kWords) * 8 * threads / seconds_since(start));
  }
  return best;
}

double copy_bandwidth(Rig& rig) {
  const std::size_t bytes = has_recordings(rig.backend()) ? 1u << 30 : 64u << 20;
  void *from = rig.allocate(bytes), *to = rig.allocate(bytes);
  const auto copy = [&] { rig.copy(to, from, bytes, CopyKind::kDeviceToDevice); };
  return 2.0 * static_cast<double>(bytes) / median_seconds(rig, nullptr, copy, 9);
}

template <class Args>
Case bind(Rig& rig, const Op<Args>& op, Shape& shape) {
  auto args = std::make_shared<Args>();
  Case c = make_args(rig, shape, *args);
  if (const char* reason = op.unsupported_reason(*args)) {
    c.trouble = reason;
    return c;
  }
  const std::size_t scratch_bytes = op.scratch_bytes(*args);
  rig.scratch(scratch_bytes);
  c.run = [&rig, &op, args, scratch_bytes] { op.run(rig.queue(), *args, rig.scratch(scratch_bytes)); };
  return c;
}

Limits measure_limits(const Backend& backend, std::int32_t threads) {
  Rig rig(backend, threads);
  Limits limits;
  limits.bytes_per_second =
      backend.host_memory ? read_bandwidth(std::max(1, rig.description().thread_count)) : copy_bandwidth(rig);
  const bool is_large = has_recordings(backend);
  Shape shape({{"T", is_large ? 8192 : 384},
               {"D", is_large ? 4096 : 1024},
               {"N", is_large ? 8192 : 2048},
               {"W", static_cast<std::int64_t>(rig.dtype())}});
  shape.op = "linear";
  const std::vector<Case> product = {make_case(rig, "linear", shape)};
  limits.flops_per_second = product[0].flops / time_cases(rig, product, 5).seconds;
  return limits;
}

void report(const Options& options, const std::string& op, const Shape& shape, const std::vector<Case>& cases,
            const Timing& timing, int threads, const Limits& limits) {
  const Case& c = cases[0];
  const double seconds = timing.seconds;
  std::string sizes;
  for (const auto& [name, value] : shape.used()) {
    sizes += (sizes.empty()  ? ""
              : options.json ? ", "
                             : " ") +
             (options.json ? "\"" + name + "\": " : name + "=") + std::to_string(value);
  }
  const double limit = std::max(c.bytes / limits.bytes_per_second, c.flops / limits.flops_per_second),
               share = limit / seconds;
  const double gigabytes = c.bytes / seconds / 1e9, gigaflops = c.flops / seconds / 1e9;
  if (options.json) {
    std::printf(
        "{\"op\": \"%s\", \"backend\": \"%s\", \"threads\": %d, \"sizes\": {%s}, \"sets\": %zu, \"timed_by\": \"%s\", "
        "\"median_us\": %.2f, \"gb_s\": %.2f, \"gflop_s\": %.1f, \"limit_us\": %.2f, \"share_of_limit\": %.3f}\n",
        op.c_str(), options.backend.c_str(), threads, sizes.c_str(), cases.size(),
        timing.is_recorded ? "recording" : "calls", seconds * 1e6, gigabytes, gigaflops, limit * 1e6, share);
  } else {
    std::printf("%-18s %12.2f us %8.2f GB/s %8.1f GFLOP/s %6.1f %%  %s\n", op.c_str(), seconds * 1e6, gigabytes,
                gigaflops, 100 * share, sizes.c_str());
  }
  std::fflush(stdout);
}

/// Sets of arguments after the first: together they outgrow every cache, as the layers of a model do.
std::size_t wanted_sets(const Rig& rig, const Options& options, const Case& first) {
  constexpr double kRotatedBytes = 512e6, kMostAllocatedBytes = 40e9;
  if (options.sets > 0) return static_cast<std::size_t>(options.sets);
  if (!has_recordings(rig.backend())) return 1;
  const double fitting = kMostAllocatedBytes / static_cast<double>(rig.allocated_bytes() + 1);
  return static_cast<std::size_t>(
      std::clamp(std::min(std::ceil(kRotatedBytes / std::max(1.0, first.bytes)), fitting), 1.0, 24.0));
}

void bench(const Backend& backend, const Options& options, const std::string& op,
           std::map<std::string, std::int64_t> sizes, const Limits& limits) {
  Rig rig(backend, options.threads);
  Shape shape(std::move(sizes));
  shape.op = op;
  std::vector<Case> cases = {make_case(rig, op, shape)};
  if (!cases[0].trouble.empty()) {
    std::fprintf(stderr, "op_bench: %s\n", cases[0].trouble.c_str());
    return;
  }
  for (const std::size_t count = wanted_sets(rig, options, cases[0]); cases.size() < count;) {
    cases.push_back(make_case(rig, op, shape));
  }
  report(options, op, shape, cases, time_cases(rig, cases, options.repetitions), rig.description().thread_count,
         limits);
}

/// A number, or the name of an element type.
std::int64_t size_value(const char* text) {
  for (int type = 0; dtype_bits(static_cast<DType>(type)) > 0; ++type) {
    if (std::strcmp(text, dtype_name(static_cast<DType>(type))) == 0) return type;
  }
  return std::atoll(text);
}

void set_size(std::map<std::string, std::int64_t>& sizes, const std::string& word) {
  const std::size_t equals = word.find('=');
  if (word == "phase=decode") {
    sizes["T"] = 1;
  } else if (word != "phase=prefill") {
    sizes[word.substr(0, equals)] = size_value(word.c_str() + equals + 1);
  }
}

}  // namespace

Case make_case(Rig& rig, const std::string& op, Shape& shape) {
#define CAIRN_OP(field, Args, what) \
  if (op == #field) return bind(rig, rig.ops().field, shape);
#include "backends/interface/ops.inc"
#undef CAIRN_OP
  Case none;
  none.trouble = "no operator is called '" + op + "'";
  return none;
}

std::vector<std::string> op_names() {
  return {
#define CAIRN_OP(field, Args, what) #field,
#include "backends/interface/ops.inc"
#undef CAIRN_OP
  };
}

int run(int argc, char** argv) {
  Options options;
  std::vector<std::pair<std::string, std::map<std::string, std::int64_t>>> cases;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (word == "--backend")
      options.backend = value();
    else if (word == "--threads")
      options.threads = std::atoi(value());
    else if (word == "--reps")
      options.repetitions = std::atoi(value());
    else if (word == "--sets")
      options.sets = std::atoi(value());
    else if (word == "--json")
      options.json = true;
    else if (word == "all")
      for (const std::string& name : op_names()) cases.push_back({name, {}});
    else if (word.find('=') != std::string::npos && !cases.empty())
      set_size(cases.back().second, word);
    else if (word != ",")
      cases.push_back({word, {}});
  }
  std::string reason;
  const Backend* backend = test::find_backend(options.backend, &reason);
  if (!backend || cases.empty()) {
    std::fprintf(stderr,
                 "op_bench: %s\nusage: op_bench [--backend B] [--threads N] [--reps N] [--sets N] [--json] OP|all "
                 "[SIZE=VALUE ...]\n",
                 backend ? "no operator named" : reason.c_str());
    return 2;
  }
  const Limits limits = measure_limits(*backend, options.threads);
  std::fprintf(stderr, "limits of this run: %.1f GB/s, %.0f GFLOP/s\n", limits.bytes_per_second / 1e9,
               limits.flops_per_second / 1e9);
  for (const auto& [op, sizes] : cases) bench(*backend, options, op, sizes, limits);
  return 0;
}

}  // namespace cairn::bench

int main(int argc, char** argv) { return cairn::bench::run(argc, argv); }
