#include "runtime/execution/step_inputs.h"

#include <algorithm>

namespace cairn {
namespace {

bool is_cache(SlotKind kind) { return kind == SlotKind::kKvRing || kind == SlotKind::kKvFull; }

}  // namespace

StepInputs::View StepInputs::carve(const Room& room, void* base) const {
  std::size_t dense = 0, caches = 0, tables = 0;
  for (const StateSlot& slot : plan_->state_layout()->slots()) {
    (slot.kind == SlotKind::kSlotTable ? tables : is_cache(slot.kind) ? caches : dense) += 1;
  }
  const auto sequences = static_cast<std::size_t>(room.sequences);
  ScratchLayout layout(base);
  View view{};
  view.tokens = layout.take<std::int32_t>(static_cast<std::size_t>(room.tokens));
  view.offsets = layout.take<std::int32_t>(sequences + 1);
  view.logits_row = layout.take<std::int32_t>(static_cast<std::size_t>(room.logits_rows));
  view.starts = layout.take<std::int64_t>(sequences);
  view.dense = layout.take<float*>(dense * sequences);
  view.caches = layout.take<KvCache>(caches * sequences);
  view.tables = layout.take<SdmTable>(tables * sequences);
  view.size_bytes = layout.size_bytes();
  return view;
}

bool StepInputs::has_room(std::int32_t token_count, std::int32_t sequence_count, std::int32_t logits_rows) const {
  return token_count <= room_.tokens && sequence_count <= room_.sequences && logits_rows <= room_.logits_rows;
}

Status StepInputs::reserve(std::int32_t token_count, std::int32_t sequence_count, std::int32_t logits_rows) {
  if (has_room(token_count, sequence_count, logits_rows)) return {};
  const Room room = {std::max(room_.tokens, token_count), std::max(room_.sequences, sequence_count),
                     std::max(room_.logits_rows, logits_rows)};
  room_ = {};
  host_view_ = device_view_ = {};
  host_ = {};
  device_ = {};
  return allocate(room);
}

Status StepInputs::allocate(const Room& room) {
  const std::size_t size_bytes = carve(room, nullptr).size_bytes;
  const std::shared_ptr<const Device>& device = plan_->device();
  CAIRN_TRY_ASSIGN(host_, device->allocate(size_bytes, MemoryKind::kPinnedHost));
  host_.zero_on_release();  // tokens
  if (!device->backend().host_memory) {
    CAIRN_TRY_ASSIGN(device_, device->allocate(size_bytes));
    device_.zero_on_release();
  }
  host_view_ = carve(room, host_.data());
  device_view_ = device_ ? carve(room, device_.data()) : host_view_;
  room_ = room;
  return {};
}

Status StepInputs::fill(Queue& queue, std::span<const StepPart> parts, Step& step) {
  const auto sequence_count = static_cast<std::int32_t>(parts.size());
  std::int32_t token = 0;
  logits_rows_ = 0;
  for (std::int32_t b = 0; b < sequence_count; ++b) {
    const StepPart& part = parts[b];
    host_view_.offsets[b] = token;
    host_view_.starts[b] = part.state->position();
    std::copy_n(part.tokens, part.token_count, host_view_.tokens + token);
    token += part.token_count;
    for (std::int32_t i = part.logits_count; i > 0; --i) host_view_.logits_row[logits_rows_++] = token - i;
  }
  host_view_.offsets[sequence_count] = token;
  step.batch = {sequence_count, token, device_view_.offsets, host_view_.offsets};
  step.starts = device_view_.starts;
  step.starts_host = host_view_.starts;
  fill_states(parts, step);
  if (!device_) return {};
  return queue.copy(device_.data(), host_.data(), host_view_.size_bytes, CopyKind::kHostToDevice);
}

/// Slot by slot: each sequence's pointer, and where the step finds the array.
void StepInputs::fill_states(std::span<const StepPart> parts, Step& step) {
  const std::vector<StateSlot>& slots = plan_->state_layout()->slots();
  step.states.dense.resize(slots.size());
  step.states.caches.resize(slots.size());
  step.states.tables.resize(slots.size());
  step.states.rows_per_slab.resize(slots.size());
  step.states.row_dtypes.resize(slots.size());
  std::size_t dense = 0, caches = 0, tables = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto slot = static_cast<std::int32_t>(i);
    std::size_t b = 0;
    if (slots[i].kind == SlotKind::kSlotTable) {
      for (const StepPart& part : parts) host_view_.tables[tables + b++] = part.state->table(slot);
      step.states.tables[i] = device_view_.tables + tables;
      step.states.rows_per_slab[i] = parts.empty() ? 1 : parts[0].state->rows_per_slab(slot);
      step.states.row_dtypes[i] = slots[i].row_dtype;
      tables += static_cast<std::size_t>(room_.sequences);
    } else if (is_cache(slots[i].kind)) {
      // The slot after the keys holds the values, where there are any.
      const bool has_values = i + 1 < slots.size() && is_cache(slots[i + 1].kind) && slots[i + 1].layer == slots[i].layer;
      for (const StepPart& part : parts) {
        host_view_.caches[caches + b++] = {part.state->dense(slot), has_values ? part.state->dense(slot + 1) : nullptr,
                                           part.state->rows(slot)};
      }
      step.states.caches[i] = device_view_.caches + caches;
      caches += static_cast<std::size_t>(room_.sequences);
    } else {
      for (const StepPart& part : parts) host_view_.dense[dense + b++] = part.state->dense(slot);
      step.states.dense[i] = device_view_.dense + dense;
      dense += static_cast<std::size_t>(room_.sequences);
    }
  }
}

}  // namespace cairn
