// text_bench FOLDER [--text FILE]...: how fast a tokenizer folder (tokenizer.json or tiktoken.model) reads text, on one
// core. Without files: words of a made-up language with the lengths and frequencies of English, the same with other
// scripts between, and source text. MB/s of CPU time, the best of five calls over the whole text.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <random>

#include "runtime/text/tokenizer.h"

namespace {

using cairn::TokenizerConfig;
using cairn::TokenizerKind;

struct Text {
  std::string name, bytes;
};

constexpr std::size_t kTextBytes = std::size_t{8} << 20;

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void append_utf8(std::string& text, unsigned c) {
  if (c < 0x80) {
    text += static_cast<char>(c);
  } else if (c < 0x800) {
    text += {static_cast<char>(0xc0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
  } else {
    text += {static_cast<char>(0xe0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
             static_cast<char>(0x80 | (c & 63))};
  }
}

/// 50,000 words, the n-th about n times as rare as the first, in the letters from `first` on.
std::vector<std::string> words_of(unsigned first, unsigned letters, double mean_letters, std::mt19937& random) {
  std::vector<std::string> words;
  std::poisson_distribution<int> length(mean_letters - 1);
  for (int i = 0; i < 50000; ++i) {
    std::string word;
    const int count = 1 + length(random);
    for (int j = 0; j < count; ++j)
      append_utf8(word, first + static_cast<unsigned>(std::sqrt(random() % (letters * letters))));
    words.push_back(word);
  }
  return words;
}

const std::string& pick(const std::vector<std::string>& words, std::mt19937& random) {
  const double uniform = (static_cast<double>(random()) + 1) / 4294967297.0;
  const auto rank = static_cast<std::size_t>(std::pow(static_cast<double>(words.size()), uniform)) - 1;
  return words[std::min(rank, words.size() - 1)];
}

std::string prose(const std::vector<std::vector<std::string>>& scripts, std::mt19937& random) {
  std::string text;
  while (text.size() < kTextBytes) {
    const auto& words = scripts[scripts.size() == 1 ? 0 : random() % scripts.size()];
    for (int sentence = 0; sentence < 5; ++sentence) {
      const unsigned count = 4 + random() % 20;
      for (unsigned i = 0; i < count; ++i) text += (i ? " " : "") + pick(words, random);
      text += sentence == 4 ? ".\n\n" : random() % 8 ? ". " : ", 1,234 (56%): ";
    }
  }
  return text;
}

std::string source_text(std::mt19937& random) {
  const auto words = words_of('a', 26, 6, random);
  std::string text;
  while (text.size() < kTextBytes) {
    text += std::string(2 * (random() % 5), ' ') + pick(words, random) + "_" + pick(words, random) + "(" +
            pick(words, random) + "[" + std::to_string(random() % 1000) + "], \"" + pick(words, random) + "\");" +
            (random() % 6 ? "\n" : "  // " + pick(words, random) + " " + pick(words, random) + "\n");
  }
  return text;
}

std::vector<Text> default_texts() {
  std::mt19937 random(1);
  const auto latin = words_of('a', 26, 5, random), accented = words_of(0xe0, 24, 6, random),
             cyrillic = words_of(0x430, 32, 6, random), han = words_of(0x4e00, 3000, 2, random);
  return {{"prose", prose({latin}, random)},
          {"scripts", prose({latin, accented, cyrillic, han}, random)},
          {"source", source_text(random)}};
}

double cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

bool load(const std::string& folder, TokenizerConfig& config) {
  config.data = file_text(folder + "/tokenizer.json");
  config.kind = TokenizerKind::kBpe;
  if (config.data.empty()) {
    config.data = file_text(folder + "/tiktoken.model");
    config.kind = TokenizerKind::kTiktoken;
  }
  config.extra = file_text(folder + "/tokenizer_config.json");
  return !config.data.empty();
}

}  // namespace

int main(int argc, char** argv) {
  TokenizerConfig config;
  std::vector<Text> texts;
  for (int i = 2; i + 1 < argc; i += 2) texts.push_back({argv[i + 1], file_text(argv[i + 1])});
  if (argc < 2 || !load(argv[1], config)) {
    return std::fprintf(stderr, "usage: text_bench FOLDER [--text FILE]...\n"), 2;
  }
  if (texts.empty()) texts = default_texts();
  const auto tokenizer = cairn::make_tokenizer(config);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str()), 2;
  std::printf("%-10s %10s %12s %14s\n", "text", "MB/s", "bytes/token", "decode MB/s");
  for (const Text& text : texts) {
    double best = 1e9, decode = 1e9;
    std::vector<std::int32_t> ids;
    for (int pass = 0; pass < 5; ++pass) {
      ids.clear();
      const double start = cpu_seconds();
      const cairn::Status status = tokenizer.value()->encode(text.bytes, ids);
      const double middle = cpu_seconds();
      if (!status.ok()) return std::fprintf(stderr, "%s\n", status.message().c_str()), 1;
      const std::string back = tokenizer.value()->decode(ids, false);
      best = std::min(best, middle - start);
      decode = std::min(decode, cpu_seconds() - middle);
    }
    const double megabytes = static_cast<double>(text.bytes.size()) * 1e-6;
    std::printf("%-10s %10.1f %12.2f %14.1f\n", text.name.c_str(), megabytes / best,
                static_cast<double>(text.bytes.size()) / static_cast<double>(ids.size()), megabytes / decode);
  }
  return 0;
}
