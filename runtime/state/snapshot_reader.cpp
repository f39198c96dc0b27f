#include "runtime/state/snapshot_reader.h"

#include <algorithm>
#include <cstring>

#include "runtime/model/element_conversion.h"
#include "runtime/support/secure_zero.h"

namespace cairn {
namespace {

using What = SnapshotSection::What;
using ll = long long;

std::string fingerprint_text(const std::array<std::uint8_t, 32>& fingerprint) {
  char text[17];
  for (int i = 0; i < 8; ++i) std::snprintf(text + 2 * i, 3, "%02x", fingerprint[static_cast<std::size_t>(i)]);
  return text;
}

/// bf16 to f32 is exact; f32 to bf16 rounds to nearest even, and refuses what would become infinite. Both ends of a block
/// are whole elements.
Status convert_rows(const SnapshotSection& section, const std::byte* from, std::uint64_t first, std::uint64_t count, std::byte* to) {
  if (section.dtype == DType::kBF16) {
    convert_to_f32(from, DType::kBF16, count, reinterpret_cast<float*>(to));
    return {};
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    const float value = reinterpret_cast<const float*>(from)[i];
    const std::uint16_t half = f32_to_bf16(value);
    if ((half & 0x7f80U) == 0x7f80U) {
      return Status::error(CAIRN_STATUS_NUMERIC, "section '%s': element %llu, %g, is beyond the bf16 rows of this model", section.name.c_str(),
                           static_cast<unsigned long long>(first + i), static_cast<double>(value));
    }
    reinterpret_cast<std::uint16_t*>(to)[i] = half;
  }
  return {};
}

}  // namespace

SnapshotReader::SnapshotReader(ContainerReader container, SnapshotContents contents, const SnapshotReadOptions& options)
    : container_(std::move(container)), contents_(std::move(contents)), options_(options),
      sections_(expected_sections(contents_)) {
  for (const Section& section : container_.sections()) total_bytes_ += section.size_bytes;
  for (std::size_t i = 0; i < sections_.size(); ++i) {
    places_[{sections_[i].what, sections_[i].checkpoint, sections_[i].slot}] = i;
  }
}

Result<SnapshotReader> SnapshotReader::open(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options) {
  CAIRN_TRY_ASSIGN(SnapshotReader reader, open_front(std::move(source), options));
  CAIRN_TRY(reader.container_.read_back());
  return reader;
}

Result<SnapshotReader> SnapshotReader::open_front(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options) {
  ContainerLimits limits;
  limits.max_total_bytes = options.max_bytes;
  CAIRN_TRY_ASSIGN(ContainerReader container, ContainerReader::open_front(std::move(source), ContainerKind::kSnapshot, limits));
  CAIRN_TRY_ASSIGN(SnapshotContents contents, read_snapshot_contents(container));
  return SnapshotReader(std::move(container), std::move(contents), options);
}

Result<SnapshotReader> SnapshotReader::inspect(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options) {
  CAIRN_TRY_ASSIGN(SnapshotReader reader, open(std::move(source), options));
  CAIRN_TRY(reader.container_.verify_payload());
  for (const SnapshotSection& section : reader.sections_) CAIRN_TRY(reader.read_section(section, nullptr));
  return reader;
}

Status SnapshotReader::restore(std::shared_ptr<const ByteSource> source, const SnapshotReadOptions& options, Queue& queue,
                               State& state, const std::function<Status()>& finish) {
  CAIRN_TRY_ASSIGN(SnapshotReader reader, open_front(std::move(source), options));
  CAIRN_TRY(reader.check_matches(state));
  if (finish) CAIRN_TRY(finish());
  CAIRN_TRY(reader.container_.read_back());
  CAIRN_TRY(reader.container_.verify_payload());
  CAIRN_TRY_ASSIGN(const std::unique_ptr<State> staged, State::create(state.layout_, state.device_, state.options_));
  const QueueDrain drain(queue);
  CAIRN_TRY(reader.load(queue, *staged));
  CAIRN_TRY(queue.synchronize());
  state.swap_contents(*staged);
  return {};
}

// ---------------------------------------------------------------- does it fit the state?

Status SnapshotReader::check_matches(const State& state) const {
  const StateLayout& layout = state.layout();
  if (contents_.fingerprint != layout.fingerprint()) {
    return Status::error(CAIRN_STATUS_MISMATCH, "the snapshot is of model '%.64s' (%s...), the state of '%.64s' (%s...): other weights or another M0",
                         contents_.model_name.c_str(), fingerprint_text(contents_.fingerprint).c_str(), layout.model_name().c_str(),
                         fingerprint_text(layout.fingerprint()).c_str());
  }
  if (contents_.vocab_size != layout.vocab_size() || contents_.layer_count != layout.layer_count() ||
      contents_.slots.size() != layout.slots().size()) {
    return Status::format_error("vocab_size %d, %d layers and %zu slots, but the model has %d, %d and %zu", contents_.vocab_size,
                                contents_.layer_count, contents_.slots.size(), layout.vocab_size(), layout.layer_count(),
                                layout.slots().size());
  }
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    const SnapshotSlot& slot = contents_.slots[i];
    StateSlot expected = layout.slots()[i];
    if (expected.kind == SlotKind::kKvFull) expected.shape[0] = 0;
    if (slot.name == expected.name && slot.layer == expected.layer && slot.kind == expected.kind && slot.shape == expected.shape) continue;
    return Status::format_error("slot %zu is %s %s, expected %s %s", i, slot.name.c_str(), shape_text(slot.shape).c_str(),
                                expected.name.c_str(), shape_text(expected.shape).c_str());
  }
  if (contents_.kv_token_count > state.options().kv_capacity_tokens) {
    return Status::error(CAIRN_STATUS_STATE_FULL, "the snapshot holds %lld key-value tokens, the state has room for kv_capacity_tokens %lld",
                         static_cast<ll>(contents_.kv_token_count), static_cast<ll>(state.options().kv_capacity_tokens));
  }
  return {};
}

