// A case of an operator: inputs of several sequences, and a function that reads them by a schedule.
#pragma once

#include <functional>

#include "tests/support/op_rig.h"
#include "tests/support/random_inputs.h"

namespace cairn::test {

/// Tokens [first, first + count) of a sequence.
struct Piece {
  std::int32_t sequence, first, count;
};
using Call = std::vector<Piece>;     ///< one run of the operator: a batch of pieces of different sequences
using Schedule = std::vector<Call>;  ///< runs in order; states carry over
using Lengths = std::vector<std::int32_t>;

Schedule all_at_once(const Lengths& lengths);
Schedule one_by_one(const Lengths& lengths);                       ///< each sequence alone
Schedule reversed(const Lengths& lengths);                         ///< one batch, other slots
Schedule split_at(const Lengths& lengths, std::int32_t multiple);  ///< calls of `multiple` tokens, then the rest
Schedule token_by_token(const Lengths& lengths);  ///< step t: a batch of every sequence that has a token t
Schedule token_by_token_alone(const Lengths& lengths);

/// What came out: outputs of every token in sequence order, and the states at the end.
struct Outcome {
  std::string trouble;  ///< not empty: why there is none
  struct Output {
    std::string name;
    std::vector<float> values;
  };
  std::vector<Output> outputs;
};

/// Numbers per token of every sequence: [T_b, width] each.
struct TokenField {
  std::int32_t width = 0;
  std::vector<std::vector<float>> of_sequence;
};

/// Fills a field from a generator of `count` numbers.
template <class Make>
TokenField make_field(const Lengths& lengths, std::int32_t width, Make make) {
  TokenField field{width, {}};
  for (const std::int32_t length : lengths) field.of_sequence.push_back(make(static_cast<std::size_t>(length) * width));
  return field;
}
TokenField normal_field(Random& random, const Lengths& lengths, std::int32_t width, double scale = 1);
TokenField uniform_field(Random& random, const Lengths& lengths, std::int32_t width, double low, double high);
TokenField unit_field(Random& random, const Lengths& lengths, std::int32_t heads, std::int32_t dim);
TokenField decay_field(Random& random, const Lengths& lengths, std::int32_t width, bool harsh);

/// An output of every token, collected over calls.
struct TokenOutput {
  TokenOutput(std::string output_name, const Lengths& lengths, std::int32_t output_width);
  std::string name;
  TokenField field;
};

/// Inputs and outputs of one call on a rig: rows with strides wider than the row, poison between them.
class CallIo {
 public:
  CallIo(OpRig& rig, const Call& call);
  ~CallIo() { rig_.release_to(mark_); }  ///< with everything that the call took from the rig
  CallIo(const CallIo&) = delete;
  CallIo& operator=(const CallIo&) = delete;

  const Batch& batch() const { return batch_; }
  std::int32_t token_count() const { return batch_.token_count; }
  ConstRows in(const TokenField& field);
  float* packed(const TokenField& field);
  Rows out(TokenOutput& output);
  float* packed_out(TokenOutput& output);
  /// Input and output in the same rows.
  Rows in_place(const TokenField& field, TokenOutput& output);
  /// The call's sequences' entries of a per-sequence list.
  template <class T>
  std::vector<T> pick(const std::vector<T>& of_sequence) const {
    std::vector<T> result;
    for (const Piece& piece : call_) result.push_back(of_sequence[piece.sequence]);
    return result;
  }
  /// First token of each piece, on the device and the host.
  std::vector<std::int64_t> starts() const;
  /// Fetches the outputs; false where something between their rows was written.
  bool collect();

 private:
  struct Pending {
    TokenOutput* output;
    const void* data;
    std::int64_t stride;
    bool is_activation;  ///< of the rig's dtype; else f32
  };
  std::vector<float> gather(const TokenField& field, std::int64_t stride) const;

  OpRig& rig_;
  const Call& call_;
  std::size_t mark_;
  Batch batch_;
  std::vector<Pending> pending_;
};

/// Runs the operator for one call and collects; notes trouble. False: stop.
template <class Args>
bool run_call(OpRig& rig, CallIo& io, const Op<Args>& op, const Args& args, Outcome* outcome) {
  outcome->trouble = rig.run(op, args);
  if (outcome->trouble.empty() && !io.collect()) outcome->trouble = "memory between the rows of an output was written";
  return outcome->trouble.empty();
}

void add_output(Outcome* outcome, const TokenOutput& output);

/// States of every sequence on the device, and their values at the end.
struct DeviceStates {
  DeviceStates(OpRig& rig, const std::vector<std::vector<float>>& initial);
  void add_to(OpRig& rig, const char* name, Outcome* outcome) const;
  std::vector<float*> of_sequence;
  std::vector<std::size_t> counts;
};

struct OpCase {
  std::string name;
  Lengths lengths;
  std::function<Outcome(OpRig&, const Schedule&, Phase)> read;
  std::int32_t split_multiple = 64;  ///< prefill may be split there with the same bits; 0: not at all
  bool has_decode = true;            ///< one token at a time is another way to the same result
  double tolerance = -1;             ///< -1: the operator's
};

}  // namespace cairn::test
