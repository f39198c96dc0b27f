// Reasons to refuse: one line with the thing, the value and what is supported; thread-local text.
#pragma once

#include <initializer_list>

#include "backends/interface/tensor_view.h"

namespace cairn::reference {

/// Formats into this thread's buffer, which the next call overwrites.
[[gnu::format(printf, 1, 2)]] const char* unsupported(const char* format, ...);

/// Null when `type` is f32.
const char* require_f32(const char* what, DType type);

/// Null when every value lies in [1, 2^24]: sizes of a shape, named in `what`.
const char* require_sizes(const char* what, std::initializer_list<std::int64_t> sizes);

/// Null when value heads are a multiple of key heads (both >= 1).
const char* require_heads(const char* what, std::int32_t key_heads, std::int32_t value_heads);

/// The first reason that is not null.
inline const char* first_reason(std::initializer_list<const char*> reasons) {
  for (const char* reason : reasons) {
    if (reason) return reason;
  }
  return nullptr;
}

}  // namespace cairn::reference
