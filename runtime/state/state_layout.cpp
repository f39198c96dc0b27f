#include "runtime/state/state_layout.h"

#include <limits>
#include <set>

#include "runtime/support/checked_math.h"

namespace cairn {
namespace {

constexpr std::uint64_t kAlignment = 256;
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{1} << 46;
constexpr std::int64_t kMaxSlots = std::int64_t{1} << 24;  // of one head

std::uint64_t align_up(std::uint64_t size_bytes) { return (size_bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Elements of dimensions [first, ...), at most 2^44. Only a convolution of one tap has an empty tail.
Result<std::uint64_t> element_count(const StateSlot& slot, std::size_t first) {
  std::uint64_t count = 1;
  for (std::size_t i = first; i < slot.shape.size(); ++i) {
    if (slot.shape[i] < (slot.kind == SlotKind::kConvTail ? 0 : 1)) {
      return Status::format_error("state slot %s: dimension %zu is %lld, must be positive", slot.name.c_str(), i,
                                  static_cast<long long>(slot.shape[i]));
    }
    const auto product = checked_mul(count, static_cast<std::uint64_t>(slot.shape[i]));
    if (!product || *product > std::uint64_t{1} << 44) {
      return Status::limit_exceeded("state slot %s: more than 2^44 elements", slot.name.c_str());
    }
    count = *product;
  }
  return count;
}

Status check_slot_table(const StateSlot& slot) {
  const std::int64_t most = std::numeric_limits<std::int32_t>::max() / 4;  // rows are numbered by int32, with room to grow
  if (slot.shape.size() != 3 || slot.shape[1] > kMaxSlots || slot.shape[0] > most / slot.shape[1] || slot.shape[2] > most) {
    return Status::limit_exceeded("state slot %s: expected [heads, slots, value dim] with at most 2^24 slots a head and 2^29 in all",
                                  slot.name.c_str());
  }
  if (slot.writes_per_token < 1 || slot.writes_per_token > slot.shape[1]) {
    return Status::format_error("state slot %s: %d writes per token, outside [1, %lld]", slot.name.c_str(), slot.writes_per_token,
                                static_cast<long long>(slot.shape[1]));
  }
  return {};
}

}  // namespace

Result<StateLayout> StateLayout::plan(std::vector<StateSlot> slots, std::array<std::uint8_t, 32> fingerprint,
                                      std::string model_name, std::int32_t vocab_size, std::int32_t layer_count) {
  StateLayout layout;
  std::set<std::string> names;
  for (const StateSlot& slot : slots) {
    if (!names.insert(slot.name).second) return Status::format_error("state slot %s is declared twice", slot.name.c_str());
    const bool is_full = slot.kind == SlotKind::kKvFull;
    CAIRN_TRY_ASSIGN(const std::uint64_t count, element_count(slot, is_full ? 1 : 0));
    if (slot.shape.empty()) return Status::format_error("state slot %s has no dimensions", slot.name.c_str());
    if (slot.shape[0] > std::numeric_limits<std::int32_t>::max()) {
      return Status::limit_exceeded("state slot %s: %lld rows, more than 2^31 - 1", slot.name.c_str(),
                                    static_cast<long long>(slot.shape[0]));
    }
    layout.fixed_offsets_.push_back(layout.checkpoint_bytes_);
    if (slot.kind == SlotKind::kSlotTable) {
      CAIRN_TRY(check_slot_table(slot));
      layout.table_bytes_ += static_cast<std::uint64_t>(slot.shape[0] * slot.shape[1]) * sizeof(std::int32_t);
    } else if (is_full) {
      layout.has_full_attention_ = true;
      layout.kv_bytes_per_token_ += count * sizeof(float);
    } else {
      layout.checkpoint_bytes_ += align_up(count * sizeof(float));
    }
    if (layout.checkpoint_bytes_ > kMaxStateBytes || layout.kv_bytes_per_token_ > kMaxStateBytes) {
      return Status::limit_exceeded("a state of this model is larger than 2^46 bytes, at slot %s", slot.name.c_str());
    }
  }
  layout.slots_ = std::move(slots);
  layout.fingerprint_ = fingerprint;
  layout.model_name_ = std::move(model_name);
  layout.vocab_size_ = vocab_size;
  layout.layer_count_ = layer_count;
  return layout;
}

/// Key-value slots are laid out by whole capacity, each rounded up to 256 bytes.
std::uint64_t StateLayout::offset_bytes(std::int32_t slot, std::int64_t kv_capacity) const {
  const auto index = static_cast<std::size_t>(slot);
  if (slots_[index].kind != SlotKind::kKvFull) return fixed_offsets_[index];
  std::uint64_t offset = checkpoint_bytes_;
  for (std::int32_t i = 0; i < slot; ++i) {
    if (slots_[static_cast<std::size_t>(i)].kind == SlotKind::kKvFull) offset += align_up(slot_bytes(i, kv_capacity));
  }
  return offset;
}

std::uint64_t StateLayout::slot_bytes(std::int32_t slot, std::int64_t kv_capacity) const {
  const StateSlot& entry = slots_[static_cast<std::size_t>(slot)];
  if (entry.kind == SlotKind::kSlotTable) return 0;
  std::uint64_t count = 1;
  for (std::size_t i = 0; i < entry.shape.size(); ++i) {
    count *= static_cast<std::uint64_t>(i == 0 && entry.kind == SlotKind::kKvFull ? kv_capacity : entry.shape[i]);
  }
  return count * sizeof(float);
}

std::uint64_t StateLayout::dense_bytes(std::int64_t kv_capacity) const {
  std::uint64_t size_bytes = checkpoint_bytes_;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].kind == SlotKind::kKvFull) size_bytes += align_up(slot_bytes(static_cast<std::int32_t>(i), kv_capacity));
  }
  return size_bytes;
}

std::uint64_t StateLayout::fresh_bytes(std::int64_t kv_capacity) const { return dense_bytes(kv_capacity) + table_bytes_; }

}  // namespace cairn
