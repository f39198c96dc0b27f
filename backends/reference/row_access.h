// Typed access to rows of activations. The reference takes f32 only; unsupported_reason has refused the rest.
#pragma once

#include "backends/interface/tensor_view.h"

namespace cairn::reference {

inline const float* row(const ConstRows& rows, std::int64_t token) {
  return static_cast<const float*>(rows.data) + token * rows.stride;
}

inline float* row(const Rows& rows, std::int64_t token) { return static_cast<float*>(rows.data) + token * rows.stride; }

}  // namespace cairn::reference
