// golden_check DIR [--backend NAME] [--other NAME] [--model PATH] [--only ID]
// A whole model through the public C API, against the numbers in DIR: golden.safetensors (Hugging Face: input_ids,
// prefill_logits, greedy_ids, decode_logits), or eval/expected.safetensors or expected.safetensors (Wayfarer:
// <id>.tokens, .logits, .logits64, .greedy). The model: DIR with its config.json, or the .cairn file in DIR, or PATH.
// Hugging Face goldens are also decoded from a snapshot of the middle, to the same bits. With --other the second half is
// decoded on that backend from this one's snapshot, and the last quarter back on this one. Exit 0: all passed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "tests/golden/model_session.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/tolerance.h"

namespace {

using cairn::test::FileTensors;
using cairn::test::Logits;
using cairn::test::ModelSession;
using cairn::test::Tokens;

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

/// The second half of `decoded` again, from a snapshot that was taken before it: the same bits.
bool report_resumed(const std::vector<char>& snapshot, const Tokens& greedy, std::size_t first, const Logits& decoded,
                    ModelSession& session) {
  session.restore(snapshot);
  std::size_t same = 0;
  for (std::size_t i = first; i < greedy.size(); ++i) {
    const Logits again = session.decode(greedy[i]);
    same += std::memcmp(again.data(), &decoded[i * session.vocab()], again.size() * sizeof(float)) == 0;
  }
  const bool passed = same == greedy.size() - first;
  std::printf("%s %-24s %zu of %zu steps after step %zu have the same bits (%zu bytes)\n", passed ? "ok  " : "FAIL",
              "resumed", same, greedy.size() - first, first, snapshot.size());
  return passed;
}

/// A decode from the middle of `tokens` on: from `snapshot`, which `session` took there, on `other`; its last part back on
/// `session`, from a snapshot of `other`. Logits after each token.
Logits decode_there_and_back(const std::vector<char>& snapshot, const Tokens& tokens, ModelSession& session,
                             ModelSession& other) {
  const std::size_t half = tokens.size() / 2, back = half + (tokens.size() - half + 1) / 2;
  Logits decoded;
  ModelSession* at = &other;
  at->restore(snapshot);
  for (std::size_t i = half; i < tokens.size(); ++i) {
    if (i == back) {
      session.restore(other.save());
      at = &session;
    }
    const Logits logits = at->decode(tokens[i]);
    decoded.insert(decoded.end(), logits.begin(), logits.end());
  }
  return decoded;
}

/// decode_logits[i] follow greedy_ids[i].
bool check_hugging_face(const FileTensors& file, ModelSession& session, ModelSession* other) {
  const Tokens input = tokens_of(file, "input_ids"), greedy = tokens_of(file, "greedy_ids");
  const std::size_t vocab = session.vocab(), half = greedy.size() / 2;
  const Logits prefill = session.prefill(input, input.size());
  const auto close = [](const Difference& d) {
    return d.relative_rms <= cairn::test::kGoldenRelativeRms && d.other_argmax == 0;
  };
  const Difference first = compare(prefill, file.at("prefill_logits").floats(), vocab);
  bool passed = report(close(first), "prefill", first);
  Logits decoded, last(prefill.end() - static_cast<std::ptrdiff_t>(vocab), prefill.end());
  Tokens chosen;
  std::vector<char> snapshot;
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    if (i == half) snapshot = session.save();
    chosen.push_back(argmax(last.data(), vocab));
    last = session.decode(greedy[i]);
    decoded.insert(decoded.end(), last.begin(), last.end());
  }
  const Difference second = compare(decoded, file.at("decode_logits").floats(), vocab);
  passed = report(close(second), "decode", second) && passed;
  passed = report_greedy("decode", chosen, greedy) && passed;
  passed = report_resumed(snapshot, greedy, half, decoded, session) && passed;
  if (!other) return passed;
  const Logits want = file.at("decode_logits").floats();
  const Difference moved = compare(decode_there_and_back(snapshot, greedy, session, *other),
                                   {want.begin() + static_cast<std::ptrdiff_t>(half * vocab), want.end()}, vocab);
  return report(close(moved), "moved and back", moved) && passed;
}

bool check_wayfarer(const FileTensors& file, const std::string& id, ModelSession& session, ModelSession* other) {
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
  std::vector<char> snapshot;
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    if (i == greedy.size() / 2) snapshot = session.save();
    chosen.push_back(argmax(last.data(), vocab));
    if (i + 1 < greedy.size()) last = session.decode(chosen.back());
  }
  passed = report_greedy(id, chosen, greedy) && passed;
  if (!other || greedy.empty()) return passed;
  const std::size_t half = greedy.size() / 2;
  const Logits moved = decode_there_and_back(snapshot, greedy, session, *other);
  Tokens chosen_moved(greedy.begin(), greedy.begin() + static_cast<std::ptrdiff_t>(half) + 1);
  for (std::size_t i = half; i + 1 < greedy.size(); ++i) chosen_moved.push_back(argmax(&moved[(i - half) * vocab], vocab));
  return report_greedy(id + ", moved", chosen_moved, greedy) && passed;
}

struct Options {
  std::string folder, backend = "cpu", other, model, only;
};

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (!std::strcmp(argv[i], "--backend") && has_value)
      options->backend = argv[++i];
    else if (!std::strcmp(argv[i], "--other") && has_value)
      options->other = argv[++i];
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
    return std::fprintf(stderr, "usage: golden_check DIR [--backend NAME] [--other NAME] [--model PATH] [--only ID]\n"), 2;
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
  const std::string model = options.model.empty() ? find_model(options.folder) : options.model;
  ModelSession session(model, options.backend);
  std::unique_ptr<ModelSession> other;
  if (!options.other.empty()) other = std::make_unique<ModelSession>(model, options.other);
  int passed = 0, failed = 0;
  if (file.count("input_ids")) (check_hugging_face(file, session, other.get()) ? passed : failed) += 1;
  for (const auto& [name, unused] : file) {
    if (!name.ends_with(".tokens")) continue;
    const std::string id = name.substr(0, name.size() - std::strlen(".tokens"));
    if (!options.only.empty() && id != options.only) continue;
    (check_wayfarer(file, id, session, other.get()) ? passed : failed) += 1;
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
