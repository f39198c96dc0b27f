// The small arrays that a step's operators read: tokens, offsets, positions, and where each sequence's state lies.
// Laid out in one block, filled on the host, copied to the device at once.
#pragma once

#include <span>
#include <vector>

#include "runtime/execution/plan.h"

namespace cairn {

/// What one sequence contributes to a step.
struct StepPart {
  State* state;
  const std::int32_t* tokens;
  std::int32_t token_count;
  std::int32_t logits_count;  ///< of its last tokens
};

class StepInputs {
 public:
  explicit StepInputs(std::shared_ptr<const Plan> plan) : plan_(std::move(plan)) {}

  bool has_room(std::int32_t token_count, std::int32_t sequence_count, std::int32_t logits_rows) const;
  /// Room for this many and for what there was room for; the only place that allocates. On failure there is none.
  Status reserve(std::int32_t token_count, std::int32_t sequence_count, std::int32_t logits_rows);
  /// Fills the block from the parts, queues its copy, and points `step` at it.
  Status fill(Queue& queue, std::span<const StepPart> parts, Step& step);

  const std::int32_t* tokens() const { return device_view_.tokens; }
  const std::int32_t* logits_row() const { return device_view_.logits_row; }
  std::int32_t logits_rows() const { return logits_rows_; }

 private:
  struct View {
    std::int32_t *tokens, *offsets, *logits_row;
    std::int64_t* starts;
    float** dense;       ///< [dense slots, B]
    KvCache* caches;     ///< [cache slots, B]
    SdmTable* tables;    ///< [table slots, B]
    std::size_t size_bytes;
  };
  struct Room {
    std::int32_t tokens = 0, sequences = 0, logits_rows = 0;
  };
  View carve(const Room& room, void* base) const;
  Status allocate(const Room& room);
  void fill_states(std::span<const StepPart> parts, Step& step);

  std::shared_ptr<const Plan> plan_;
  Room room_;  ///< of the blocks
  std::int32_t logits_rows_ = 0;
  DeviceBuffer host_, device_;
  View host_view_{}, device_view_{};
};

}  // namespace cairn
