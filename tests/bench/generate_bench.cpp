// generate_bench MODEL [--backend B] [--threads N] [--prefill T] [--decode N] [--batch 1,8,64] [--bf16] [--sparse]
//
// A whole model: prefill and decode tokens/s, memory, and each operator's share of the time. Medians of 5 runs on random
// tokens after one warm-up. A program to run by hand, never a test. The shares are taken in a run of their own: observing
// every operator waits for it, which a GPU would not do.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <sstream>

#include "runtime/execution/stream.h"
#include "runtime/import/import_folder.h"
#include "runtime/model/cairn_file_reader.h"

namespace {

using namespace cairn;
using Clock = std::chrono::steady_clock;

[[noreturn]] void stop(const std::string& message) {
  std::fprintf(stderr, "generate_bench: %s\n", message.c_str());
  std::exit(1);
}

template <class T>
T take(Result<T> result) {
  if (!result.ok()) stop(result.status().message());
  return std::move(result).value();
}

void take(const Status& status) {
  if (!status.ok()) stop(status.message());
}

struct Options {
  std::string model, backend = "cpu";
  std::int32_t threads = 0;
  std::size_t prefill_tokens = 2048, decode_steps = 64;
  std::vector<int> batches = {1, 8, 64};
  bool bf16 = false, sparse = false, bf16_rows = false;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const auto value = [&] { return i + 1 < count ? arguments[++i] : (stop(name + " needs a value"), ""); };
    if (name == "--backend") options.backend = value();
    else if (name == "--threads") options.threads = std::atoi(value());
    else if (name == "--prefill") options.prefill_tokens = std::strtoull(value(), nullptr, 10);
    else if (name == "--decode") options.decode_steps = std::strtoull(value(), nullptr, 10);
    else if (name == "--bf16") options.bf16 = true;
    else if (name == "--bf16-rows") options.bf16_rows = true;
    else if (name == "--sparse") options.sparse = true;
    else if (name == "--batch") {
      options.batches.clear();
      std::stringstream list(value());
      for (std::string item; std::getline(list, item, ',');) options.batches.push_back(std::atoi(item.c_str()));
    } else if (name[0] != '-') options.model = name;
    else stop("unknown option " + name);
  }
  if (options.model.empty()) stop("usage: generate_bench MODEL [--backend B] [--threads N] [--prefill T] [--decode N] [--batch 1,8,64] [--bf16] [--bf16-rows] [--sparse]");
  return options;
}

/// Seconds of each operator; waits for the queue so that a GPU's time is its own.
class Shares : public StepObserver {
 public:
  explicit Shares(Stream& stream) : stream_(stream) {}
  void before(const char*) override { start_ = Clock::now(); }
  void after(const char* name) override {
    take(stream_.synchronize());
    seconds_[name] += std::chrono::duration<double>(Clock::now() - start_).count();
  }
  void print(const char* what) const {
    double total = 0;
    std::vector<std::pair<double, std::string>> rows;
    for (const auto& [name, seconds] : seconds_) {
      total += seconds;
      rows.push_back({seconds, name});
    }
    std::sort(rows.rbegin(), rows.rend());
    std::printf("  %s, share of operator time:", what);
    for (const auto& [seconds, name] : rows) std::printf(" %s %.1f %%", name.c_str(), 100 * seconds / total);
    std::printf("\n");
  }

 private:
  Stream& stream_;
  Clock::time_point start_;
  std::map<std::string, double> seconds_;
};

struct Bench {
  std::shared_ptr<const Device> device;
  std::shared_ptr<const Plan> plan;
  std::unique_ptr<Stream> stream;
  Options options;
  std::mt19937 random{1};