// ---------------------------------------------------------------- sections

const SnapshotSection* SnapshotReader::find(What what, std::int32_t checkpoint, std::int32_t slot) const {
  const auto found = places_.find({what, checkpoint, slot});
  return found != places_.end() ? &sections_[found->second] : nullptr;
}

/// Block by block: checksum, then values, then to its place.
Status SnapshotReader::read_section(const SnapshotSection& section, const Deliver& deliver) {
  const Section& stored = *container_.find(section.name);  // read_snapshot_contents() has checked that it is there
  CAIRN_TRY_ASSIGN(const HostBuffer block, HostBuffer::allocate(std::min<std::uint64_t>(kChecksumBlockBytes, stored.size_bytes), "snapshot block",
                                                                HostBuffer::OnRelease::kZero));
  SnapshotValueCheck check(section);
  for (std::uint64_t offset = 0; offset < stored.size_bytes;) {
    const std::uint64_t size = std::min<std::uint64_t>(kChecksumBlockBytes, stored.size_bytes - offset);
    CAIRN_TRY(container_.read_blocks(stored, offset, block.data(), size));
    CAIRN_TRY(check.check(block.data(), size));
    if (deliver) CAIRN_TRY(deliver(block.data(), offset, size));
    offset += size;
    done_bytes_ += size;
    if (options_.progress && !options_.progress(std::min(done_bytes_, total_bytes_), total_bytes_)) {
      return Status::error(CAIRN_STATUS_CANCELLED, "reading the snapshot was cancelled after %llu of %llu bytes",
                           static_cast<unsigned long long>(done_bytes_), static_cast<unsigned long long>(total_bytes_));
    }
  }
  return {};
}

Status SnapshotReader::read_values(const SnapshotSection& section, Queue& queue, std::byte* to) {
  return read_section(section, [&](const std::byte* data, std::uint64_t offset, std::uint64_t size) -> Status {
    CAIRN_TRY(queue.copy(to + offset, data, size, CopyKind::kHostToDevice));
    return queue.synchronize();  // the block is used again
  });
}

