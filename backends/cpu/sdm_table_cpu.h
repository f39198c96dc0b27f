// The rows of one sequence's slot table (see SdmTable): private ones are taken before a call's tokens run, in a fixed
// order, so that heads and columns can then run on any thread.
#pragma once

#include <bit>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/recurrent_kernels.h"

namespace cairn::cpu {

inline RowKind row_kind(DType type) {
  return type == DType::kBF16 ? RowKind::kBF16 : type == DType::kF16 ? RowKind::kF16 : RowKind::kF32;
}

/// Row `index` of the table.
inline std::byte* sdm_row(const SdmArgs& a, const SdmTable& table, std::int32_t index) {
  const int slab_bits = std::countr_zero(static_cast<std::uint32_t>(a.rows_per_slab));
  const std::int64_t first = static_cast<std::int64_t>(index & (a.rows_per_slab - 1)) * a.value_dim;
  return static_cast<std::byte*>(table.slabs[index >> slab_bits]) + first * (dtype_bits(a.row_dtype) / 8);
}

struct SdmRowSource {
  const void* row;
  RowKind kind;
  /// From a column on.
  const void* at(std::int64_t column) const {
    return row ? static_cast<const std::byte*>(row) + column * (kind == RowKind::kF32 ? 4 : 2) : nullptr;
  }
};

/// Where a slot of the flat index [H, N] is read from: its row `index`, or M0.
SdmRowSource sdm_source(const SdmArgs& a, const SdmTable& table, std::int64_t flat_slot, std::int32_t index);

/// A row that this call takes: what its slot holds until `token` of the sequence, the first to write it.
struct SdmFreshRow {
  std::int32_t old_index, token;
};

/// Gives every slot of slots [token_count, H, held] a private row: token by token, head by head, in the order listed.
/// The k-th row taken is described by fresh[k]; nothing is copied.
void take_sdm_rows(const SdmArgs& a, const SdmTable& table, const std::int32_t* slots, std::int32_t token_count,
                   SdmFreshRow* fresh);

}  // namespace cairn::cpu
