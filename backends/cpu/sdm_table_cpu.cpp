#include "backends/cpu/sdm_table_cpu.h"

#include "backends/cpu/sdm_address_cpu.h"

namespace cairn::cpu {

SdmRowSource sdm_source(const SdmArgs& a, const SdmTable& table, std::int64_t flat_slot, std::int32_t index) {
  if (index >= 0) return {sdm_row(a, table, index), row_kind(a.row_dtype)};
  if (!a.initial) return {nullptr, RowKind::kZero};
  const std::int64_t element_bytes = dtype_bits(a.initial_dtype) / 8;
  return {static_cast<const std::byte*>(a.initial) + flat_slot * a.value_dim * element_bytes,
          row_kind(a.initial_dtype)};
}

void take_sdm_rows(const SdmArgs& a, const SdmTable& table, const std::int32_t* slots, std::int32_t token_count,
                   SdmFreshRow* fresh) {
  const std::int32_t held = sdm_slots_held(a.side, a.write_count);
  const std::int64_t slots_per_head = static_cast<std::int64_t>(a.side) * a.side;
  const std::int32_t first_private = table.control[1];
  for (std::int32_t t = 0; t < token_count; ++t) {
    for (std::int32_t h = 0; h < a.head_count; ++h) {
      for (std::int32_t i = 0; i < held; ++i) {
        std::int32_t& index = table.row_of_slot[h * slots_per_head + *slots++];
        if (index >= first_private) continue;
        *fresh++ = {index, t};
        index = table.control[0]++;
      }
    }
  }
}

}  // namespace cairn::cpu