/// Row i of slots[i]: rows lie one after the other inside a slab, in the table's type.
Status SnapshotReader::read_table(std::int32_t checkpoint, std::int32_t slot, Queue& queue, SlotTable& table) {
  const SnapshotSection* slots_section = find(What::kSlots, checkpoint, slot);
  const SnapshotSection* rows_section = find(What::kRows, checkpoint, slot);
  if (!slots_section || !rows_section) return {};
  std::vector<std::int32_t> slots(static_cast<std::size_t>(slots_section->shape[0]));
  CAIRN_TRY(read_section(*slots_section, [&](const std::byte* data, std::uint64_t offset, std::uint64_t size) -> Status {
    std::memcpy(reinterpret_cast<std::byte*>(slots.data()) + offset, data, size);
    return {};
  }));
  CAIRN_TRY(table.assign_slots(queue, slots));
  const std::uint64_t slab_bytes = table.geometry().slab_bytes();
  const DType row_dtype = table.geometry().row_dtype;
  const auto stored_bytes = static_cast<std::uint64_t>(dtype_bits(rows_section->dtype) / 8), kept_bytes = static_cast<std::uint64_t>(dtype_bits(row_dtype) / 8);
  HostBuffer converted;
  if (rows_section->dtype != row_dtype) {
    CAIRN_TRY_ASSIGN(converted, HostBuffer::allocate(kChecksumBlockBytes / stored_bytes * kept_bytes, "snapshot rows", HostBuffer::OnRelease::kZero));
  }
  return read_section(*rows_section, [&](const std::byte* data, std::uint64_t offset, std::uint64_t size) -> Status {
    if (converted) {
      CAIRN_TRY(convert_rows(*rows_section, data, offset / stored_bytes, size / stored_bytes, converted.data()));
      data = converted.data(), offset = offset / stored_bytes * kept_bytes, size = size / stored_bytes * kept_bytes;
    }
    for (std::uint64_t done = 0; done < size;) {
      const std::uint64_t at = offset + done;
      const std::uint64_t piece = std::min(size - done, slab_bytes - at % slab_bytes);
      std::byte* to = table.slabs()[static_cast<std::size_t>(at / slab_bytes)]->as<std::byte>() + at % slab_bytes;
      CAIRN_TRY(queue.copy(to, data + done, piece, CopyKind::kHostToDevice));
      done += piece;
    }
    return queue.synchronize();
  });
}

// ---------------------------------------------------------------- the whole state

Status SnapshotReader::load(Queue& queue, State& state) {
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    const auto slot = static_cast<std::int32_t>(i);
    if (state.tables_[i]) {
      CAIRN_TRY(read_table(-1, slot, queue, *state.tables_[i]));
    } else if (const SnapshotSection* section = find(What::kValues, -1, slot)) {
      CAIRN_TRY(read_values(*section, queue, reinterpret_cast<std::byte*>(state.dense(slot))));
    }
  }
  if (const SnapshotSection* section = find(What::kLogits, -1, -1)) {
    state.has_last_logits_ = state.options_.keep_last_logits;
    CAIRN_TRY(state.has_last_logits_ ? read_values(*section, queue, state.last_logits_.as<std::byte>()) : read_section(*section, nullptr));
  }
  state.position_ = contents_.position;
  state.has_sparse_prefill_ = contents_.has_sparse_prefill;
  if (contents_.has_rewind) return load_journal(queue, state);
  return state.start_journal(queue);
}

