// golden_check DIR [--backend NAME] [--model PATH] [--only ID]
// A whole model through the public C API, against the numbers in DIR: golden.safetensors (Hugging Face: input_ids,
// prefill_logits, greedy_ids, decode_logits), or eval/expected.safetensors or expected.safetensors (Wayfarer:
// <id>.tokens, .logits, .logits64, .greedy). The model: DIR with its config.json, or the .cairn file in DIR, or PATH.
// Exit 0: all passed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cairn/cairn.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/tolerance.h"

namespace {

using cairn::test::FileTensors;
using Logits = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

/// Ends the program with the library's message when a call failed.
void require(cairn_status status, const char* what) {
  if (status == CAIRN_STATUS_OK) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, cairn_status_name(status), cairn_last_error_message());
  std::exit(2);
}

/// A model with one state and one stream.
class Session {
 public:
  Session(const std::string& path, const std::string& backend) {
    cairn_device_options options = CAIRN_DEVICE_OPTIONS_INIT;
    options.backend = backend.c_str();
    require(cairn_device_open(&options, &device_), "device");
    cairn_model_options exact = CAIRN_MODEL_OPTIONS_INIT;
    exact.precision = CAIRN_PRECISION_F32;  // the goldens are f32: a GPU's default of bf16 activations would not meet them
    require(cairn_model_load(device_, path.c_str(), &exact, &model_), path.c_str());
    require(cairn_stream_create(model_, nullptr, &stream_), "stream");
    cairn_model_info info = CAIRN_MODEL_INFO_INIT;
    require(cairn_model_get_info(model_, &info), "model info");
    vocab_ = static_cast<std::size_t>(info.vocab_size);
  }
  ~Session() {
    cairn_state_release(state_);
    cairn_stream_release(stream_);
    cairn_model_release(model_);
    cairn_device_release(device_);
  }

  std::size_t vocab() const { return vocab_; }

  /// Reads `tokens` into a fresh state; logits after the last `rows` of them.
  Logits prefill(const Tokens& tokens, std::size_t rows) {
    cairn_state_release(state_);
    cairn_state_options options = CAIRN_STATE_OPTIONS_INIT;
    options.kv_capacity_tokens = static_cast<std::int64_t>(tokens.size()) + 256;
    require(cairn_state_create(model_, &options, &state_), "state");
    cairn_sequence sequence = {state_, tokens.data(), static_cast<std::int64_t>(tokens.size()), CAIRN_LOGITS_ALL, 0};
    cairn_batch batch = CAIRN_BATCH_INIT;
    batch.sequences = &sequence;
    batch.sequence_count = 1;
    require(cairn_prefill(stream_, &batch), "prefill");
    return fetch(tokens.size() - rows, rows);
  }

  Logits decode(std::int32_t token) {
    require(cairn_decode(stream_, &state_, &token, 1), "decode");
    return fetch(0, 1);
  }

 private:
  Logits fetch(std::size_t first, std::size_t count) {
    Logits logits;
    for (std::size_t row = first; row < first + count; ++row) {
      const float* values = nullptr;
      std::size_t width = 0;
      require(cairn_stream_get_logits(stream_, static_cast<std::int64_t>(row), &values, &width), "logits");
      logits.insert(logits.end(), values, values + width);
    }
    return logits;
  }

  cairn_device* device_ = nullptr;
  cairn_model* model_ = nullptr;
  cairn_stream* stream_ = nullptr;
  cairn_state* state_ = nullptr;
  std::size_t vocab_ = 0;
};

std::int32_t argmax(const float* row, std::size_t vocab) {
  return static_cast<std::int32_t>(std::max_element(row, row + vocab) - row);
}

struct Difference {
  double relative_rms = 0, max_abs = 0, median_abs = 0;
  std::size_t other_argmax = 0;  ///< rows whose largest logit is another one
};

Difference compare(const Logits& got, const Logits& want, std::size_t vocab) {
  Difference d;
  double square = 0, reference = 0;
  std::vector<double> absolute;
  if (got.size() != want.size()) return {INFINITY, INFINITY, INFINITY, want.size() / vocab};
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = std::isfinite(got[i]) ? std::fabs(static_cast<double>(got[i]) - want[i]) : INFINITY;
    square += difference * difference;
    reference += static_cast<double>(want[i]) * want[i];
    absolute.push_back(difference);
  }
  for (std::size_t row = 0; row < want.size(); row += vocab)
    d.other_argmax += argmax(&got[row], vocab) != argmax(&want[row], vocab);
  d.relative_rms = std::sqrt(square / reference);
  std::nth_element(absolute.begin(), absolute.begin() + static_cast<std::ptrdiff_t>(absolute.size() / 2),
                   absolute.end());
  d.median_abs = absolute[absolute.size() / 2];
  d.max_abs = *std::max_element(absolute.begin(), absolute.end());
  return d;
}

