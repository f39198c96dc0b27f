#include "runtime/state/state_statistics.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/element_conversion.h"
#include "runtime/support/allocator.h"

namespace cairn {
namespace {

constexpr std::size_t kPieceFloats = std::size_t{1} << 20;

class Accumulator {
 public:
  void add(const float* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const double value = values[i];
      if (!std::isfinite(value)) {
        ++statistics_.non_finite_count;
        continue;
      }
      statistics_.max_abs = std::max(statistics_.max_abs, std::abs(value));
      sum_of_squares_ += value * value;
    }
  }
  StateStatistics finish() {
    statistics_.norm = std::sqrt(sum_of_squares_);
    return statistics_;
  }
  StateStatistics& statistics() { return statistics_; }

 private:
  StateStatistics statistics_;
  double sum_of_squares_ = 0;
};

Status check_layer(const State& state, std::int32_t layer) {
  const std::int32_t count = state.layout().layer_count();
  if (layer >= 0 && layer < count) return {};
  return Status::invalid_argument("layer %d is outside [0, %d)", layer, count);
}

/// Host staging for state values: zeroed when it is given back.
Result<HostBuffer> staging(std::size_t float_count) {
  return HostBuffer::allocate(float_count * sizeof(float), "state statistics", HostBuffer::OnRelease::kZero);
}

Status add_dense(const State& state, Queue& queue, std::int32_t slot, Accumulator& sum) {
  const std::size_t total = state.layout().slot_bytes(slot, 0) / sizeof(float);
  CAIRN_TRY_ASSIGN(const HostBuffer piece, staging(std::min(total, kPieceFloats)));
  for (std::size_t done = 0; done < total; done += kPieceFloats) {
    const std::size_t count = std::min(kPieceFloats, total - done);
    CAIRN_TRY(queue.copy(piece.data(), state.dense(slot) + done, count * sizeof(float), CopyKind::kDeviceToHost));
    CAIRN_TRY(queue.synchronize());
    sum.add(piece.as<float>(), count);
  }
  return {};
}

Status add_table(const SlotTable& table, Queue& queue, Accumulator& sum) {
  std::vector<std::int32_t> row_of_slot;
  CAIRN_TRY(table.read_index(queue, row_of_slot));
  const auto width = static_cast<std::size_t>(table.geometry().value_dim);
  const DType dtype = table.geometry().row_dtype;
  CAIRN_TRY_ASSIGN(const HostBuffer row_V, staging(2 * width));  // as f32, and as it lies
  auto* const stored = row_V.as<float>() + width;
  sum.statistics().slots_total += row_of_slot.size();
  for (const std::int32_t row : row_of_slot) {
    if (row < 0) continue;
    ++sum.statistics().slots_written;
    CAIRN_TRY(queue.copy(stored, table.row_address(row), table.geometry().row_bytes(), CopyKind::kDeviceToHost));
    CAIRN_TRY(queue.synchronize());
    convert_to_f32(stored, dtype, width, row_V.as<float>());
    sum.add(row_V.as<float>(), width);
  }
  return {};
}

const SlotTable* table_of(const State& state, std::int32_t layer) {
  const std::vector<StateSlot>& slots = state.layout().slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].layer == layer && slots[i].kind == SlotKind::kSlotTable) return state.slot_table(static_cast<std::int32_t>(i));
  }
  return nullptr;
}

}  // namespace

Result<StateStatistics> read_statistics(const State& state, Queue& queue, std::int32_t layer) {
  CAIRN_TRY(check_layer(state, layer));
  Accumulator sum;
  const std::vector<StateSlot>& slots = state.layout().slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].layer != layer) continue;
    const auto slot = static_cast<std::int32_t>(i);
    if (slots[i].kind == SlotKind::kRecurrent) CAIRN_TRY(add_dense(state, queue, slot, sum));
    if (slots[i].kind == SlotKind::kSlotTable) CAIRN_TRY(add_table(*state.slot_table(slot), queue, sum));
  }
  return sum.finish();
}

Result<std::vector<std::uint8_t>> read_written_slots(const State& state, Queue& queue, std::int32_t layer) {
  CAIRN_TRY(check_layer(state, layer));
  const SlotTable* table = table_of(state, layer);
  if (!table) return Status::unsupported("layer %d has no slot table", layer);
  std::vector<std::int32_t> row_of_slot;
  CAIRN_TRY(table->read_index(queue, row_of_slot));
  std::vector<std::uint8_t> written(row_of_slot.size());
  std::transform(row_of_slot.begin(), row_of_slot.end(), written.begin(), [](std::int32_t row) { return row >= 0 ? 1 : 0; });
  return written;
}

std::int64_t slot_count(const State& state, std::int32_t layer) {
  const SlotTable* table = table_of(state, layer);
  return table ? table->geometry().slot_count : 0;
}

}  // namespace cairn
