#include "runtime/state/snapshot_contents.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "runtime/model/container_header.h"
#include "schema/cairn_snapshot_generated.h"

namespace cairn {
namespace {

using ll = long long;

constexpr std::int64_t kChunk = 64;
constexpr std::int32_t kMaxLayers = static_cast<std::int32_t>(kMaxSections);  // each has a slot
constexpr std::size_t kMaxNameBytes = 200;  // of a slot: its sections' names are longer
constexpr std::int64_t kMaxSlots = std::int64_t{1} << 29;
// FlatBuffers can name one table many times: what the header expands to is bounded before it is expanded.
constexpr std::size_t kMaxSlotEntries = std::size_t{1} << 18;  // slots, and slots times checkpoints

bool is_table(const SnapshotSlot& slot) { return slot.kind == SlotKind::kSlotTable; }

std::vector<std::int64_t> values_shape(const SnapshotSlot& slot, std::int64_t kv_token_count) {
  std::vector<std::int64_t> shape = slot.shape;
  if (slot.kind == SlotKind::kKvFull) shape[0] = kv_token_count;
  return shape;
}

void add_slot_sections(const SnapshotContents& contents, const std::string& prefix, std::int32_t checkpoint, std::size_t index,
                       std::vector<SnapshotSection>& sections) {
  using What = SnapshotSection::What;
  const SnapshotSlot& slot = contents.slots[index];
  const auto slot_index = static_cast<std::int32_t>(index);
  const std::string name = prefix + slot.name;
  if (is_table(slot)) {
    const auto rows = static_cast<std::int64_t>(
        checkpoint < 0 ? slot.row_count : contents.checkpoints[static_cast<std::size_t>(checkpoint)].row_counts[index]);
    if (rows == 0) return;
    sections.push_back({name + ".rows", slot.row_dtype, {rows, slot.shape[2]}, What::kRows, checkpoint, slot_index, 0});
    sections.push_back({name + ".slots", DType::kI32, {rows}, What::kSlots, checkpoint, slot_index, slot.shape[0] * slot.shape[1]});
    return;
  }
  if (checkpoint >= 0 && slot.kind == SlotKind::kKvFull) return;  // append-only: the state's own rows serve
  std::vector<std::int64_t> shape = values_shape(slot, contents.kv_token_count);
  if (std::count(shape.begin(), shape.end(), 0) > 0) return;
  sections.push_back({name, DType::kF32, std::move(shape), What::kValues, checkpoint, slot_index, 0});
}

// ---------------------------------------------------------------- what the header may say

Status check_slot(const SnapshotSlot& slot, std::int32_t layer_count) {
  const char* name = slot.name.c_str();
  const auto is_allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.'; };
  if (slot.name.empty() || !std::all_of(slot.name.begin(), slot.name.end(), is_allowed)) {
    return Status::format_error("a slot's name is empty or holds a character other than a-z, 0-9, _, .");
  }
  if (slot.layer < 0 || slot.layer >= layer_count) {
    return Status::format_error("slot %s: layer %d is outside [0, %d)", name, slot.layer, layer_count);
  }
  if (slot.kind > SlotKind::kSlotTable) return Status::format_error("slot %s: unknown kind %d", name, static_cast<int>(slot.kind));
  if (slot.shape.empty() || slot.shape.size() > kMaxSectionRank) {
    return Status::format_error("slot %s: rank %zu (1 to %zu)", name, slot.shape.size(), kMaxSectionRank);
  }
  for (std::size_t i = 0; i < slot.shape.size(); ++i) {
    const bool may_be_empty = slot.kind == SlotKind::kConvTail || (slot.kind == SlotKind::kKvFull && i == 0);
    if (slot.shape[i] < (may_be_empty ? 0 : 1) || slot.shape[i] > INT32_MAX) {
      return Status::format_error("slot %s: dimension %zu is %lld", name, i, static_cast<ll>(slot.shape[i]));
    }
  }
  if (slot.kind == SlotKind::kKvFull && slot.shape[0] != 0) {
    return Status::format_error("slot %s: dimension 0 is %lld, must be 0 (the tokens are counted elsewhere)", name, static_cast<ll>(slot.shape[0]));
  }
  if (slot.row_dtype != DType::kF32 && (!is_table(slot) || slot.row_dtype != DType::kBF16)) {
    return Status::format_error("slot %s: rows of %s (slot tables: f32 or bf16)", name, dtype_name(slot.row_dtype));
  }
  if (!is_table(slot)) {
    if (slot.row_count == 0) return {};
    return Status::format_error("slot %s: %llu rows, but it is no slot table", name, static_cast<unsigned long long>(slot.row_count));
  }
  if (slot.shape.size() != 3 || slot.shape[0] > kMaxSlots / slot.shape[1]) {
    return Status::format_error("slot %s: a slot table of shape %s", name, shape_text(slot.shape).c_str());
  }
  if (slot.row_count > static_cast<std::uint64_t>(slot.shape[0] * slot.shape[1])) {
    return Status::format_error("slot %s: %llu rows, more than its %lld slots", name, static_cast<unsigned long long>(slot.row_count),
                                static_cast<ll>(slot.shape[0] * slot.shape[1]));
  }
  return {};
}

Status check_checkpoint(const SnapshotContents& contents, const SnapshotCheckpoint& checkpoint, std::size_t index) {
  for (std::size_t i = 0; i < contents.slots.size(); ++i) {
    const SnapshotSlot& slot = contents.slots[i];
    const std::int64_t most = is_table(slot) && checkpoint.position > 0 ? slot.shape[0] * slot.shape[1] : 0;
    if (checkpoint.row_counts[i] > static_cast<std::uint64_t>(most)) {
      return Status::format_error("checkpoint %zu: slot %s has %llu rows (limit %lld)", index, slot.name.c_str(),
                                  static_cast<unsigned long long>(checkpoint.row_counts[i]), static_cast<ll>(most));
    }
  }
  // Spans follow each other: the first that ends behind the checkpoint is the only one that it can lie in.
  const auto span = std::upper_bound(contents.spans.begin(), contents.spans.end(), checkpoint.position,
                                     [](std::int64_t at, const ReadSpan& one) { return at < one.end(); });
  if (span == contents.spans.end() || checkpoint.position <= span->begin) return {};
  if (span->sparse || (span->phase == Phase::kPrefill && (checkpoint.position - span->begin) % kChunk != 0)) {
    return Status::format_error("checkpoint %zu at %lld lies inside a chunk of the span that begins at %lld", index,
                                static_cast<ll>(checkpoint.position), static_cast<ll>(span->begin));
  }
  return {};
}

Status check_rewind(const SnapshotContents& contents) {
  if (contents.window_tokens <= 0 || contents.window_tokens > std::int64_t{1} << 40 || contents.spacing_tokens <= 0 ||
      contents.spacing_tokens % kChunk != 0) {
    return Status::format_error("rewind: window %lld, spacing %d", static_cast<ll>(contents.window_tokens), contents.spacing_tokens);
  }
  if (contents.checkpoints.empty()) return Status::format_error("rewind: there is no checkpoint");
  std::int64_t at = contents.checkpoints[0].position;
  if (at < 0 || at > contents.position || contents.token_count != static_cast<std::uint64_t>(contents.position - at)) {
    return Status::format_error("rewind: %llu tokens from position %lld do not lead to %lld",
                                static_cast<unsigned long long>(contents.token_count), static_cast<ll>(at), static_cast<ll>(contents.position));
  }
  for (const ReadSpan& span : contents.spans) {
    if (span.phase > Phase::kDecode) return Status::format_error("rewind: unknown phase %d", static_cast<int>(span.phase));
    if (span.begin != at || span.count <= 0 || span.count > contents.position - at || (span.sparse && span.phase == Phase::kDecode)) {
      return Status::format_error("rewind: a span of %lld tokens at %lld, expected one at %lld", static_cast<ll>(span.count),
                                  static_cast<ll>(span.begin), static_cast<ll>(at));
    }
    at = span.end();
  }
  if (at != contents.position) {
    return Status::format_error("rewind: the spans end at %lld, the state at %lld", static_cast<ll>(at), static_cast<ll>(contents.position));
  }
  for (std::size_t i = 0; i < contents.checkpoints.size(); ++i) {
    const std::int64_t position = contents.checkpoints[i].position;
    if (position > contents.position || (i > 0 && position <= contents.checkpoints[i - 1].position)) {
      return Status::format_error("rewind: checkpoint %zu at %lld is out of order", i, static_cast<ll>(position));
    }
    CAIRN_TRY(check_checkpoint(contents, contents.checkpoints[i], i));
  }
  return {};
}

Status check_contents(const SnapshotContents& contents) {
  if (contents.layer_count < 0 || contents.layer_count > kMaxLayers) {
    return Status::format_error("layer_count %d is outside [0, %d]", contents.layer_count, kMaxLayers);
  }
  if (contents.vocab_size < 1) return Status::format_error("vocab_size %d is not positive", contents.vocab_size);
  if (contents.position < 0 || contents.position > kMaxPosition) {
    return Status::format_error("position %lld is outside [0, 2^62]", static_cast<ll>(contents.position));
  }
  std::set<std::string> names;
  bool has_full = false;
  for (const SnapshotSlot& slot : contents.slots) {
    CAIRN_TRY(check_slot(slot, contents.layer_count));
    if (!names.insert(slot.name).second) return Status::format_error("slot %s is there twice", slot.name.c_str());
    has_full = has_full || slot.kind == SlotKind::kKvFull;
  }
  if (contents.kv_token_count != (has_full ? contents.position : 0)) {
    return Status::format_error("kv_token_count %lld does not fit position %lld", static_cast<ll>(contents.kv_token_count),
                                static_cast<ll>(contents.position));
  }
  return contents.has_rewind ? check_rewind(contents) : Status();
}

/// Exactly the expected sections, with their types and shapes.
Status check_sections(const SnapshotContents& contents, const ContainerReader& reader) {
  const std::vector<SnapshotSection> expected = expected_sections(contents);
  for (const SnapshotSection& section : expected) CAIRN_TRY(reader.require(section.name, section.dtype, section.shape).status());
  if (expected.size() == reader.sections().size()) return {};
  const auto is_before = [](const SnapshotSection& known, const std::string& name) { return known.name < name; };
  for (const Section& section : reader.sections()) {
    const auto found = std::lower_bound(expected.begin(), expected.end(), section.name, is_before);
    if (found == expected.end() || found->name != section.name) return Status::format_error("section '%s' does not belong to this snapshot", section.name.c_str());
  }
  return Status::format_error("%zu sections, expected %zu", reader.sections().size(), expected.size());
}

Status read_slots(const schema::SnapshotHeader& header, SnapshotContents& contents) {
  if (header.slots()->size() > kMaxSections) return Status::limit_exceeded("%u slots, more than %zu", header.slots()->size(), std::size_t{kMaxSections});
  for (const schema::Slot* entry : *header.slots()) {
    SnapshotSlot slot;
    CAIRN_TRY_ASSIGN(slot.name, checked_text(entry->name(), "a slot's name", kMaxNameBytes));
    slot.layer = entry->layer();
    slot.kind = static_cast<SlotKind>(entry->kind());
    if (entry->shape()->size() > kMaxSectionRank) {
      return Status::format_error("slot %s: rank %u (1 to %zu)", slot.name.c_str(), entry->shape()->size(), kMaxSectionRank);
    }
    slot.shape = copy_vector(entry->shape());
    slot.row_count = entry->row_count();
    slot.row_dtype = static_cast<DType>(entry->row_dtype());
    contents.slots.push_back(std::move(slot));
  }
  return {};
}

Status read_rewind(const schema::Rewind& rewind, SnapshotContents& contents) {
  const std::size_t slot_count = contents.slots.size(), checkpoint_count = rewind.checkpoints()->size();
  CAIRN_TRY(check_checkpoint_count(checkpoint_count, slot_count));
  contents.has_rewind = true;
  contents.window_tokens = rewind.window_tokens();
  contents.spacing_tokens = rewind.spacing_tokens();
  contents.token_count = rewind.token_count();
  for (const schema::ReadSpan* span : *rewind.spans()) {
    contents.spans.push_back({span->begin(), span->count(), static_cast<Phase>(span->phase()), span->sparse()});
  }
  for (const schema::Checkpoint* checkpoint : *rewind.checkpoints()) {
    if (checkpoint->row_counts()->size() != slot_count) {
      return Status::format_error("a checkpoint has %u row counts, expected %zu", checkpoint->row_counts()->size(), slot_count);
    }
    contents.checkpoints.push_back({checkpoint->position(), checkpoint->has_sparse_prefill(), copy_vector(checkpoint->row_counts())});
  }
  return {};
}

flatbuffers::Offset<schema::Rewind> build_rewind(flatbuffers::FlatBufferBuilder& builder, const SnapshotContents& contents) {
  if (!contents.has_rewind) return 0;
  std::vector<flatbuffers::Offset<schema::ReadSpan>> spans;
  for (const ReadSpan& span : contents.spans) {
    spans.push_back(schema::CreateReadSpan(builder, span.begin, span.count, static_cast<schema::ReadPhase>(span.phase), span.sparse));
  }
  std::vector<flatbuffers::Offset<schema::Checkpoint>> checkpoints;
  for (const SnapshotCheckpoint& checkpoint : contents.checkpoints) {
    const auto row_counts = builder.CreateVector(checkpoint.row_counts);
    checkpoints.push_back(schema::CreateCheckpoint(builder, checkpoint.position, checkpoint.has_sparse_prefill, row_counts));
  }
  const auto span_vector = builder.CreateVector(spans);
  const auto checkpoint_vector = builder.CreateVector(checkpoints);
  return schema::CreateRewind(builder, contents.window_tokens, contents.spacing_tokens, contents.token_count, span_vector,
                              checkpoint_vector);
}

}  // namespace

Status check_checkpoint_count(std::size_t checkpoint_count, std::size_t slot_count) {
  if (checkpoint_count <= kMaxSlotEntries / (slot_count + 1)) return {};
  return Status::limit_exceeded("%zu checkpoints of %zu slots, more than %zu in all", checkpoint_count, slot_count, kMaxSlotEntries);
}

std::vector<SnapshotSection> expected_sections(const SnapshotContents& contents) {
  using What = SnapshotSection::What;
  std::vector<SnapshotSection> sections;
  for (std::size_t i = 0; i < contents.slots.size(); ++i) add_slot_sections(contents, "", -1, i, sections);
  if (contents.has_last_logits) {
    sections.push_back({"last_logits", DType::kF32, {contents.vocab_size}, What::kLogits, -1, -1, 0});
  }
  if (contents.token_count > 0) {
    sections.push_back({"rewind.tokens", DType::kI32, {static_cast<std::int64_t>(contents.token_count)}, What::kTokens, -1, -1,
                        contents.vocab_size});
  }
  for (std::size_t c = 0; c < contents.checkpoints.size(); ++c) {
    if (contents.checkpoints[c].position == 0) continue;
    const std::string prefix = "rewind." + std::to_string(c) + ".";
    for (std::size_t i = 0; i < contents.slots.size(); ++i) {
      add_slot_sections(contents, prefix, static_cast<std::int32_t>(c), i, sections);
    }
  }
  std::sort(sections.begin(), sections.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return sections;
}

void build_snapshot_header(flatbuffers::FlatBufferBuilder& builder, const SnapshotContents& contents, const ContainerPlan& plan) {
  const auto sections = build_sections(builder, plan);
  std::vector<flatbuffers::Offset<schema::Slot>> slots;
  for (const SnapshotSlot& slot : contents.slots) {
    const auto name = builder.CreateString(slot.name);
    const auto shape = builder.CreateVector(slot.shape);
    slots.push_back(schema::CreateSlot(builder, name, slot.layer, static_cast<schema::SlotKind>(slot.kind), shape, slot.row_count,
                                       static_cast<schema::DType>(slot.row_dtype)));
  }
  const auto slot_vector = builder.CreateVector(slots);
  const auto rewind = build_rewind(builder, contents);
  const auto version = builder.CreateString(contents.library_version);
  const auto model_name = builder.CreateString(contents.model_name);
  const schema::Digest fingerprint(flatbuffers::span<const std::uint8_t, 32>(contents.fingerprint.data(), 32));
  const auto header = schema::CreateSnapshotHeader(
      builder, sections, version, &fingerprint, model_name, contents.vocab_size, contents.layer_count, contents.position,
      contents.kv_token_count, contents.has_sparse_prefill, contents.has_last_logits, slot_vector, rewind);
  schema::FinishSnapshotHeaderBuffer(builder, header);
}

Result<SnapshotContents> read_snapshot_contents(const ContainerReader& reader) {
  const schema::SnapshotHeader& header = reader.snapshot_header();
  SnapshotContents contents;
  CAIRN_TRY_ASSIGN(contents.library_version, checked_text(header.library_version(), "library_version", 64));
  CAIRN_TRY_ASSIGN(contents.model_name, checked_text(header.model_name(), "model_name", 4096));
  const auto* fingerprint = header.model_fingerprint()->bytes();
  for (std::size_t i = 0; i < contents.fingerprint.size(); ++i) contents.fingerprint[i] = fingerprint->Get(static_cast<flatbuffers::uoffset_t>(i));
  contents.vocab_size = header.vocab_size();
  contents.layer_count = header.layer_count();
  contents.position = header.position();
  contents.kv_token_count = header.kv_token_count();
  contents.has_sparse_prefill = header.has_sparse_prefill();
  contents.has_last_logits = header.has_last_logits();
  CAIRN_TRY(read_slots(header, contents));
  if (header.rewind()) CAIRN_TRY(read_rewind(*header.rewind(), contents));
  CAIRN_TRY(check_contents(contents));
  CAIRN_TRY(check_sections(contents, reader));
  return contents;
}

/// Infinity and NaN have all bits of the exponent set.
template <class Bits>
Status SnapshotValueCheck::check_finite(const Bits* values, std::uint64_t count, std::uint32_t exponent) {
  for (std::uint64_t i = 0; i < count; ++i, ++count_) {
    if ((values[i] & exponent) != exponent) continue;
    return Status::error(CAIRN_STATUS_NUMERIC, "section '%s': element %llu is not a finite number", section_.name.c_str(),
                         static_cast<unsigned long long>(count_));
  }
  return {};
}

Status SnapshotValueCheck::check(const void* data, std::uint64_t size_bytes) {
  if (section_.dtype == DType::kF32) return check_finite(static_cast<const std::uint32_t*>(data), size_bytes / 4, 0x7f800000U);
  if (section_.dtype == DType::kBF16) return check_finite(static_cast<const std::uint16_t*>(data), size_bytes / 2, 0x7f80U);
  const std::uint64_t count = size_bytes / 4;
  const auto* values = static_cast<const std::int32_t*>(data);
  for (std::uint64_t i = 0; i < count; ++i, ++count_) {
    const std::int32_t value = values[i];
    if (value < 0 || value >= section_.value_limit) {
      return Status::format_error("section '%s': element %llu is %d, outside [0, %lld)", section_.name.c_str(),
                                  static_cast<unsigned long long>(count_), value, static_cast<ll>(section_.value_limit));
    }
    if (section_.what == SnapshotSection::What::kSlots && value <= previous_) {
      return Status::format_error("section '%s': element %llu is %d after %lld: slots must increase", section_.name.c_str(),
                                  static_cast<unsigned long long>(count_), value, static_cast<ll>(previous_));
    }
    previous_ = value;
  }
  return {};
}

}  // namespace cairn
