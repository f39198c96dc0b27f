// Reasons to refuse: one line with the thing, the value and what is supported; thread-local text.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "backends/interface/tensor_view.h"

namespace cairn::gpu {

/// Formats into this thread's buffer, which the next call overwrites.
[[gnu::format(printf, 1, 2)]] inline const char* unsupported(const char* format, ...) {
  static thread_local char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

/// Null when activations are f32 or bf16.
inline const char* require_activations(const char* name, DType type) {
  if (type == DType::kF32 || type == DType::kBF16) return nullptr;
  return unsupported("%s: dtype %s is not supported (supported: f32, bf16)", name, dtype_name(type));
}

/// Null when lowest <= value <= highest.
inline const char* require_range(const char* name, const char* what, std::int64_t value, std::int64_t lowest,
                                 std::int64_t highest) {
  if (value >= lowest && value <= highest) return nullptr;
  return unsupported("%s: %s %lld is not supported (supported: %lld to %lld)", name, what, static_cast<long long>(value),
                     static_cast<long long>(lowest), static_cast<long long>(highest));
}

/// Null when value heads are a multiple of key heads (both >= 1).
inline const char* require_heads(const char* name, std::int32_t key_heads, std::int32_t value_heads) {
  if (key_heads >= 1 && value_heads >= 1 && value_heads % key_heads == 0) return nullptr;
  return unsupported("%s: %d value heads are not a multiple of %d key heads", name, value_heads, key_heads);
}

/// The first reason that is not null.
inline const char* first_reason(std::initializer_list<const char*> reasons) {
  for (const char* reason : reasons) {
    if (reason) return reason;
  }
  return nullptr;
}

}  // namespace cairn::gpu