  std::vector<std::int32_t> tokens(std::size_t count) {
    std::vector<std::int32_t> ids(count);
    const auto range = static_cast<std::uint32_t>(std::min(plan->description().vocab_size, 256));
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % range);
    return ids;
  }
  std::unique_ptr<State> state() {
    StateOptions room;
    room.kv_capacity_tokens = static_cast<std::int64_t>(options.prefill_tokens + options.decode_steps + 64);
    return take(State::create(plan->state_layout(), device, room));
  }

  double prefill_seconds() {
    const std::vector<std::int32_t> ids = tokens(options.prefill_tokens);
    const std::unique_ptr<State> one = state();
    const SequenceInput input{one.get(), ids, LogitsWanted::kLast};
    SparsePrefill sparse;
    sparse.enabled = options.sparse;
    const auto start = Clock::now();
    take(stream->prefill({&input, 1}, sparse, nullptr));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  double decode_seconds(int batch) {
    std::vector<std::unique_ptr<State>> owned;
    std::vector<State*> states;
    for (int i = 0; i < batch; ++i) {
      owned.push_back(state());
      states.push_back(owned.back().get());
    }
    for (int i = 0; i < 3; ++i) take(stream->decode(states, tokens(static_cast<std::size_t>(batch))));
    const auto start = Clock::now();
    for (std::size_t i = 0; i < options.decode_steps; ++i) take(stream->decode(states, tokens(static_cast<std::size_t>(batch))));
    return std::chrono::duration<double>(Clock::now() - start).count();
  }
};

template <class Run>
double median_of_5(Run run) {
  std::vector<double> seconds;
  run();
  for (int i = 0; i < 5; ++i) seconds.push_back(run());
  std::sort(seconds.begin(), seconds.end());
  return seconds[2];
}

}  // namespace

int main(int count, char** arguments) {
  Bench bench;
  bench.options = parse(count, arguments);
  DeviceOptions device_options;
  device_options.thread_count = bench.options.threads;
  device_options.bf16_products = bench.options.bf16;
  bench.device = take(Device::open(bench.options.backend, device_options));
  const std::string& path = bench.options.model;
  const bool is_file = path.size() > 6 && path.compare(path.size() - 6, 6, ".cairn") == 0;
  auto description = std::make_shared<const ModelDescription>(is_file ? take(read_cairn_file(path)) : take(import_folder(path)));
  PlanOptions plan_options;
  plan_options.activations = bench.device->backend().host_memory ? DType::kF32 : bench.device->backend().activation_dtype;
  plan_options.sdm_rows = bench.options.bf16_rows ? DType::kBF16 : DType::kF32;
  bench.plan = take(Plan::build(description, bench.device, plan_options));
  bench.stream = take(Stream::create(bench.plan, {}));
  const DeviceDescription about = take(bench.device->describe());
  std::printf("%s on %s (%s), threads %d, weights %.1f MB, fresh state %.2f MB\n", description->name.c_str(),
              bench.device->backend().name, about.name, about.thread_count, bench.plan->weight_bytes() / 1e6,
              bench.plan->state_layout()->fresh_bytes(4096) / 1e6);

  const double prefill = median_of_5([&] { return bench.prefill_seconds(); });
  std::printf("prefill %zu tokens%s: %.1f tokens/s\n", bench.options.prefill_tokens, bench.options.sparse ? " sparse" : "",
              static_cast<double>(bench.options.prefill_tokens) / prefill);
  {
    Shares shares(*bench.stream);
    bench.stream->set_observer(&shares);
    bench.prefill_seconds();
    bench.stream->set_observer(nullptr);
    shares.print("prefill");
  }
  for (const int batch : bench.options.batches) {
    const double decode = median_of_5([&] { return bench.decode_seconds(batch); });
    std::printf("decode batch %d: %.1f tokens/s, %.3f ms a step\n", batch,
                static_cast<double>(batch) * static_cast<double>(bench.options.decode_steps) / decode,
                1e3 * decode / static_cast<double>(bench.options.decode_steps));
    Shares shares(*bench.stream);
    bench.stream->set_observer(&shares);
    bench.decode_seconds(batch);
    bench.stream->set_observer(nullptr);
    shares.print("decode");
  }
  return 0;
}
