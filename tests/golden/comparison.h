// Holds what a backend computed against a case: err = max|x - ref| / max|ref| per tensor, integers equal.
#pragma once

#include <set>

#include "tests/golden/vector_case.h"

namespace cairn::test {

/// Which of the file's tolerances applies: chunked forms (prefill) or one token at a time (decode).
enum class Path { kChunked, kRecurrent };

class Comparison {
 public:
  explicit Comparison(const VectorCase& vectors) : case_(vectors) {}

  /// Values against a tensor of the case. `label` tells runs apart ("decode").
  void floats(const std::string& tensor, const std::vector<float>& got, Path path = Path::kChunked,
              const char* label = "");
  /// Values against given ones (a part of a tensor, say) with that tensor's tolerance.
  void floats_against(const std::string& tensor, const std::vector<float>& got, const std::vector<float>& want,
                      Path path, const char* label);
  template <class T>
  void integers(const std::string& tensor, const std::vector<T>& got, const char* label = "") {
    compare_integers(tensor, std::vector<std::int64_t>(got.begin(), got.end()), label);
  }
  /// A line of the report that is no failure.
  void note(const std::string& text) { excuses_.push_back(text); }
  /// Compared by the caller, in another form.
  void mark(const std::string& tensor) { compared_.insert(tensor); }
  void not_compared(const std::string& tensor, const std::string& reason);
  /// Empty: true. Else notes the failure.
  bool ran(const std::string& trouble, const char* what);
  void fail(const std::string& text);
  /// `word` is one of `words`, which blanks separate. Else notes the failure.
  bool is_known(const char* what, const std::string& word, const std::string& words);

  /// Every tensor of the case that is no input was compared or excused; the others fail.
  void finish();
  bool passed() const { return failures_.empty(); }
  /// "worst 1.2e-07 of 2e-05 in o", and the lines of failures and excuses.
  std::string summary() const;
  std::vector<std::string> details() const;

 private:
  void compare_integers(const std::string& tensor, const std::vector<std::int64_t>& got, const char* label);

  const VectorCase& case_;
  std::set<std::string> compared_;
  std::vector<std::string> failures_, excuses_;
  double worst_ratio_ = -1, worst_error_ = 0, worst_limit_ = 0;
  std::string worst_tensor_;
};

}  // namespace cairn::test
