/* Snapshots: a state as bytes, on disk or anywhere else. Format: schema/FORMAT.md. */
#ifndef CAIRN_SNAPSHOT_H
#define CAIRN_SNAPSHOT_H

#include "cairn/state.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Takes the next bytes of a snapshot; returns 0 to go on, anything else fails the save with CAIRN_STATUS_IO. */
typedef int (*cairn_write_fn)(void* user, const void* data, size_t size_bytes);

/**
 * Gives the next bytes of a snapshot: fills up to size_bytes, sets *read_bytes (0: end); returns 0, or anything else
 * to fail the restore with CAIRN_STATUS_IO.
 */
typedef int (*cairn_read_fn)(void* user, void* data, size_t size_bytes, size_t* read_bytes);

typedef struct cairn_snapshot_options {
  size_t struct_size;
  int32_t include_rewind;      /* 1: the rewind window travels too */
  int32_t verify_after_write;  /* save to a file: 0: up to 64 MiB, 1: always, -1: never */
  cairn_progress_fn progress;  /* bytes */
  void* progress_user;
} cairn_snapshot_options;

#define CAIRN_SNAPSHOT_OPTIONS_INIT {sizeof(cairn_snapshot_options), 0, 0, NULL, NULL}

/**
 * Saves a state to a file: the old file or the new one, never a mixture, also after a power loss.
 * Writes a new file in the same directory (mode 0600), syncs, renames, syncs the directory. A symbolic link is followed
 * and stays: what it names is replaced (a host's own cairn_io sees to its own links). Equal states give equal bytes. An
 * invalid state is refused.
 * @return CAIRN_STATUS_DURABILITY  the file is in place, but syncing the directory failed; in any other case the old
 *         file stays: CAIRN_STATUS_NOT_FOUND (no such directory), _NO_SPACE, _IO (also: not a regular file, or it reads
 *         back other bytes), _CANCELLED, _STATE_INVALID, _INVALID_ARGUMENT (`path` names no file). @since 0.1
 */
CAIRN_API cairn_status cairn_state_save(cairn_state* state, const char* path, const cairn_snapshot_options* options);

/**
 * Saves to memory. Sizes as in cairn_model_tokenize: ask with *size_bytes = 0.
 * @return CAIRN_STATUS_BUFFER_TOO_SMALL, _CANCELLED, _STATE_INVALID. @since 0.1
 */
CAIRN_API cairn_status cairn_state_save_to_memory(cairn_state* state, void* data, size_t* size_bytes,
                                                  const cairn_snapshot_options* options);

/** Saves through a callback, front to back. @return CAIRN_STATUS_IO (the callback failed), _CANCELLED. @since 0.1 */
CAIRN_API cairn_status cairn_state_save_to_callback(cairn_state* state, cairn_write_fn write, void* user,
                                                    const cairn_snapshot_options* options);

typedef struct cairn_restore_options {
  size_t struct_size;
  const cairn_limits* limits;  /* NULL: defaults; max_snapshot_bytes is the quota */
  cairn_progress_fn progress;
  void* progress_user;
} cairn_restore_options;

#define CAIRN_RESTORE_OPTIONS_INIT {sizeof(cairn_restore_options), NULL, NULL, NULL}

/**
 * Restores a snapshot into a state of the same model (same weights, same M0), from any backend. All or nothing: when
 * it is refused the state is as before. What the state held is replaced; an invalid state becomes valid. SDM rows are
 * saved in the type that the model was loaded with (sdm_rows) and become that of the state's model: bf16 to f32 keeps
 * every value, f32 to bf16 rounds to nearest even.
 * @return CAIRN_STATUS_MISMATCH  of another model; CAIRN_STATUS_NUMERIC  a number that is not finite, or that bf16 rows
 *         cannot hold; CAIRN_STATUS_FORMAT, _CHECKSUM, _VERSION, _LIMIT_EXCEEDED, _IO;
 *         CAIRN_STATUS_STATE_FULL  more key-value tokens than this state has room for. @since 0.1
 */
CAIRN_API cairn_status cairn_state_restore(cairn_state* state, const char* path, const cairn_restore_options* options);

/** @since 0.1 */
CAIRN_API cairn_status cairn_state_restore_from_memory(cairn_state* state, const void* data, size_t size_bytes,
                                                       const cairn_restore_options* options);

/**
 * As cairn_state_restore, front to back. The header is read and judged first; of a snapshot of this model as many
 * bytes are then taken, into host memory, as the header declares (more than max_snapshot_bytes: refused unread), and
 * one more, to see the end: a callback that never ends is refused in bounded time. How much a rewind window may hold is
 * bounded by max_snapshot_bytes alone: set it where the source is not trusted. @since 0.1
 */
CAIRN_API cairn_status cairn_state_restore_from_callback(cairn_state* state, cairn_read_fn read, void* user,
                                                         const cairn_restore_options* options);

typedef struct cairn_snapshot_info {
  size_t struct_size;
  uint32_t format_major, format_minor;
  char library_version[32];  /* that wrote it */
  char model_name[128];
  uint8_t model_fingerprint[32];
  int64_t position;
  int32_t layer_count;
  int32_t section_count;
  uint64_t total_bytes;
  uint64_t slots_written;    /* SDM, all layers */
  int32_t has_rewind, has_last_logits, has_sparse_prefill, reserved;
} cairn_snapshot_info;

#define CAIRN_SNAPSHOT_INFO_INIT {sizeof(cairn_snapshot_info), 0, 0, {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Reads and fully verifies a snapshot without a model. Thread-safe. @since 0.1 */
CAIRN_API cairn_status cairn_snapshot_inspect(const char* path, const cairn_limits* limits, cairn_snapshot_info* info);

/** @since 0.1 */
CAIRN_API cairn_status cairn_snapshot_inspect_memory(const void* data, size_t size_bytes, const cairn_limits* limits,
                                                     cairn_snapshot_info* info);

/** One part of a snapshot, for tools. Strings are cut to fit. */
typedef struct cairn_snapshot_section {
  size_t struct_size;
  char name[96];        /* "layers.2.table.rows" */
  int32_t layer;        /* -1: of the whole state */
  int32_t rank;
  int64_t shape[6];
  uint64_t offset_bytes, size_bytes;
} cairn_snapshot_section;

#define CAIRN_SNAPSHOT_SECTION_INIT {sizeof(cairn_snapshot_section), {0}, 0, 0, {0}, 0, 0}

/** Describes section `index` of a snapshot file. Thread-safe. @since 0.1 */
CAIRN_API cairn_status cairn_snapshot_get_section(const char* path, int32_t index, cairn_snapshot_section* section);

#ifdef __cplusplus
}
#endif
#endif
