// The few plain types that cross the line between the runtime and a backend.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

/// Element types of weights, activations and states. Values are written to files: never renumber.
enum class DType : std::uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2, kF64 = 3, kI8 = 4, kI4 = 5, kU8 = 6, kI32 = 7, kI64 = 8 };

/// Bits of one element (kI4: 4); 0 for a value that is none of the above.
constexpr int dtype_bits(DType type) {
  switch (type) {
    case DType::kF64: case DType::kI64: return 64;
    case DType::kF32: case DType::kI32: return 32;
    case DType::kBF16: case DType::kF16: return 16;
    case DType::kI8: case DType::kU8: return 8;
    case DType::kI4: return 4;
  }
  return 0;
}

constexpr const char* dtype_name(DType type) {
  switch (type) {
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
    case DType::kF64: return "f64";
    case DType::kI8: return "i8";
    case DType::kI4: return "i4";
    case DType::kU8: return "u8";
    case DType::kI32: return "i32";
    case DType::kI64: return "i64";
  }
  return "unknown";
}

/// Rows of activations in device memory, [tokens, row] with `stride` elements from token to token (>= row).
/// The element type is the `dtype` of the arguments that hold the view.
struct Rows {
  void* data = nullptr;
  std::int64_t stride = 0;
};

struct ConstRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
  ConstRows() = default;
  ConstRows(const void* d, std::int64_t s) : data(d), stride(s) {}
  ConstRows(const Rows& r) : data(r.data), stride(r.stride) {}  // NOLINT: a view of the same rows
};

/// A ragged batch: sequence b owns the token rows [offsets[b], offsets[b + 1]). A sequence may be empty.
struct Batch {
  std::int32_t sequence_count = 0;
  std::int32_t token_count = 0;                 ///< offsets[sequence_count]
  const std::int32_t* offsets = nullptr;        ///< [sequence_count + 1], device memory
  const std::int32_t* offsets_host = nullptr;   ///< the same numbers, host memory
};

/// Prefill: chunked forms; decode: one token for each sequence, and bits that do not depend on the batch.
enum class Phase : std::uint8_t { kPrefill = 0, kDecode = 1 };

}  // namespace cairn
