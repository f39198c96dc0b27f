// What a snapshot says about itself, in plain types: its header, and the sections that follow from it. Writer, reader and
// inspection share it, so that they cannot disagree. Format: schema/FORMAT.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/container_reader.h"
#include "runtime/model/container_writer.h"
#include "runtime/state/state.h"

namespace flatbuffers {
class FlatBufferBuilder;
}

namespace cairn {

struct SnapshotSlot {
  std::string name;
  std::int32_t layer = 0;
  SlotKind kind = SlotKind::kRecurrent;
  std::vector<std::int64_t> shape;  ///< as in StateSlot: shape[0] is 0 for kKvFull
  std::uint64_t row_count = 0;      ///< kSlotTable: written rows
  DType row_dtype = DType::kF32;    ///< kSlotTable: of its rows, f32 or bf16; a reader converts them to the state's own
};

struct SnapshotCheckpoint {
  std::int64_t position = 0;
  bool has_sparse_prefill = false;
  std::vector<std::uint64_t> row_counts;  ///< by slot; 0 where the slot is dense
};

struct SnapshotContents {
  std::string library_version, model_name;
  std::array<std::uint8_t, 32> fingerprint{};
  std::int32_t vocab_size = 0, layer_count = 0;
  std::int64_t position = 0, kv_token_count = 0;
  bool has_sparse_prefill = false, has_last_logits = false;
  std::vector<SnapshotSlot> slots;
  bool has_rewind = false;
  std::int64_t window_tokens = 0;
  std::int32_t spacing_tokens = 0;
  std::uint64_t token_count = 0;
  std::vector<ReadSpan> spans;
  std::vector<SnapshotCheckpoint> checkpoints;
};

/// One section that the contents call for.
struct SnapshotSection {
  enum class What : std::uint8_t { kValues, kSlots, kRows, kLogits, kTokens };
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  What what = What::kValues;
  std::int32_t checkpoint = -1;  ///< -1: of the state itself
  std::int32_t slot = -1;
  std::int64_t value_limit = 0;  ///< kSlots, kTokens: values are in [0, limit)
};

/// LIMIT_EXCEEDED: more than a reader takes. A writer asks too.
Status check_checkpoint_count(std::size_t checkpoint_count, std::size_t slot_count);

/// Sorted by name. A checkpoint at position 0 has none: it is the empty state.
std::vector<SnapshotSection> expected_sections(const SnapshotContents& contents);

/// The header as a FlatBuffer. plan.finish() has run.
void build_snapshot_header(flatbuffers::FlatBufferBuilder& builder, const SnapshotContents& contents, const ContainerPlan& plan);

/// Reads the header and checks what it means, as far as that is known without a model: numbers in range and in step with
/// each other, and exactly the sections that follow from them.
Result<SnapshotContents> read_snapshot_contents(const ContainerReader& reader);

/// Checks pieces of one section as they come: finite floats; slots strictly increasing; slots and tokens in range.
class SnapshotValueCheck {
 public:
  explicit SnapshotValueCheck(const SnapshotSection& section) : section_(section) {}
  Status check(const void* data, std::uint64_t size_bytes);

 private:
  template <class Bits>
  Status check_finite(const Bits* values, std::uint64_t count, std::uint32_t exponent);

  const SnapshotSection& section_;
  std::int64_t previous_ = -1;
  std::uint64_t count_ = 0;
};

}  // namespace cairn
