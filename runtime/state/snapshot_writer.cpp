#include "runtime/state/snapshot_writer.h"

#include <algorithm>

#include "flatbuffers/flatbuffers.h"
#include "runtime/model/container_header.h"
#include "runtime/support/secure_zero.h"

namespace cairn {
namespace {

constexpr std::uint64_t kStagingBytes = std::uint64_t{1} << 20;

}  // namespace

Result<SnapshotWriter> SnapshotWriter::prepare(const State& state, Queue& queue, bool include_rewind) {
  if (!state.is_valid()) {
    return Status::error(CAIRN_STATUS_STATE_INVALID, "an invalid state is not saved: reset, restore or rewind it first");
  }
  CAIRN_TRY(queue.synchronize());
  SnapshotWriter writer(state, queue);
  const StateLayout& layout = state.layout();
  SnapshotContents& contents = writer.contents_;
  contents.library_version = library_version();
  contents.model_name = layout.model_name();
  contents.fingerprint = layout.fingerprint();
  contents.vocab_size = layout.vocab_size();
  contents.layer_count = layout.layer_count();
  contents.position = state.position();
  contents.kv_token_count = state.kv_used_tokens();
  contents.has_sparse_prefill = state.has_sparse_prefill();
  contents.has_last_logits = state.has_last_logits();
  CAIRN_TRY(writer.collect_slots());
  if (include_rewind && state.journal().is_on()) CAIRN_TRY(writer.collect_rewind());
  CAIRN_TRY(writer.build());
  return writer;
}

Status SnapshotWriter::collect_slots() {
  const std::vector<StateSlot>& slots = state_->layout().slots();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto index = static_cast<std::int32_t>(i);
    SnapshotSlot slot{slots[i].name, slots[i].layer, slots[i].kind, slots[i].shape, 0};
    if (slot.kind == SlotKind::kKvFull) slot.shape[0] = 0;
    slot.row_dtype = slots[i].row_dtype;
    if (const SlotTable* table = state_->slot_table(index)) {
      CAIRN_TRY(collect_written(-1, index, table->view().row_of_slot, table->geometry()));
      slot.row_count = written_[{-1, index}].slots.size();
    }
    contents_.slots.push_back(std::move(slot));
  }
  return {};
}

Status SnapshotWriter::collect_rewind() {
  const RewindJournal& journal = state_->journal();
  contents_.has_rewind = true;
  contents_.window_tokens = journal.window();
  contents_.spacing_tokens = journal.spacing();
  contents_.token_count = static_cast<std::uint64_t>(journal.tokens().end() - journal.tokens().begin());
  contents_.spans = journal.spans();
  const std::size_t slot_count = contents_.slots.size();
  for (const std::unique_ptr<Checkpoint>& checkpoint : journal.checkpoints()) {
    const auto index = static_cast<std::int32_t>(contents_.checkpoints.size());
    SnapshotCheckpoint entry{checkpoint->position, checkpoint->has_sparse_prefill, std::vector<std::uint64_t>(slot_count, 0)};
    for (std::size_t i = 0; i < slot_count && !checkpoint->is_empty; ++i) {
      const auto slot = static_cast<std::int32_t>(i);
      const SlotTable* table = state_->slot_table(slot);
      if (!table) continue;
      CAIRN_TRY(collect_written(index, slot, checkpoint->tables[i].index.data(), table->geometry()));
      entry.row_counts[i] = written_[{index, slot}].slots.size();
    }
    contents_.checkpoints.push_back(std::move(entry));
  }
  return {};
}

Status SnapshotWriter::collect_written(std::int32_t checkpoint, std::int32_t slot, const void* index,
                                       const SlotTable::Geometry& geometry) {
  std::vector<std::int32_t> row_of_slot(static_cast<std::size_t>(geometry.slot_count));
  CAIRN_TRY(queue_->copy(row_of_slot.data(), index, geometry.index_bytes(), CopyKind::kDeviceToHost));
  CAIRN_TRY(queue_->synchronize());
  Written& written = written_[{checkpoint, slot}];
  for (std::size_t i = 0; i < row_of_slot.size(); ++i) {
    if (row_of_slot[i] < 0) continue;
    written.slots.push_back(static_cast<std::int32_t>(i));
    written.rows.push_back(row_of_slot[i]);
  }
  return {};
}

