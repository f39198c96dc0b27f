// Handles: what the C API gives out instead of addresses.
//
// A handle is 64 bits, passed as an opaque pointer: kind (4 bits, never 0) | slot index (28) | generation (32). It is
// looked up on every call: NULL, released, of another kind, of another loaded copy of the library and made-up values are
// all refused. A lookup takes no lock and pins the object: one released meanwhile lives until its last pin is gone, and
// is destroyed by whoever drops that pin. Children hold shared_ptrs of what they need from their parents.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/support/status.h"

namespace cairn::api {

enum class HandleKind : std::uint8_t { kDevice = 1, kModel = 2, kState = 3, kStream = 4, kTextDecoder = 5 };
const char* handle_kind_name(HandleKind kind);  ///< "device", ...

class HandleTable {
 public:
  /// The table of this library. Never destroyed: finalizers of a host's runtime may call at process exit.
  static HandleTable& instance();

  HandleTable();
  ~HandleTable();  ///< nothing may use the table any more
  HandleTable(const HandleTable&) = delete;
  HandleTable& operator=(const HandleTable&) = delete;

  /// LIMIT_EXCEEDED: 2^28 handles are alive. Throws bad_alloc.
  Result<std::uint64_t> insert(HandleKind kind, std::shared_ptr<void> object);
  /// The handle is stale from now on. False: it was not a live handle of this kind.
  bool release(std::uint64_t handle, HandleKind kind);
  /// Objects that handles or pins keep alive.
  std::uint64_t live_count() const { return live_count_.load(std::memory_order_acquire); }

 private:
  friend class PinBase;
  /// word: generation (32) | closing (1) | pins (31). A free slot's generation is that of the next handle it gives.
  struct Slot {
    std::atomic<std::uint64_t> word{0};
    HandleKind kind{};
    std::uint32_t index = 0;
    std::shared_ptr<void> object;
  };
  static constexpr std::uint64_t kPinMask = (std::uint64_t{1} << 31) - 1;
  static constexpr std::uint64_t kClosing = std::uint64_t{1} << 31;
  static constexpr std::uint32_t kIndexBits = 28;
  static constexpr std::uint32_t kFirstBucketBits = 8;
  static constexpr std::size_t kBucketCount = kIndexBits - kFirstBucketBits + 1;
  static constexpr std::uint32_t bucket_of(std::uint32_t index) {
    return static_cast<std::uint32_t>(std::bit_width(index >> kFirstBucketBits));
  }
  static constexpr std::uint32_t bucket_begin(std::uint32_t bucket) {
    return bucket == 0 ? 0 : 1U << (bucket + kFirstBucketBits - 1);
  }

  Slot* slot_at(std::uint32_t index) const;
  Slot* pin(std::uint64_t handle, HandleKind kind) const;
  void unpin(Slot* slot);
  void retire(Slot* slot);
  Result<std::uint32_t> take_index();

  /// Bucket b > 0 holds slots [2^(b + 7), 2^(b + 8)), bucket 0 the first 2^8: they never move.
  std::array<std::atomic<Slot*>, kBucketCount> buckets_{};
  std::atomic<std::uint64_t> live_count_{0};
  std::uint32_t first_generation_;
  std::mutex mutex_;
  std::uint32_t slot_count_ = 0;
  std::vector<std::uint32_t> free_;
};

class PinBase {
 public:
  explicit operator bool() const { return slot_ != nullptr; }

 protected:
  PinBase() = default;
  PinBase(HandleTable& table, std::uint64_t handle, HandleKind kind) : table_(&table), slot_(table.pin(handle, kind)) {}
  PinBase(PinBase&& other) noexcept : table_(other.table_), slot_(std::exchange(other.slot_, nullptr)) {}
  PinBase& operator=(PinBase&& other) noexcept {
    std::swap(table_, other.table_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~PinBase() {
    if (slot_) table_->unpin(slot_);
  }
  const std::shared_ptr<void>& object() const { return slot_->object; }

 private:
  HandleTable* table_ = nullptr;
  HandleTable::Slot* slot_ = nullptr;
};

/// An object kept alive for the length of a call. False: the handle is not valid.
template <class T>
class Pin : public PinBase {
 public:
  Pin() = default;
  Pin(HandleTable& table, std::uint64_t handle, HandleKind kind) : PinBase(table, handle, kind) {}
  T* operator->() const { return static_cast<T*>(object().get()); }
  T& operator*() const { return *static_cast<T*>(object().get()); }
  std::shared_ptr<T> share() const { return std::static_pointer_cast<T>(object()); }
};

}  // namespace cairn::api
