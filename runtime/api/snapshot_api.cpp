// cairn/snapshot.h: states as bytes.
#include <algorithm>
#include <cstring>

#include "runtime/api/objects.h"
#include "runtime/execution/plan.h"
#include "runtime/model/container_stream.h"
#include "runtime/model/model_limits.h"
#include "runtime/state/snapshot_reader.h"
#include "runtime/state/snapshot_writer.h"
#include "runtime/support/atomic_file.h"
#include "runtime/support/byte_sink.h"
#include "runtime/support/byte_source.h"
#include "runtime/support/file.h"

namespace cairn::api {
namespace {

/// A save between its checks and its sink.
struct Save {
  HeldState held;
  cairn_snapshot_options options;
  SnapshotWriter writer;
};

Result<Save> prepare_save(cairn_state* state, const cairn_snapshot_options* options_in) {
  cairn_snapshot_options options = CAIRN_SNAPSHOT_OPTIONS_INIT;
  CAIRN_TRY(read_options(options_in, "cairn_snapshot_options", options));
  if (options.verify_after_write < -1 || options.verify_after_write > 1) {
    return Status::invalid_argument("verify_after_write %d is outside [-1, 1]", options.verify_after_write);
  }
  CAIRN_TRY(check_flag(options.include_rewind, "include_rewind"));
  CAIRN_TRY_ASSIGN(HeldState held, hold_state(state));
  CAIRN_TRY_ASSIGN(SnapshotWriter writer, SnapshotWriter::prepare(held.state(), held.queue(), options.include_rewind != 0));
  return Save{std::move(held), options, std::move(writer)};
}

Status save(cairn_state* state, const char* path, const cairn_snapshot_options* options) {
  CAIRN_REQUIRE(path);
  CAIRN_TRY_ASSIGN(Save save, prepare_save(state, options));
  CAIRN_TRY_ASSIGN(AtomicFile file, AtomicFile::create(path));
  FileSink sink(file);
  CAIRN_TRY(save.writer.write(sink, progress_of(save.options.progress, save.options.progress_user)));
  using Verify = AtomicFile::Verify;
  const int verify = save.options.verify_after_write;
  return file.commit({verify == 0 ? Verify::kUpTo64MiB : verify > 0 ? Verify::kAlways : Verify::kNever});
}

Status save_to_memory(cairn_state* state, void* data, std::size_t* size_bytes, const cairn_snapshot_options* options) {
  CAIRN_REQUIRE(size_bytes);
  CAIRN_TRY_ASSIGN(Save save, prepare_save(state, options));
  CAIRN_TRY(check_room(data, static_cast<std::size_t>(save.writer.total_bytes()), "data", size_bytes));
  SpanSink sink(data, *size_bytes);
  return save.writer.write(sink, progress_of(save.options.progress, save.options.progress_user));
}

Status save_to_callback(cairn_state* state, cairn_write_fn write, void* user, const cairn_snapshot_options* options) {
  CAIRN_REQUIRE(write);
  CAIRN_TRY_ASSIGN(Save save, prepare_save(state, options));
  FunctionSink sink([&](const void* data, std::size_t size_bytes) -> Status {
    if (size_bytes == 0) return {};
    const HostTurn turn;
    const int result = write(user, data, size_bytes);
    if (result == 0) return {};
    return Status::error(CAIRN_STATUS_IO, "the write callback returned %d", result);
  });
  return save.writer.write(sink, progress_of(save.options.progress, save.options.progress_user));
}

// ---------------------------------------------------------------- restoring

Result<std::uint64_t> max_bytes_of(const cairn_limits* limits_in) {
  cairn_limits limits = CAIRN_LIMITS_INIT;
  CAIRN_TRY(read_limits(limits_in, limits));
  return limits.max_snapshot_bytes == 0 ? ~std::uint64_t{0} : limits.max_snapshot_bytes;
}

Result<SnapshotReadOptions> read_restore_options(const cairn_restore_options* options_in) {
  cairn_restore_options options = CAIRN_RESTORE_OPTIONS_INIT;
  CAIRN_TRY(read_options(options_in, "cairn_restore_options", options));
  SnapshotReadOptions own;
  CAIRN_TRY_ASSIGN(own.max_bytes, max_bytes_of(options.limits));
  own.progress = progress_of(options.progress, options.progress_user);
  return own;
}

Status restore(cairn_state* state, const char* path, const cairn_restore_options* options_in) {
  CAIRN_REQUIRE(path);
  CAIRN_TRY_ASSIGN(const SnapshotReadOptions options, read_restore_options(options_in));
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(state));
  CAIRN_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, file_source(path, FileAccess::kPositional));
  return with_path(path, SnapshotReader::restore(std::move(source), options, held.queue(), held.state()));
}