Status SnapshotWriter::build() {
  CAIRN_TRY(check_checkpoint_count(contents_.checkpoints.size(), contents_.slots.size()));
  sections_ = expected_sections(contents_);
  for (const SnapshotSection& section : sections_) CAIRN_TRY(plan_.add(section.name, section.dtype, section.shape));
  CAIRN_TRY(plan_.finish());
  flatbuffers::FlatBufferBuilder builder;
  build_snapshot_header(builder, contents_, plan_);
  if (builder.GetSize() > kMaxHeaderBytes) {
    return Status::limit_exceeded("the snapshot's header has %u bytes (limit %llu)", builder.GetSize(),
                                  static_cast<unsigned long long>(kMaxHeaderBytes));
  }
  header_.assign(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
  CAIRN_TRY_ASSIGN(staging_, HostBuffer::allocate(kStagingBytes, "snapshot", HostBuffer::OnRelease::kZero));
  return {};
}

Status SnapshotWriter::write(ByteSink& sink, const ByteProgress& progress) {
  ContainerWriter writer(plan_, sink, progress);
  CAIRN_TRY(writer.begin(header_.data(), header_.size()));
  for (const SnapshotSection& section : sections_) CAIRN_TRY(write_section(writer, section));
  return writer.finish();
}

Status SnapshotWriter::write_section(ContainerWriter& writer, const SnapshotSection& section) {
  using What = SnapshotSection::What;
  const auto write_host = [&](const void* data, std::uint64_t size_bytes) -> Status {
    SnapshotValueCheck check(section);
    CAIRN_TRY(check.check(data, size_bytes));
    return writer.write(data, size_bytes);
  };
  switch (section.what) {
    case What::kValues: return write_values(writer, section);
    case What::kRows: return write_rows(writer, section);
    case What::kLogits: {
      std::vector<float> logits(static_cast<std::size_t>(state_->layout().vocab_size()));
      Status status = state_->read_last_logits(*queue_, logits.data());
      if (status.ok()) status = write_host(logits.data(), logits.size() * sizeof(float));
      secure_zero(logits.data(), logits.size() * sizeof(float));
      return status;
    }
    case What::kSlots: {
      const Written& written = written_[{section.checkpoint, section.slot}];
      return write_host(written.slots.data(), written.slots.size() * sizeof(std::int32_t));
    }
    case What::kTokens: {
      const TokenLog& tokens = state_->journal().tokens();
      return write_host(tokens.at(tokens.begin()), contents_.token_count * sizeof(std::int32_t));
    }
  }
  return Status::error(CAIRN_STATUS_INTERNAL, "section '%s' is of no kind", section.name.c_str());
}

Status SnapshotWriter::write_values(ContainerWriter& writer, const SnapshotSection& section) {
  const std::byte* from = reinterpret_cast<const std::byte*>(state_->dense(section.slot));
  if (section.checkpoint >= 0) {
    const Checkpoint& checkpoint = *state_->journal().checkpoints()[static_cast<std::size_t>(section.checkpoint)];
    from = checkpoint.dense.as<std::byte>() + state_->layout().offset_bytes(section.slot, 0);
  }
  std::uint64_t total = sizeof(float);
  for (const std::int64_t dim : section.shape) total *= static_cast<std::uint64_t>(dim);
  SnapshotValueCheck check(section);
  for (std::uint64_t done = 0; done < total;) {
    const std::uint64_t piece = std::min(kStagingBytes, total - done);
    CAIRN_TRY(queue_->copy(staging_.data(), from + done, piece, CopyKind::kDeviceToHost));
    CAIRN_TRY(queue_->synchronize());
    CAIRN_TRY(check.check(staging_.data(), piece));
    CAIRN_TRY(writer.write(staging_.data(), piece));
    done += piece;
  }
  return {};
}

Status SnapshotWriter::write_rows(ContainerWriter& writer, const SnapshotSection& section) {
  const SlotTable& table = *state_->slot_table(section.slot);
  const SlotTable::Geometry& geometry = table.geometry();
  const SlabList* slabs = &table.slabs();
  if (section.checkpoint >= 0) {
    const Checkpoint& checkpoint = *state_->journal().checkpoints()[static_cast<std::size_t>(section.checkpoint)];
    slabs = &checkpoint.tables[static_cast<std::size_t>(section.slot)].slabs;
  }
  const std::vector<std::int32_t>& rows = written_[{section.checkpoint, section.slot}].rows;
  const std::uint64_t row_bytes = geometry.row_bytes();
  if (row_bytes > staging_.size_bytes()) {
    CAIRN_TRY_ASSIGN(staging_, HostBuffer::allocate(row_bytes, "snapshot", HostBuffer::OnRelease::kZero));
  }
  const std::size_t rows_at_once = static_cast<std::size_t>(staging_.size_bytes() / row_bytes);
  SnapshotValueCheck check(section);
  for (std::size_t done = 0; done < rows.size();) {
    const std::size_t count = std::min(rows_at_once, rows.size() - done);
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte* from = SlotTable::row_address(*slabs, geometry, rows[done + i]);
      CAIRN_TRY(queue_->copy(staging_.data() + i * row_bytes, from, row_bytes, CopyKind::kDeviceToHost));
    }
    CAIRN_TRY(queue_->synchronize());
    CAIRN_TRY(check.check(staging_.data(), count * row_bytes));
    CAIRN_TRY(writer.write(staging_.data(), count * row_bytes));
    done += count;
  }
  return {};
}

}  // namespace cairn
