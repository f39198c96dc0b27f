// The rows of one sequence's slot table (see SdmTable): private ones are made before a call's tokens run, in a fixed
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
inline float* sdm_row(const SdmArgs& a, const SdmTable& table, std::int32_t index) {
  const int slab_bits = std::countr_zero(static_cast<std::uint32_t>(a.rows_per_slab));
  return table.slabs[index >> slab_bits] + static_cast<std::int64_t>(index & (a.rows_per_slab - 1)) * a.value_dim;
}

struct SdmRowSource {
  const void* row;
  RowKind kind;
};

/// Where a slot of the flat index [H, N] is read from: its row `index`, or M0.
SdmRowSource sdm_source(const SdmArgs& a, const SdmTable& table, std::int64_t flat_slot, std::int32_t index);

/// A row that was just taken for a slot, and what the slot held before.
struct SdmFreshRow {
  std::int64_t flat_slot;
  std::int32_t index, old_index;
};

/// Gives every slot of slots [token_count, H, held] a private row: token by token, head by head, in the order listed.
/// Returns how many fresh rows were written to `fresh`; their contents are still to be copied.
std::int64_t take_sdm_rows(const SdmArgs& a, const SdmTable& table, const std::int32_t* slots, std::int32_t token_count,
                           SdmFreshRow* fresh);

void fill_sdm_row(const RecurrentKernels& kernels, const SdmArgs& a, const SdmTable& table, const SdmFreshRow& fresh);

}  // namespace cairn::cpu
