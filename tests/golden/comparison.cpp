#include "tests/golden/comparison.h"

#include <cmath>
#include <cstdio>

namespace cairn::test {
namespace {

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// max|got - want| / max|want|; NaN and infinity count as infinite.
double relative_error(const std::vector<float>& got, const std::vector<float>& want) {
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    largest = std::fmax(largest, std::fabs(static_cast<double>(want[i])));
    if (!std::isfinite(got[i])) return INFINITY;
    difference = std::fmax(difference, std::fabs(static_cast<double>(got[i]) - want[i]));
  }
  return difference == 0 ? 0 : difference / std::fmax(largest, 1e-30);
}

}  // namespace

void Comparison::floats(const std::string& tensor, const std::vector<float>& got, Path path, const char* label) {
  if (!case_.has(tensor)) return;
  floats_against(tensor, got, case_.floats(tensor), path, label);
}

void Comparison::floats_against(const std::string& tensor, const std::vector<float>& got,
                                const std::vector<float>& want, Path path, const char* label) {
  compared_.insert(tensor);
  if (got.size() != want.size())
    return fail(format("%s %s: %zu values, expected %zu", tensor.c_str(), label, got.size(), want.size()));
  const double limit = path == Path::kChunked ? case_.tolerance(tensor, {"fp32_chunked", "fp32", "fp32_recurrent"})
                                              : case_.tolerance(tensor, {"fp32_recurrent", "fp32", "fp32_chunked"});
  const double error = relative_error(got, want);
  if (!(error <= limit)) fail(format("%s %s: error %.2e, limit %.0e", tensor.c_str(), label, error, limit));
  const double ratio = limit > 0 ? error / limit : error;
  if (!(ratio > worst_ratio_)) return;
  worst_ratio_ = ratio, worst_error_ = error, worst_limit_ = limit;
  worst_tensor_ = *label ? tensor + " (" + label + ")" : tensor;
}

void Comparison::compare_integers(const std::string& tensor, const std::vector<std::int64_t>& got, const char* label) {
  if (!case_.has(tensor)) return;
  compared_.insert(tensor);
  const std::vector<std::int64_t> want = case_.integers(tensor);
  if (got.size() != want.size())
    return fail(format("%s %s: %zu values, expected %zu", tensor.c_str(), label, got.size(), want.size()));
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i]) {
      return fail(format("%s %s: value %zu is %lld, expected %lld", tensor.c_str(), label, i,
                         static_cast<long long>(got[i]), static_cast<long long>(want[i])));
    }
  }
}

void Comparison::not_compared(const std::string& tensor, const std::string& reason) {
  if (!case_.has(tensor)) return;
  compared_.insert(tensor);
  excuses_.push_back("not compared: " + tensor + " (" + reason + ")");
}

bool Comparison::ran(const std::string& trouble, const char* what) {
  if (!trouble.empty()) fail(std::string(what) + ": " + trouble);
  return trouble.empty();
}

void Comparison::fail(const std::string& text) { failures_.push_back(text); }

bool Comparison::is_known(const char* what, const std::string& word, const std::string& words) {
  if ((" " + words + " ").find(" " + word + " ") != std::string::npos) return true;
  fail(std::string(what) + " '" + word + "' is not known (known: " + words + ")");
  return false;
}

void Comparison::finish() {
  for (const auto& [name, unused] : case_.tensors()) {
    if (!case_.is_input(name) && !compared_.count(name)) fail("tensor '" + name + "' was not compared");
  }
}

std::string Comparison::summary() const {
  if (worst_ratio_ < 0) return "exact";
  return format("worst %.1e of %.0e in %s", worst_error_, worst_limit_, worst_tensor_.c_str());
}

std::vector<std::string> Comparison::details() const {
  std::vector<std::string> lines = failures_;
  lines.insert(lines.end(), excuses_.begin(), excuses_.end());
  return lines;
}

}  // namespace cairn::test
