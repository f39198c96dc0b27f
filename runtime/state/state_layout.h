// Where everything lies inside a state. Planned once per model; equal for all of its states.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/interface/tensor_view.h"
#include "runtime/support/status.h"

namespace cairn {

/// Largest position of a state: no snapshot holds a larger one, and sums of two do not overflow.
inline constexpr std::int64_t kMaxPosition = std::int64_t{1} << 62;

/// Values are written to snapshots: never renumber.
enum class SlotKind : std::uint8_t {
  kRecurrent = 0,  ///< f32, the mechanism's S; starts as zeros
  kConvTail = 1,   ///< f32 [kernel - 1, channels]; starts as zeros
  kKvRing = 2,     ///< f32 [window, heads, dim]: row p % window
  kKvFull = 3,     ///< f32 [kv capacity, heads, dim]: shape[0] is 0 in the slot; append-only, so checkpoints skip it
  kSlotTable = 4   ///< SDM [heads, slots, value dim]: copy-on-write rows over M0
};

/// One piece of a state, declared by a layer.
struct StateSlot {
  std::string name;                  ///< "layers.2.state", "layers.2.conv", "layers.5.keys", "layers.2.table"
  std::int32_t layer = 0;
  SlotKind kind = SlotKind::kRecurrent;
  std::vector<std::int64_t> shape;
  const void* initial = nullptr;     ///< kSlotTable: the model's M0 on the device, or null: zeros
  DType initial_dtype = DType::kF32;
  std::int32_t writes_per_token = 0; ///< kSlotTable: slots of one head that a token may write (W)
  DType row_dtype = DType::kF32;     ///< kSlotTable: of its rows, f32 or bf16
};

/// The plan. A slot's index is its place in slots().
class StateLayout {
 public:
  /// Checks sizes with checked arithmetic. `identity`: what snapshots carry to recognise the model.
  static Result<StateLayout> plan(std::vector<StateSlot> slots, std::array<std::uint8_t, 32> fingerprint,
                                  std::string model_name, std::int32_t vocab_size, std::int32_t layer_count);

  const std::vector<StateSlot>& slots() const { return slots_; }
  const std::array<std::uint8_t, 32>& fingerprint() const { return fingerprint_; }
  const std::string& model_name() const { return model_name_; }
  std::int32_t vocab_size() const { return vocab_size_; }
  std::int32_t layer_count() const { return layer_count_; }
  bool has_full_attention() const { return has_full_attention_; }

  /// Byte offset of a dense slot inside the dense buffer; 256-aligned. Slots other than kKvFull come first, so that
  /// [0, checkpoint_bytes()) is what a checkpoint copies.
  std::uint64_t offset_bytes(std::int32_t slot, std::int64_t kv_capacity) const;
  std::uint64_t slot_bytes(std::int32_t slot, std::int64_t kv_capacity) const;
  std::uint64_t checkpoint_bytes() const { return checkpoint_bytes_; }
  std::uint64_t dense_bytes(std::int64_t kv_capacity) const;
  std::uint64_t kv_bytes_per_token() const { return kv_bytes_per_token_; }
  /// Of a fresh state: dense part and index tables.
  std::uint64_t fresh_bytes(std::int64_t kv_capacity) const;

 private:
  std::vector<StateSlot> slots_;
  std::vector<std::uint64_t> fixed_offsets_;     ///< of slots before kKvFull
  std::array<std::uint8_t, 32> fingerprint_{};
  std::string model_name_;
  std::int32_t vocab_size_ = 0, layer_count_ = 0;
  bool has_full_attention_ = false;
  std::uint64_t checkpoint_bytes_ = 0, kv_bytes_per_token_ = 0, table_bytes_ = 0;
};

}  // namespace cairn
