#include <algorithm>
#include <chrono>
#include <cstdio>

#include "commands.h"
#include "progress_bar.h"
#include "text_table.h"

namespace cairn_cli {

namespace {

struct Measurement {
  int threads = 0, batch = 0;
  double prefill_tokens_per_second = 0, decode_tokens_per_second = 0;
  uint64_t state_bytes = 0;  ///< of one sequence at the end
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// `batch` states and the tokens that each reads: the same text, so that a run can be repeated anywhere.
class Workload {
 public:
  Workload(const Session& session, int batch, int prefill_tokens) : session_(session), stream_(make_stream(batch)) {
    const int each = std::max(1, prefill_tokens / batch);
    const auto bytes_only = static_cast<int32_t>(std::min(session.info().vocab_size, 256));
    for (int i = 0; i < each; ++i) tokens_.push_back(static_cast<int32_t>(32 + i * 7 % 90) % bytes_only);
    for (int i = 0; i < batch; ++i) states_.push_back(session.new_state());
    for (const State& state : states_) handles_.push_back(state.get());
  }

  /// Tokens per second of one prefill from empty states.
  double prefill() {
    std::vector<cairn_sequence> sequences;
    for (cairn_state* state : handles_) {
      check(cairn_state_reset(state), "reset");
      sequences.push_back({state, tokens_.data(), static_cast<int64_t>(tokens_.size()), CAIRN_LOGITS_LAST, 0});
    }
    cairn_batch batch = CAIRN_BATCH_INIT;
    batch.sequences = sequences.data();
    batch.sequence_count = static_cast<int32_t>(sequences.size());
    batch.progress = cancel_when_interrupted;
    const auto start = std::chrono::steady_clock::now();
    check(cairn_prefill(stream_.get(), &batch), "prefill");
    check(cairn_stream_synchronize(stream_.get()), "prefill");
    return static_cast<double>(tokens_.size() * handles_.size()) / seconds_since(start);
  }

  double decode(int steps) {
    const std::vector<int32_t> tokens(handles_.size(), tokens_[0]);
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < steps && !interrupted(); ++step) {
      check(cairn_decode(stream_.get(), handles_.data(), tokens.data(), static_cast<int32_t>(tokens.size())), "decode");
    }
    check(cairn_stream_synchronize(stream_.get()), "decode");
    return static_cast<double>(handles_.size()) * steps / seconds_since(start);
  }

  uint64_t state_bytes() const { return info_of(handles_[0]).bytes_held; }

 private:
  Stream make_stream(int batch) const {
    cairn_stream_options options = CAIRN_STREAM_OPTIONS_INIT;
    options.max_sequences = batch;
    cairn_stream* stream = nullptr;
    check(cairn_stream_create(session_.model(), &options, &stream), "stream");
    return Stream(stream);
  }

  const Session& session_;
  Stream stream_;
  std::vector<int32_t> tokens_;
  std::vector<State> states_;
  std::vector<cairn_state*> handles_;
};

Measurement measure(const Session& session, int threads, int batch, const BenchArguments& arguments) {
  Workload workload(session, batch, arguments.prefill_tokens);
  workload.prefill();  // warm up: scratch, packed weights, threads
  workload.decode(1);
  std::vector<double> prefill, decode;
  for (int i = 0; i < arguments.repeats && !interrupted(); ++i) {
    prefill.push_back(workload.prefill());
    decode.push_back(workload.decode(arguments.decode_tokens));
  }
  if (interrupted()) throw Failure("interrupted", kExitInterrupted);
  return {threads, batch, median(prefill), median(decode), workload.state_bytes()};
}

void print_json(const Session& session, const BenchArguments& arguments, const std::vector<Measurement>& results) {
  std::printf("{\"model\": \"%s\", \"backend\": \"%s\", \"device\": \"%s\", \"prefill_tokens\": %d, "
              "\"decode_tokens\": %d, \"repeats\": %d, \"results\": [",
              session.info().name, session.device_info().backend, session.device_info().name, arguments.prefill_tokens,
              arguments.decode_tokens, arguments.repeats);
  const char* separator = "";
  for (const Measurement& m : results) {
    std::printf("%s\n  {\"threads\": %d, \"batch\": %d, \"prefill_tokens_per_second\": %.1f, "
                "\"decode_tokens_per_second\": %.1f, \"state_bytes\": %llu}",
                separator, m.threads, m.batch, m.prefill_tokens_per_second, m.decode_tokens_per_second,
                static_cast<unsigned long long>(m.state_bytes));
    separator = ",";
  }
  std::printf("\n]}\n");
}

void print_table(const Session& session, const BenchArguments& arguments, const std::vector<Measurement>& results) {
  std::printf("%s on %s (%s), prefill %d tokens a batch, decode %d a sequence, median of %d\n\n", session.info().name,
              session.device_info().backend, session.device_info().name, arguments.prefill_tokens,
              arguments.decode_tokens, arguments.repeats);
  TextTable table({"threads", "batch", "prefill tokens/s", "decode tokens/s", "memory of one"});
  for (const Measurement& m : results) {
    table.add({std::to_string(m.threads), std::to_string(m.batch),
               with_commas(static_cast<uint64_t>(m.prefill_tokens_per_second)),
               with_commas(static_cast<uint64_t>(m.decode_tokens_per_second)), human_bytes(m.state_bytes)});
  }
  std::printf("%s", table.text().c_str());
}

}  // namespace

void run_bench(const BenchArguments& arguments) {
  for (const int value : arguments.batches) {
    if (value < 1) throw Failure("--batch " + std::to_string(value) + ": must be at least 1", kExitUsage);
  }
  std::vector<Measurement> results;
  std::unique_ptr<Session> session;
  for (const int threads : arguments.threads) {
    ModelArguments model = arguments.model;
    model.threads = threads;
    session = std::make_unique<Session>(model);
    for (const int batch : arguments.batches) results.push_back(measure(*session, threads, batch, arguments));
    if (session->device_info().thread_count == 0) break;  // a GPU: threads make no difference
  }
  if (!session) throw Failure("--thread-counts: name at least one", kExitUsage);
  arguments.json ? print_json(*session, arguments, results) : print_table(*session, arguments, results);
}

}  // namespace cairn_cli