bool report(bool passed, const std::string& name, const Difference& d) {
  std::printf("%s %-24s relative rms %.1e, max %.1e, median %.1e, other argmax in %zu rows\n", passed ? "ok  " : "FAIL",
              name.c_str(), d.relative_rms, d.max_abs, d.median_abs, d.other_argmax);
  return passed;
}

bool report_greedy(const std::string& name, const Tokens& got, const Tokens& want) {
  std::size_t same = 0;
  while (same < want.size() && same < got.size() && got[same] == want[same]) ++same;
  const bool passed = got == want;
  std::printf("%s %-24s greedy: %zu of %zu tokens\n", passed ? "ok  " : "FAIL", name.c_str(), same, want.size());
  return passed;
}

Tokens tokens_of(const FileTensors& file, const std::string& name) {
  const std::vector<std::int64_t> wide = file.at(name).integers();
  return {wide.begin(), wide.end()};
}

/// decode_logits[i] follow greedy_ids[i].
bool check_hugging_face(const FileTensors& file, Session& session) {
  const Tokens input = tokens_of(file, "input_ids"), greedy = tokens_of(file, "greedy_ids");
  const std::size_t vocab = session.vocab();
  const Logits prefill = session.prefill(input, input.size());
  const auto close = [](const Difference& d) {
    return d.relative_rms <= cairn::test::kGoldenRelativeRms && d.other_argmax == 0;
  };
  const Difference first = compare(prefill, file.at("prefill_logits").floats(), vocab);
  bool passed = report(close(first), "prefill", first);
  Logits decoded, last(prefill.end() - static_cast<std::ptrdiff_t>(vocab), prefill.end());
  Tokens chosen;
  for (const std::int32_t token : greedy) {
    chosen.push_back(argmax(last.data(), vocab));
    last = session.decode(token);
    decoded.insert(decoded.end(), last.begin(), last.end());
  }
  const Difference second = compare(decoded, file.at("decode_logits").floats(), vocab);
  passed = report(close(second), "decode", second) && passed;
  return report_greedy("decode", chosen, greedy) && passed;
}

bool check_wayfarer(const FileTensors& file, const std::string& id, Session& session) {
  const std::size_t vocab = session.vocab();
  const Logits want = file.at(id + (file.count(id + ".logits64") ? ".logits64" : ".logits")).floats();
  const Logits got = session.prefill(tokens_of(file, id + ".tokens"), want.size() / vocab);
  const Difference d = compare(got, want, vocab);
  bool passed = report(d.max_abs <= cairn::test::kWayfarerMaxAbs && d.median_abs < cairn::test::kWayfarerMedianAbs &&
                           d.other_argmax == 0,
                       id, d);
  const Tokens greedy = tokens_of(file, id + ".greedy");
  Tokens chosen;
  Logits last(got.end() - static_cast<std::ptrdiff_t>(vocab), got.end());
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    chosen.push_back(argmax(last.data(), vocab));
    if (i + 1 < greedy.size()) last = session.decode(chosen.back());
  }
  return report_greedy(id, chosen, greedy) && passed;
}

struct Options {
  std::string folder, backend = "cpu", model, only;
};

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (!std::strcmp(argv[i], "--backend") && has_value)
      options->backend = argv[++i];
    else if (!std::strcmp(argv[i], "--model") && has_value)
      options->model = argv[++i];
    else if (!std::strcmp(argv[i], "--only") && has_value)
      options->only = argv[++i];
    else if (argv[i][0] != '-' && options->folder.empty())
      options->folder = argv[i];
    else
      return false;
  }
  return !options->folder.empty();
}

/// DIR itself where it holds config.json, else the .cairn file in it.
std::string find_model(const std::string& folder) {
  std::error_code error;
  if (std::filesystem::exists(folder + "/config.json", error)) return folder;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".cairn") return entry.path();
  }
  return folder;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options))
    return std::fprintf(stderr, "usage: golden_check DIR [--backend NAME] [--model PATH] [--only ID]\n"), 2;
  FileTensors file;
  std::string reason;
  bool found = false;
  for (const char* name : {"/golden.safetensors", "/eval/expected.safetensors", "/expected.safetensors"}) {
    if (!found && std::filesystem::exists(options.folder + name)) {
      if (!cairn::test::read_safetensors(options.folder + name, &file, &reason))
        return std::fprintf(stderr, "%s\n", reason.c_str()), 2;
      found = true;
    }
  }
  if (!found)
    return std::fprintf(stderr, "%s: no golden.safetensors, eval/expected.safetensors or expected.safetensors\n",
                        options.folder.c_str()),
           2;
  Session session(options.model.empty() ? find_model(options.folder) : options.model, options.backend);
  int passed = 0, failed = 0;
  if (file.count("input_ids")) (check_hugging_face(file, session) ? passed : failed) += 1;
  for (const auto& [name, unused] : file) {
    if (!name.ends_with(".tokens")) continue;
    const std::string id = name.substr(0, name.size() - std::strlen(".tokens"));
    if (!options.only.empty() && id != options.only) continue;
    (check_wayfarer(file, id, session) ? passed : failed) += 1;
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
