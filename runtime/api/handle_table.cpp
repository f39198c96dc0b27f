#include "runtime/api/handle_table.h"

namespace cairn::api {
namespace {

constexpr std::uint32_t kKindShift = 60, kIndexShift = 32;

std::uint32_t index_of(std::uint64_t handle) { return static_cast<std::uint32_t>(handle >> kIndexShift) & 0x0fffffffU; }

}  // namespace

const char* handle_kind_name(HandleKind kind) {
  switch (kind) {
    case HandleKind::kDevice: return "device";
    case HandleKind::kModel: return "model";
    case HandleKind::kState: return "state";
    case HandleKind::kStream: return "stream";
    case HandleKind::kTextDecoder: return "text decoder";
  }
  return "handle";
}

HandleTable& HandleTable::instance() {
  static HandleTable& table = *new HandleTable;
  return table;
}

// Two copies of the library in one process start at different generations: a handle of one is stale in the other.
HandleTable::HandleTable()
    : first_generation_(static_cast<std::uint32_t>((reinterpret_cast<std::uintptr_t>(this) >> 4) * 0x9E3779B1U)) {}

HandleTable::~HandleTable() {
  for (auto& bucket : buckets_) delete[] bucket.load();
}

HandleTable::Slot* HandleTable::slot_at(std::uint32_t index) const {
  const std::uint32_t bucket = bucket_of(index);
  Slot* slots = buckets_[bucket].load(std::memory_order_acquire);
  return slots ? slots + (index - bucket_begin(bucket)) : nullptr;
}

HandleTable::Slot* HandleTable::pin(std::uint64_t handle, HandleKind kind) const {
  if (handle >> kKindShift != static_cast<std::uint64_t>(kind)) return nullptr;
  Slot* slot = slot_at(index_of(handle));
  if (!slot) return nullptr;
  const std::uint64_t generation = handle << 32;
  std::uint64_t word = slot->word.load(std::memory_order_acquire);
  do {
    // A live slot has at least the table's own pin.
    const bool is_live = (word & kPinMask) != 0 && !(word & kClosing);
    if (!is_live || (word & ~(kPinMask | kClosing)) != generation) return nullptr;
  } while (!slot->word.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel, std::memory_order_acquire));
  if (slot->kind == kind) return slot;
  const_cast<HandleTable*>(this)->unpin(slot);
  return nullptr;
}

void HandleTable::unpin(Slot* slot) {
  const std::uint64_t before = slot->word.fetch_sub(1, std::memory_order_acq_rel);
  if ((before & kPinMask) == 1) retire(slot);
}

Result<std::uint32_t> HandleTable::take_index() {
  if (!free_.empty()) {
    const std::uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  if (slot_count_ == 1U << kIndexBits) {
    return Status::limit_exceeded("handle table: %u handles are in use, the most there can be", slot_count_);
  }
  const std::uint32_t bucket = bucket_of(slot_count_);
  if (!buckets_[bucket].load(std::memory_order_relaxed)) {
    const std::uint32_t size = bucket_begin(bucket + 1) - slot_count_;
    auto slots = std::make_unique<Slot[]>(size);
    for (std::uint32_t i = 0; i < size; ++i) {
      slots[i].index = slot_count_ + i;
      slots[i].word.store(std::uint64_t{first_generation_} << 32, std::memory_order_relaxed);
    }
    free_.reserve(slot_count_ + size);  // so that a release never allocates
    buckets_[bucket].store(slots.release(), std::memory_order_release);
  }
  return slot_count_++;
}

Result<std::uint64_t> HandleTable::insert(HandleKind kind, std::shared_ptr<void> object) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY_ASSIGN(const std::uint32_t index, take_index());
  Slot* slot = slot_at(index);
  slot->kind = kind;
  slot->object = std::move(object);
  live_count_.fetch_add(1, std::memory_order_acq_rel);
  const std::uint64_t generation = slot->word.load(std::memory_order_relaxed) >> 32;
  slot->word.store((generation << 32) | 1, std::memory_order_release);
  return (static_cast<std::uint64_t>(kind) << kKindShift) | (std::uint64_t{index} << kIndexShift) | generation;
}

bool HandleTable::release(std::uint64_t handle, HandleKind kind) {
  Slot* slot = pin(handle, kind);
  if (!slot) return false;
  const std::uint64_t before = slot->word.fetch_or(kClosing, std::memory_order_acq_rel);
  if (!(before & kClosing)) unpin(slot);  // the table's own pin
  unpin(slot);
  return !(before & kClosing);
}

/// The last pin of a closed slot is gone: destroys the object and frees the slot under the next generation.
void HandleTable::retire(Slot* slot) {
  std::shared_ptr<void> object = std::move(slot->object);
  slot->object = nullptr;
  object.reset();
  live_count_.fetch_sub(1, std::memory_order_acq_rel);
  const std::uint32_t next = static_cast<std::uint32_t>(slot->word.load(std::memory_order_relaxed) >> 32) + 1;
  slot->word.store(std::uint64_t{next} << 32, std::memory_order_release);
  if (next == first_generation_) return;  // 2^32 handles were given out: this slot is used up
  const std::lock_guard lock(mutex_);
  free_.push_back(slot->index);
}

}  // namespace cairn::api
