// op_bench [--backend NAME] [--threads N] [--reps N] [--json] OP [SIZE=VALUE ...] [, OP ...]
//
// One operator of ops.inc at a time, on any backend (linked in, or a plug-in in CAIRN_BACKEND_PATH): median time, GB/s
// and GFLOP/s of what it cannot avoid, and the share of the limit that this same run measured: the slower of its bytes
// at the speed of a plain read (host memory) or copy (device memory), and its products at the speed of a large f32 or
// native matrix product. "all" runs every operator by default sizes.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/bench/op_bench_cases.h"
#include "tests/support/backend_access.h"

namespace cairn::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string backend = "cpu";
  std::int32_t threads = 0;
  int repetitions = 0;  // 0: as many as fit half a second, 5 to 201
  bool json = false;
};

struct Limits {
  double bytes_per_second = 0, flops_per_second = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median_seconds(Rig& rig, const std::function<void()>& run, int repetitions) {
  run();
  rig.synchronize();
  Clock::time_point start = Clock::now();
  run();
  rig.synchronize();
  const double first = seconds_since(start);
  const int count = repetitions ? repetitions : static_cast<int>(std::clamp(0.5 / std::max(first, 1e-7), 5.0, 201.0));
  std::vector<double> times;
  for (int i = 0; i < count; ++i) {
    start = Clock::now();
    run();
    rig.synchronize();
    times.push_back(seconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + count / 2, times.end());
  return times[static_cast<std::size_t>(count / 2)];
}

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
  constexpr std::size_t kBytes = 256u << 20;
  void *from = rig.allocate(kBytes), *to = rig.allocate(kBytes);
  BackendError error;
  const auto copy = [&] { rig.backend().copy(rig.queue(), to, from, kBytes, CopyKind::kDeviceToDevice, &error); };
  return 2.0 * kBytes / median_seconds(rig, copy, 9);
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
  void* scratch = scratch_bytes ? rig.allocate(scratch_bytes) : nullptr;
  c.run = [&rig, &op, args, scratch] { op.run(rig.queue(), *args, scratch); };
  return c;
}

Limits measure_limits(const Backend& backend, std::int32_t threads) {
  Rig rig(backend, threads);
  Limits limits;
  limits.bytes_per_second = backend.host_memory ? read_bandwidth(std::max(1, rig.thread_count())) : copy_bandwidth(rig);
  Shape shape({{"T", 384}, {"D", 1024}, {"N", 2048}, {"W", static_cast<std::int64_t>(rig.dtype())}});
  shape.op = "linear";
  const Case product = make_case(rig, "linear", shape);
  limits.flops_per_second = product.flops / median_seconds(rig, product.run, 5);
  return limits;
}

void report(const Options& options, const std::string& op, const Shape& shape, const Case& c, double seconds,
            int threads, const Limits& limits) {
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
        "{\"op\": \"%s\", \"backend\": \"%s\", \"threads\": %d, \"sizes\": {%s}, \"median_us\": %.2f, \"gb_s\": %.2f, "
        "\"gflop_s\": %.1f, \"limit_us\": %.2f, \"share_of_limit\": %.3f}\n",
        op.c_str(), options.backend.c_str(), threads, sizes.c_str(), seconds * 1e6, gigabytes, gigaflops, limit * 1e6,
        share);
  } else {
    std::printf("%-18s %12.1f us %8.2f GB/s %8.1f GFLOP/s %6.1f %%  %s\n", op.c_str(), seconds * 1e6, gigabytes,
                gigaflops, 100 * share, sizes.c_str());
  }
  std::fflush(stdout);
}

void bench(const Backend& backend, const Options& options, const std::string& op,
           std::map<std::string, std::int64_t> sizes, const Limits& limits) {
  Rig rig(backend, options.threads);
  Shape shape(std::move(sizes));
  shape.op = op;
  const Case c = make_case(rig, op, shape);
  if (!c.trouble.empty()) {
    std::fprintf(stderr, "op_bench: %s\n", c.trouble.c_str());
    return;
  }
  report(options, op, shape, c, median_seconds(rig, c.run, options.repetitions), rig.thread_count(), limits);
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
    const std::size_t equals = word.find('=');
    if (word == "--backend")
      options.backend = value();
    else if (word == "--threads")
      options.threads = std::atoi(value());
    else if (word == "--reps")
      options.repetitions = std::atoi(value());
    else if (word == "--json")
      options.json = true;
    else if (word == "all")
      for (const std::string& name : op_names()) cases.push_back({name, {}});
    else if (equals != std::string::npos && !cases.empty())
      cases.back().second[word.substr(0, equals)] = std::atoll(word.c_str() + equals + 1);
    else if (word != ",")
      cases.push_back({word, {}});
  }
  std::string reason;
  const Backend* backend = test::find_backend(options.backend, &reason);
  if (!backend || cases.empty()) {
    std::fprintf(
        stderr,
        "op_bench: %s\nusage: op_bench [--backend B] [--threads N] [--reps N] [--json] OP|all [SIZE=VALUE ...]\n",
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