Status restore_from_memory(cairn_state* state, const void* data, std::size_t size_bytes, const cairn_restore_options* options_in) {
  CAIRN_REQUIRE(data);
  CAIRN_TRY_ASSIGN(const SnapshotReadOptions options, read_restore_options(options_in));
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(state));
  return SnapshotReader::restore(memory_source(data, size_bytes), options, held.queue(), held.state());
}

Status restore_from_callback(cairn_state* state, cairn_read_fn read, void* user, const cairn_restore_options* options_in) {
  CAIRN_REQUIRE(read);
  CAIRN_TRY_ASSIGN(const SnapshotReadOptions options, read_restore_options(options_in));
  CAIRN_TRY_ASSIGN(const HeldState held, hold_state(state));
  const ReadFunction function = [read, user](void* to, std::size_t room) -> Result<std::size_t> {
    const HostTurn turn;
    std::size_t count = 0;
    const int result = read(user, to, room, &count);
    if (result != 0) return Status::error(CAIRN_STATUS_IO, "the read callback returned %d", result);
    if (count > room) return Status::error(CAIRN_STATUS_IO, "the read callback gave %zu bytes, asked for at most %zu", count, room);
    return count;
  };
  CAIRN_TRY_ASSIGN(const std::shared_ptr<ContainerStream> stream, ContainerStream::open(function));
  return SnapshotReader::restore(stream, options, held.queue(), held.state(), [&stream] { return stream->finish(); });
}

// ---------------------------------------------------------------- looking

Status inspect(std::shared_ptr<const ByteSource> source, std::uint64_t max_bytes, cairn_snapshot_info* out) {
  CAIRN_TRY_ASSIGN(const SnapshotReader reader, SnapshotReader::inspect(std::move(source), {max_bytes, nullptr}));
  const SnapshotContents& contents = reader.contents();
  cairn_snapshot_info info = CAIRN_SNAPSHOT_INFO_INIT;
  info.format_major = reader.container().major();
  info.format_minor = reader.container().minor();
  copy_text(contents.library_version.c_str(), sizeof info.library_version, info.library_version);
  copy_text(contents.model_name.c_str(), sizeof info.model_name, info.model_name);
  std::copy(contents.fingerprint.begin(), contents.fingerprint.end(), info.model_fingerprint);
  info.position = contents.position;
  info.layer_count = contents.layer_count;
  info.section_count = static_cast<std::int32_t>(reader.container().sections().size());
  info.total_bytes = reader.container().total_bytes();
  for (const SnapshotSlot& slot : contents.slots) info.slots_written += slot.row_count;
  info.has_rewind = contents.has_rewind ? 1 : 0;
  info.has_last_logits = contents.has_last_logits ? 1 : 0;
  info.has_sparse_prefill = contents.has_sparse_prefill ? 1 : 0;
  return write_info(info, "cairn_snapshot_info", out);
}

Status inspect_file(const char* path, const cairn_limits* limits, cairn_snapshot_info* out) {
  CAIRN_REQUIRE(path);
  CAIRN_TRY(check_info(out, "cairn_snapshot_info"));
  CAIRN_TRY_ASSIGN(const std::uint64_t max_bytes, max_bytes_of(limits));
  CAIRN_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, file_source(path, FileAccess::kPositional));
  return with_path(path, inspect(std::move(source), max_bytes, out));
}