/// As many as the state's own window and spacing ask for: the newest at or before the window's begin, then one after each
/// spacing, and each at the end of a sparse prefill, which cannot be read again.
std::vector<std::size_t> SnapshotReader::wanted_checkpoints(const RewindJournal& journal) const {
  const std::vector<SnapshotCheckpoint>& stored = contents_.checkpoints;
  const std::vector<ReadSpan>& spans = contents_.spans;
  std::vector<std::size_t> wanted;
  const auto ends_sparse = [&](std::int64_t position) {
    const auto ends_before = [](const ReadSpan& span, std::int64_t at) { return span.end() < at; };
    const auto span = std::lower_bound(spans.begin(), spans.end(), position, ends_before);
    return span != spans.end() && span->end() == position && span->sparse;
  };
  for (std::size_t i = 0; journal.is_on() && i < stored.size(); ++i) {
    if (i + 1 < stored.size() && stored[i + 1].position <= contents_.position - journal.window()) continue;
    const bool is_due = wanted.empty() || stored[i].position - stored[wanted.back()].position >= journal.spacing();
    if (is_due || ends_sparse(stored[i].position)) wanted.push_back(i);
  }
  return wanted;
}

/// All rewind data is checked, and as much of it kept as the state asks for.
Status SnapshotReader::load_journal(Queue& queue, State& state) {
  const std::vector<std::size_t> wanted = wanted_checkpoints(state.journal_);
  const auto most = static_cast<std::size_t>(16 * state.journal_.checkpoint_limit());
  if (wanted.size() > most) return Status::limit_exceeded("%zu checkpoints in the rewind window, more than %zu", wanted.size(), most);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(state.journal_.is_on() ? contents_.token_count : 0));
  for (const SnapshotSection& section : sections_) {
    if (section.what == What::kTokens && state.journal_.is_on()) {
      CAIRN_TRY(read_section(section, [&](const std::byte* data, std::uint64_t offset, std::uint64_t size) -> Status {
        std::memcpy(reinterpret_cast<std::byte*>(tokens.data()) + offset, data, size);
        return {};
      }));
      continue;
    }
    const bool is_kept = section.checkpoint >= 0 &&
                         std::binary_search(wanted.begin(), wanted.end(), static_cast<std::size_t>(section.checkpoint));
    if (section.what == What::kTokens || (section.checkpoint >= 0 && !is_kept)) CAIRN_TRY(read_section(section, nullptr));
  }
  if (!state.journal_.is_on()) return {};
  CheckpointList checkpoints;
  const QueueDrain drain(queue);
  for (const std::size_t i : wanted) {
    CAIRN_TRY_ASSIGN(std::unique_ptr<Checkpoint> checkpoint, load_checkpoint(static_cast<std::int32_t>(i), queue, state));
    checkpoints.push_back(std::move(checkpoint));
  }
  const Status status = state.journal_.load(std::move(checkpoints), contents_.spans, contents_.checkpoints[0].position, tokens);
  secure_zero(tokens.data(), tokens.size() * sizeof(std::int32_t));
  return status;
}

Result<std::unique_ptr<Checkpoint>> SnapshotReader::load_checkpoint(std::int32_t index, Queue& queue, State& state) {
  const SnapshotCheckpoint& stored = contents_.checkpoints[static_cast<std::size_t>(index)];
  auto checkpoint = std::make_unique<Checkpoint>();
  checkpoint->position = stored.position;
  checkpoint->has_sparse_prefill = stored.has_sparse_prefill;
  checkpoint->is_empty = stored.position == 0;
  if (checkpoint->is_empty) return checkpoint;
  const QueueDrain drain(queue);
  CAIRN_TRY(state.prepare(*checkpoint));
  CAIRN_TRY(queue.zero(checkpoint->dense.data(), checkpoint->dense.size_bytes()));
  for (std::size_t i = 0; i < contents_.slots.size(); ++i) {
    const auto slot = static_cast<std::int32_t>(i);
    if (state.tables_[i]) {
      CAIRN_TRY_ASSIGN(const std::unique_ptr<SlotTable> table, SlotTable::create(state.device_, state.layout().slots()[i], queue));
      CAIRN_TRY(read_table(index, slot, queue, *table));
      CAIRN_TRY(table->capture(queue, checkpoint->tables[i]));
    } else if (const SnapshotSection* section = find(What::kValues, index, slot)) {
      CAIRN_TRY(read_values(*section, queue, checkpoint->dense.as<std::byte>() + state.layout().offset_bytes(slot, 0)));
    }
  }
  return checkpoint;
}

}  // namespace cairn
