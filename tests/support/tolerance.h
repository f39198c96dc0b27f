// Every tolerance of the tests, each with its reason. err = max|x - ref| / max|ref| of one output, unless said
// otherwise.
#pragma once

#include <initializer_list>
#include <string_view>

namespace cairn::test {

struct OpTolerance {
  std::string_view op;
  double f32;  ///< a backend that computes in f32, against the reference in double
  const char* reason;
};

/// One line an operator of ops.inc; tests/backends fails to compile when one is missing.
inline constexpr OpTolerance kOpTolerances[] = {
    {"embed", 0, "copies; widening bf16 and f16 is exact"},
    {"gather_rows", 0, "copies"},
    {"linear", 2e-6,
     "f32 sums of up to some hundred products of either sign: 2^-24 times the root of the length, with room"},
    {"linear_swiglu", 4e-6, "as linear; one exponential, two products"},
    {"rms_norm", 2e-6, "one f32 sum of squares, one root, two products"},
    {"gated_rms_norm", 4e-6, "as rms_norm; the layer norm's mean and the gate's exponential add a few roundings"},
    {"short_conv", 2e-6, "at most 8 products, one exponential"},
    {"feature_map", 2e-6, "exponentials of good libraries are within 2 ulp; one sum"},
    {"decay_gate", 4e-6, "softplus and exp of A_log, each within some ulp, multiplied"},
    {"delta_inputs", 6e-6, "as short_conv, then feature_map; as decay_gate"},
    {"add", 2e-7, "one rounding (two with a scale)"},
    {"gate", 1e-6, "one exponential, one product"},
    {"swiglu", 1e-6, "one exponential, two products"},
    {"cross_layer_add", 4e-7, "one product, one sum"},
    {"moe", 6e-6, "three linear products in a row and the router's softmax"},
    {"rope", 2e-5, "positions of some thousand times an f32 frequency lose their low bits before sine and cosine"},
    {"softmax_attention", 1e-5,
     "f32 scores grow by |q||k| before the exponential; sums over up to some hundred positions"},
    {"latent_attention", 1e-5, "as softmax_attention, behind one more product"},
    {"delta_net", 2e-5,
     "10 times the error of a float32 emulation of the chunked form, at least 2e-5 (vectors/index.json)"},
    {"gdn", 2e-5, "as delta_net"},
    {"kda", 2e-5, "as delta_net"},
    {"gdn2", 2e-5, "as delta_net"},
    {"delta_step", 3e-5, "delta_inputs, gdn and gated_rms_norm, one after the other: the sum of theirs"},
    {"sparse_gdn", 2e-5, "as delta_net"},
    {"sse", 2e-5, "as delta_net"},
    {"sdm", 2e-5, "as delta_net"},
};

/// Cases whose log-decays fall to -1e4 per token: cumulative f32 sums of a chunk keep few low bits, so even with g
/// clamped at -120 the float32 emulations of the vectors show up to 2e-4; their advice (10 times that) is the limit
/// here too.
inline constexpr double kHarshTolerance = 2e-3;

/// The same for bf16 activations against the reference on inputs rounded to bf16. Outputs are rounded to 8 bits: 2^-9
/// of each value, twice that where an operator rounds a value on its way. Operators that multiply matrices may round
/// their operands: 2e-2, the advice of vectors/index.json. Chunked delta rules without decay lose more where keys have
/// one or two numbers (states, K = 1: 2.6e-2, K = 2: 2.3e-2; K = 4: 1.4e-2, K = 16: 6e-3), and no case has such keys: a
/// chunk's updates are rounded after they were solved for, so none makes up for another's rounding, and 64 / K of them
/// meet in a row of the state. The same form in double, with these operands rounded, loses as much.
inline constexpr double kBf16RoundingTolerance = 4e-3, kBf16ProductTolerance = 2e-2;

/// SDM rows kept in bf16: a value that f32 and double put on either side of the middle between two neighbours is rounded
/// to either, 2^-7 of it apart, and later tokens read and decay what was rounded: twice that.
inline constexpr double kBf16RowTolerance = 1.6e-2;

/// Two reductions of one mechanism to another (GDN2 to KDA to GDN to DeltaNet, SDM to GDN) on an f32 backend: both
/// sides carry the operator's own error.
inline constexpr double kReductionTolerance = 4e-5;

/// The same two sides in the reference: double inside a token, states rounded to f32 after each.
inline constexpr double kReferenceReductionTolerance = 1e-6;

/// Hugging Face goldens: relative RMS of logits of an f32 forward pass against another f32 implementation.
inline constexpr double kGoldenRelativeRms = 1e-4;

/// Wayfarer's logits in float64: largest and median absolute difference of an f32 forward pass over the model's ten
/// layers.
inline constexpr double kWayfarerMaxAbs = 2e-2, kWayfarerMedianAbs = 1e-3;

constexpr double op_tolerance_bf16(std::string_view op) {
  for (const std::string_view exact :
       {"embed", "gather_rows", "rms_norm", "gated_rms_norm", "feature_map", "decay_gate", "delta_inputs", "add", "gate", "swiglu",
        "cross_layer_add", "short_conv", "rope"}) {
    if (op == exact) return kBf16RoundingTolerance;
  }
  return kBf16ProductTolerance;
}

constexpr double op_tolerance(std::string_view op) {
  for (const OpTolerance& entry : kOpTolerances) {
    if (entry.op == op) return entry.f32;
  }
  return -1;
}

}  // namespace cairn::test
