#include "backends/reference/unsupported.h"

#include <cstdarg>
#include <cstdio>

namespace cairn::reference {

const char* unsupported(const char* format, ...) {
  thread_local char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

const char* require_f32(const char* what, DType type) {
  return type == DType::kF32
             ? nullptr
             : unsupported("%s: %s activations are not supported (supported: f32)", what, dtype_name(type));
}

const char* require_sizes(const char* what, std::initializer_list<std::int64_t> sizes) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 24;
  for (const std::int64_t size : sizes) {
    if (size < 1 || size > kLargest) {
      return unsupported("%s: size %lld is not supported (supported: 1 to %lld)", what, static_cast<long long>(size),
                         static_cast<long long>(kLargest));
    }
  }
  return nullptr;
}

const char* require_heads(const char* what, std::int32_t key_heads, std::int32_t value_heads) {
  if (key_heads >= 1 && value_heads >= 1 && value_heads % key_heads == 0) return nullptr;
  return unsupported("%s: %d value heads over %d key heads are not supported (supported: a multiple)", what,
                     value_heads, key_heads);
}

}  // namespace cairn::reference
