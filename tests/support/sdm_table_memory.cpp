#include "tests/support/sdm_table_memory.h"

#include <bit>

namespace cairn::test {

SdmTableMemory::SdmTableMemory(OpRig& rig, std::int32_t heads, std::int64_t slots, std::int32_t value_dim,
                               std::int64_t row_capacity, std::int32_t rows_per_slab, DType row_dtype)
    : heads_(heads), value_dim_(value_dim), rows_per_slab_(rows_per_slab), slots_(slots), row_dtype_(row_dtype) {
  for (std::int64_t row = 0; row < row_capacity; row += rows_per_slab) slab_list_.push_back(new_slab(rig));
  row_of_slot_ = rig.poisoned<std::int32_t>(heads * slots);  // all ones: -1
  slabs_ = rig.upload(slab_list_);
  control_ = rig.upload(std::vector<std::int32_t>{0, 0});
}

void* SdmTableMemory::new_slab(OpRig& rig) const {
  const std::size_t count = static_cast<std::size_t>(rows_per_slab_) * value_dim_;
  if (row_dtype_ == DType::kBF16) return rig.poisoned<std::uint16_t>(count);
  return rig.poisoned(count);
}

std::vector<float> SdmTableMemory::slab_values(OpRig& rig, const void* slab) const {
  const std::size_t count = static_cast<std::size_t>(rows_per_slab_) * value_dim_;
  if (row_dtype_ != DType::kBF16) return rig.download(static_cast<const float*>(slab), count);
  std::vector<float> values;
  for (const std::uint16_t half : rig.download(static_cast<const std::uint16_t*>(slab), count)) {
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16));
  }
  return values;
}

SdmTableMemory::Written SdmTableMemory::written(OpRig& rig) const {
  const std::vector<std::int32_t> row_of_slot = rig.download(row_of_slot_, heads_ * slots_);
  std::vector<std::vector<float>> slabs;
  for (const void* slab : slab_list_) slabs.push_back(slab_values(rig, slab));
  Written result;
  for (std::int64_t i = 0; i < heads_ * slots_; ++i) {
    const std::int32_t row = row_of_slot[i];
    if (row < 0 || row >= static_cast<std::int64_t>(slabs.size()) * rows_per_slab_) continue;
    result.pairs.push_back(i / slots_);
    result.pairs.push_back(i % slots_);
    const auto from =
        slabs[row / rows_per_slab_].begin() + static_cast<std::ptrdiff_t>(row % rows_per_slab_) * value_dim_;
    result.rows.insert(result.rows.end(), from, from + value_dim_);
  }
  return result;
}

SdmTableMemory SdmTableMemory::fork(OpRig& rig) {
  const std::int32_t in_use = control(rig)[0];
  SdmTableMemory copy;
  copy.heads_ = heads_, copy.value_dim_ = value_dim_, copy.rows_per_slab_ = rows_per_slab_, copy.slots_ = slots_;
  copy.row_dtype_ = row_dtype_;
  const std::int32_t shared_slabs = (in_use + rows_per_slab_ - 1) / rows_per_slab_;
  for (std::size_t i = 0; i < slab_list_.size(); ++i) {
    // Slabs of shared rows are shared whole; the free rows begin on a slab border in both.
    copy.slab_list_.push_back(static_cast<std::int32_t>(i) < shared_slabs ? slab_list_[i] : new_slab(rig));
  }
  const std::int32_t first_free = shared_slabs * rows_per_slab_;
  copy.row_of_slot_ = rig.upload(rig.download(row_of_slot_, heads_ * slots_));
  copy.slabs_ = rig.upload(copy.slab_list_);
  control_ = rig.upload(std::vector<std::int32_t>{first_free, first_free});
  copy.control_ = rig.upload(std::vector<std::int32_t>{first_free, first_free});
  return copy;
}

}  // namespace cairn::test