Status inspect_memory(const void* data, std::size_t size_bytes, const cairn_limits* limits, cairn_snapshot_info* out) {
  CAIRN_REQUIRE(data);
  CAIRN_TRY(check_info(out, "cairn_snapshot_info"));
  CAIRN_TRY_ASSIGN(const std::uint64_t max_bytes, max_bytes_of(limits));
  return inspect(memory_source(data, size_bytes), max_bytes, out);
}

Status get_section(const char* path, std::int32_t index, cairn_snapshot_section* out) {
  CAIRN_REQUIRE(path);
  CAIRN_TRY(check_info(out, "cairn_snapshot_section"));
  CAIRN_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, file_source(path, FileAccess::kPositional));
  const Result<SnapshotReader> opened = SnapshotReader::open(std::move(source), {});
  if (!opened.ok()) return with_path(path, opened.status());
  const SnapshotReader& reader = opened.value();
  const auto count = static_cast<std::int32_t>(reader.sections().size());
  if (index < 0 || index >= count) return Status::invalid_argument("section index %d is outside [0, %d)", index, count);
  const SnapshotSection& section = reader.sections()[static_cast<std::size_t>(index)];
  const Section& stored = reader.container().sections()[static_cast<std::size_t>(index)];
  cairn_snapshot_section info = CAIRN_SNAPSHOT_SECTION_INIT;
  copy_text(section.name.c_str(), sizeof info.name, info.name);
  info.layer = section.slot < 0 ? -1 : reader.contents().slots[static_cast<std::size_t>(section.slot)].layer;
  info.rank = static_cast<std::int32_t>(section.shape.size());
  std::copy(section.shape.begin(), section.shape.end(), info.shape);
  info.offset_bytes = stored.offset_bytes;
  info.size_bytes = stored.size_bytes;
  return write_info(info, "cairn_snapshot_section", out);
}

}  // namespace
}  // namespace cairn::api

using namespace cairn::api;

extern "C" {

cairn_status cairn_state_save(cairn_state* state, const char* path, const cairn_snapshot_options* options) {
  return guarded([&] { return save(state, path, options); });
}

cairn_status cairn_state_save_to_memory(cairn_state* state, void* data, size_t* size_bytes, const cairn_snapshot_options* options) {
  return guarded([&] { return save_to_memory(state, data, size_bytes, options); });
}

cairn_status cairn_state_save_to_callback(cairn_state* state, cairn_write_fn write, void* user,
                                          const cairn_snapshot_options* options) {
  return guarded([&] { return save_to_callback(state, write, user, options); });
}

cairn_status cairn_state_restore(cairn_state* state, const char* path, const cairn_restore_options* options) {
  return guarded([&] { return restore(state, path, options); });
}

cairn_status cairn_state_restore_from_memory(cairn_state* state, const void* data, size_t size_bytes,
                                             const cairn_restore_options* options) {
  return guarded([&] { return restore_from_memory(state, data, size_bytes, options); });
}

cairn_status cairn_state_restore_from_callback(cairn_state* state, cairn_read_fn read, void* user,
                                               const cairn_restore_options* options) {
  return guarded([&] { return restore_from_callback(state, read, user, options); });
}

cairn_status cairn_snapshot_inspect(const char* path, const cairn_limits* limits, cairn_snapshot_info* info) {
  return guarded([&] { return inspect_file(path, limits, info); });
}

cairn_status cairn_snapshot_inspect_memory(const void* data, size_t size_bytes, const cairn_limits* limits,
                                           cairn_snapshot_info* info) {
  return guarded([&] { return inspect_memory(data, size_bytes, limits, info); });
}

cairn_status cairn_snapshot_get_section(const char* path, int32_t index, cairn_snapshot_section* section) {
  return guarded([&] { return get_section(path, index, section); });
}

}  // extern "C"
