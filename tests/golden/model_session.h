// A model with one stream and one state, through the public C API; ends the program when a call fails.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cairn/cairn.h"

namespace cairn::test {

using Logits = std::vector<float>;
using Tokens = std::vector<std::int32_t>;

/// Ends the program with the library's message when a call failed.
void require(cairn_status status, const char* what);

class ModelSession {
 public:
  ModelSession(const std::string& path, const std::string& backend);
  ~ModelSession();
  ModelSession(const ModelSession&) = delete;
  ModelSession& operator=(const ModelSession&) = delete;

  std::size_t vocab() const { return vocab_; }
  /// Reads `tokens` into a fresh state; logits after the last `rows` of them.
  Logits prefill(const Tokens& tokens, std::size_t rows);
  Logits decode(std::int32_t token);
  /// The state as a snapshot.
  std::vector<char> save();
  /// Goes on from a snapshot, in a new state.
  void restore(const std::vector<char>& snapshot);

 private:
  void create_state();
  Logits fetch(std::size_t first, std::size_t count);

  cairn_device* device_ = nullptr;
  cairn_model* model_ = nullptr;
  cairn_stream* stream_ = nullptr;
  cairn_state* state_ = nullptr;
  std::size_t vocab_ = 0;
  std::int64_t capacity_tokens_ = 1024;  ///< prefill() sets it; a session that only restores has this
};

}  // namespace cairn::test
