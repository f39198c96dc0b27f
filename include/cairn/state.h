/* States: the memory of one agent. */
#ifndef CAIRN_STATE_H
#define CAIRN_STATE_H

#include "cairn/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The recurrent state of one sequence: everything that a model remembers of what it has read.
 * One user at a time: a second concurrent call returns CAIRN_STATUS_BUSY. Keeps its model alive.
 */
typedef struct cairn_state cairn_state;

typedef struct cairn_state_options {
  size_t struct_size;
  int64_t kv_capacity_tokens;     /* room for full softmax attention; 0: 4,096; ignored by models without it */
  int64_t rewind_window_tokens;   /* how far back cairn_state_rewind reaches, at most 2^40; 0: not at all */
  int32_t rewind_spacing_tokens;  /* tokens between checkpoints, multiple of 64; 0: chosen (64 to 512 by window) */
  int32_t no_last_logits;         /* 1: do not keep the logits after the last token (vocab_size floats) */
} cairn_state_options;

#define CAIRN_STATE_OPTIONS_INIT {sizeof(cairn_state_options), 0, 0, 0, 0}

/**
 * Makes an empty state (position 0).
 * @return CAIRN_STATUS_INVALID_ARGUMENT  an option is out of its range; CAIRN_STATUS_LIMIT_EXCEEDED  more than 2^46
 *         bytes of key-value room; CAIRN_STATUS_OUT_OF_MEMORY, _OUT_OF_DEVICE_MEMORY. @since 0.1
 */
CAIRN_API cairn_status cairn_state_create(cairn_model* model, const cairn_state_options* options, cairn_state** state);

/**
 * A second state equal to the first, and independent of it from now on. Rows of SDM slot tables are shared until one of
 * the two writes them; the rest is copied. The rewind window is not inherited: the fork's begins here. @since 0.1
 */
CAIRN_API cairn_status cairn_state_fork(cairn_state* state, cairn_state** fork);

/** Back to empty. Memory is zeroed and kept. Also mends an invalid state. @since 0.1 */
CAIRN_API cairn_status cairn_state_reset(cairn_state* state);

/**
 * Goes back to an earlier position, as if the tokens after it had never been read: bit for bit. Its last
 * logits are known again where the token before can be read again: not at the oldest position, nor right after a sparse
 * prefill. cairn_state_info.has_last_logits tells.
 *
 * @param position  In [oldest, current]; the oldest is told by cairn_state_get_info. Not inside a sparse prefill, which
 *                  selects over its whole call; its begin and its end can be reached.
 * @return CAIRN_STATUS_INVALID_ARGUMENT  outside that range: the message tells it; the state is unchanged.
 * Also mends an invalid state when the position lies at or before its last good checkpoint. @since 0.1
 */
CAIRN_API cairn_status cairn_state_rewind(cairn_state* state, int64_t position);

/** *can = 1 when cairn_state_rewind(state, position) would succeed. Costs nothing. @since 0.1 */
CAIRN_API cairn_status cairn_state_can_rewind(cairn_state* state, int64_t position, int32_t* can);

typedef struct cairn_state_info {
  size_t struct_size;
  int64_t position;               /* tokens read */
  int64_t oldest_rewind_position; /* = position when there is nothing to rewind to */
  int64_t kv_capacity_tokens;
  int64_t kv_used_tokens;
  uint64_t bytes_held;            /* all memory that this state can reach */
  uint64_t bytes_shared;          /* of those, shared with other states (rows of slot tables) */
  uint64_t rewind_bytes;          /* of those, held for rewinding */
  int32_t is_valid;               /* 0 after a device error: reset, restore or rewind */
  int32_t has_last_logits;
  int32_t has_sparse_prefill;     /* 1 when part of it was read with sparse prefill */
  int32_t reserved;
} cairn_state_info;

#define CAIRN_STATE_INFO_INIT {sizeof(cairn_state_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Works on invalid states too. @since 0.1 */
CAIRN_API cairn_status cairn_state_get_info(cairn_state* state, cairn_state_info* info);

typedef struct cairn_state_statistics {
  size_t struct_size;
  double max_abs;              /* over the layer's recurrent state */
  double norm;                 /* Frobenius; SDM: of the written rows */
  uint64_t non_finite_count;
  uint64_t slots_written;      /* SDM: slots that left M0 behind; else 0 */
  uint64_t slots_total;        /* SDM: heads * slots; else 0 */
} cairn_state_statistics;

#define CAIRN_STATE_STATISTICS_INIT {sizeof(cairn_state_statistics), 0, 0, 0, 0, 0}

/** Statistics of one layer's memory, for watching months of drift. Waits for the state's work. @since 0.1 */
CAIRN_API cairn_status cairn_state_get_statistics(cairn_state* state, int32_t layer, cairn_state_statistics* statistics);

/**
 * Which slots of an SDM layer were written: one byte (0 or 1) per slot, head-major [heads, slots].
 * @param count  [in,out] room in `written`, then the need; sizes as in cairn_model_tokenize.
 * @return CAIRN_STATUS_UNSUPPORTED  the layer has no slot table. @since 0.1
 */
CAIRN_API cairn_status cairn_state_get_written_slots(cairn_state* state, int32_t layer, uint8_t* written, size_t* count);

/**
 * The logits after the last token read, also after a restore.
 * @param count  [in,out] room in `logits` (vocab_size floats), then the need.
 * @return CAIRN_STATUS_WRONG_STATE  none are known: nothing was read with logits, or no_last_logits is set. @since 0.1
 */
CAIRN_API cairn_status cairn_state_get_last_logits(cairn_state* state, float* logits, size_t* count);

/**
 * Gives the state back; its memory is zeroed. A call still running on it finishes first. NULL is allowed. @since 0.1
 */
CAIRN_API void cairn_state_release(cairn_state* state);

#ifdef __cplusplus
}
#endif
#endif
