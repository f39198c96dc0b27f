// The two shapes of launch that most operators need, and the reasons that they share.
#pragma once

#include "backends/gpu/gpu_device.h"
#include "backends/gpu/gpu_unsupported.h"

namespace cairn::gpu {

inline constexpr unsigned kElementThreads = 256;

/// One block a row, up to 256 threads by its width.
template <class Args>
void launch_rows(const Launcher& launcher, void (*kernel)(Args), std::int64_t rows, std::int64_t width, const Args& args) {
  const unsigned threads = width <= 64 ? 64 : width <= 128 ? 128 : kElementThreads;
  launcher(kernel, dim3(static_cast<unsigned>(rows)), dim3(threads), 0, args);
}

/// One thread an element.
template <class Args>
void launch_elements(const Launcher& launcher, void (*kernel)(Args), std::int64_t elements, const Args& args) {
  launcher(kernel, dim3(static_cast<unsigned>((elements + kElementThreads - 1) / kElementThreads)), dim3(kElementThreads), 0, args);
}
/// The same for kernels that call wait_for_previous_kernel().
template <class Args>
void launch_elements_early(const Launcher& launcher, void (*kernel)(Args), std::int64_t elements, const Args& args) {
  launcher.early(kernel, dim3(static_cast<unsigned>((elements + kElementThreads - 1) / kElementThreads)), dim3(kElementThreads), 0, args);
}

template <class Args>
std::size_t no_scratch(const Args&) { return 0; }

/// Null when a table or weight of this type can be read.
inline const char* require_floating(const char* name, DType type) {
  if (type == DType::kF32 || type == DType::kBF16 || type == DType::kF16) return nullptr;
  return unsupported("%s: element type %s is not supported (supported: f32, bf16, f16)", name, dtype_name(type));
}

/// True when every sequence has exactly one token.
inline bool has_one_token_each(const Batch& batch) {
  if (batch.sequence_count != batch.token_count) return false;
  for (std::int32_t b = 0; b < batch.sequence_count; ++b) {
    if (batch.offsets_host[b + 1] - batch.offsets_host[b] != 1) return false;
  }
  return true;
}

}  // namespace cairn::gpu
