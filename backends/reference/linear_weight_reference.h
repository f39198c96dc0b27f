// A weight matrix as stored: f32, bf16, f16, or integers with scales.
#pragma once

#include "backends/interface/op_args.h"

namespace cairn::reference {

/// Null when the storage and its sizes are possible.
const char* weight_unsupported_reason(const char* what, const LinearWeight& weight);

/// sum_i W[out, i] x[i], in order of i, in double; without the bias.
double weight_row_dot(const LinearWeight& weight, std::int32_t out, const float* x);
double weight_row_dot(const LinearWeight& weight, std::int32_t out, const double* x);

/// W[out, in].
double weight_at(const LinearWeight& weight, std::int32_t out, std::int32_t in);

}  // namespace cairn::reference
