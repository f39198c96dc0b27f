// A slot table of one sequence for operator tests: index, slabs and control on the rig's device.
#pragma once

#include "tests/support/op_rig.h"

namespace cairn::test {

class SdmTableMemory {
 public:
  /// Every slot equals M0; room for `row_capacity` rows of f32 or bf16 (poisoned), in slabs of `rows_per_slab`.
  SdmTableMemory(OpRig& rig, std::int32_t heads, std::int64_t slots, std::int32_t value_dim, std::int64_t row_capacity,
                 std::int32_t rows_per_slab, DType row_dtype = DType::kF32);

  SdmTable table() const { return {row_of_slot_, slabs_, control_}; }
  /// [H, N] row of each slot, and the rows of the slots that have one: pairs (head, slot) ascending, [pairs, V].
  struct Written {
    std::vector<std::int64_t> pairs;
    std::vector<float> rows;
  };
  Written written(OpRig& rig) const;
  /// Rows in use, first private row.
  std::vector<std::int32_t> control(OpRig& rig) const { return rig.download(control_, 2); }
  /// A second table over the same rows; both own none of them from now on: rows below `in use` are shared.
  SdmTableMemory fork(OpRig& rig);

 private:
  SdmTableMemory() = default;
  void* new_slab(OpRig& rig) const;
  std::vector<float> slab_values(OpRig& rig, const void* slab) const;

  std::int32_t heads_ = 0, value_dim_ = 0, rows_per_slab_ = 0;
  std::int64_t slots_ = 0;
  std::int32_t *row_of_slot_ = nullptr, *control_ = nullptr;
  DType row_dtype_ = DType::kF32;
  void** slabs_ = nullptr;
  std::vector<void*> slab_list_;
};

}  // namespace cairn::test
