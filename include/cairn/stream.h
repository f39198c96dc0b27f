/* Streams: a queue of work on a device, plus its scratch. Prefill, decode, logits, sampling. */
#ifndef CAIRN_STREAM_H
#define CAIRN_STREAM_H

#include "cairn/snapshot.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A queue. One user at a time, else CAIRN_STATUS_BUSY. Keeps its model alive. */
typedef struct cairn_stream cairn_stream;

typedef struct cairn_stream_options {
  size_t struct_size;
  void* native_queue;             /* the host's own cudaStream_t or hipStream_t (cpu: UNSUPPORTED); NULL: a new one */
  int32_t max_sequences;          /* largest batch, at most 65,535; 0: 256 */
  int32_t prefill_chunk_tokens;   /* tokens planned at once, multiple of 64, at most 2^20; 0: chosen */
} cairn_stream_options;

#define CAIRN_STREAM_OPTIONS_INIT {sizeof(cairn_stream_options), NULL, 0, 0}

/**
 * Makes a stream for states of `model`.
 * @return CAIRN_STATUS_INVALID_ARGUMENT  an option is out of its range; CAIRN_STATUS_UNSUPPORTED  a native_queue on a
 *         backend that has none; CAIRN_STATUS_OUT_OF_MEMORY, _OUT_OF_DEVICE_MEMORY, _DEVICE. @since 0.1
 */
CAIRN_API cairn_status cairn_stream_create(cairn_model* model, const cairn_stream_options* options, cairn_stream** stream);

typedef int32_t cairn_logits;
enum { CAIRN_LOGITS_LAST = 0, CAIRN_LOGITS_NONE = 1, CAIRN_LOGITS_ALL = 2 };

/** One sequence of a prefill. */
typedef struct cairn_sequence {
  cairn_state* state;
  const int32_t* tokens;  /* may be NULL when token_count is 0 */
  int64_t token_count;    /* >= 0 */
  cairn_logits logits;    /* which rows to compute */
  int32_t reserved;       /* 0 */
} cairn_sequence;

typedef int32_t cairn_prefill_mode;
enum { CAIRN_PREFILL_DENSE = 0, CAIRN_PREFILL_SPARSE = 1 };

typedef int32_t cairn_sparse_policy;
enum { CAIRN_SPARSE_ADAPTIVE = 0, CAIRN_SPARSE_ALL = 1, CAIRN_SPARSE_RANDOM = 2, CAIRN_SPARSE_FIXED = 3 };

/** How GDN layers read a prompt sparsely (SparseGDN). Other layers stay dense. */
typedef struct cairn_sparse_options {
  size_t struct_size;
  cairn_sparse_policy policy;
  int32_t min_chunks;    /* sequences of fewer 64-token chunks run dense; 0: 16 */
  int32_t full_inverse;  /* 1: ablation, the whole 64 x 64 inverse instead of 7 blocks */
  int32_t reserved;      /* 0 */
  uint64_t seed;         /* of CAIRN_SPARSE_RANDOM */
} cairn_sparse_options;

#define CAIRN_SPARSE_OPTIONS_INIT {sizeof(cairn_sparse_options), 0, 0, 0, 0, 0}

typedef struct cairn_batch {
  size_t struct_size;
  const cairn_sequence* sequences;
  int32_t sequence_count;
  cairn_prefill_mode mode;
  const cairn_sparse_options* sparse; /* NULL: defaults; only read in sparse mode */
  cairn_progress_fn progress;         /* tokens of the whole batch; may cancel until all are read */
  void* progress_user;
} cairn_batch;

#define CAIRN_BATCH_INIT {sizeof(cairn_batch), NULL, 0, 0, NULL, NULL, NULL}

/**
 * Reads tokens into the state of each sequence.
 *
 * Queues the work and may return before it has finished. Tokens are copied; no pointer is kept. States are updated in
 * place. On an argument error nothing was queued and every state is as before. Dense prefill split at multiples of 64
 * gives the same bits; sparse prefill selects over its own call, so splitting it changes results by definition.
 *
 * @param stream  [in,out] Used by one thread at a time.
 * @param batch   [in] 1..max_sequences sequences with distinct states; token ids in [0, vocab_size).
 * @return CAIRN_STATUS_OK;
 *         CAIRN_STATUS_INVALID_ARGUMENT  a token is out of range, or a state is named twice;
 *         CAIRN_STATUS_STATE_FULL        softmax attention has no room left (see kv_capacity_tokens);
 *         CAIRN_STATUS_STATE_INVALID     an earlier device error left a state half updated;
 *         CAIRN_STATUS_CANCELLED         every state stands at a chunk border: see cairn_state_get_info.
 * @since 0.1
 */
CAIRN_API cairn_status cairn_prefill(cairn_stream* stream, const cairn_batch* batch);

/**
 * Reads one token into each of `count` states and computes the logits after it. As cairn_prefill otherwise.
 * The same state gives the same bits alone or in any batch. @since 0.1
 */
CAIRN_API cairn_status cairn_decode(cairn_stream* stream, cairn_state* const* states, const int32_t* tokens,
                                    int32_t count);

/** Waits for the stream's work and reports its first device error. @since 0.1 */
CAIRN_API cairn_status cairn_stream_synchronize(cairn_stream* stream);

/**
 * Lends one row of the last call's logits: decode: row i is of states[i]; prefill: the rows asked for, sequence by
 * sequence (row_count tells how many). Waits for the work.
 *
 * @param logits  [out] vocab_size floats, the stream's own; valid until the next call on this stream.
 * @since 0.1
 */
CAIRN_API cairn_status cairn_stream_get_logits(cairn_stream* stream, int64_t row, const float** logits, size_t* count);

/** Number of logits rows of the last call. @since 0.1 */
CAIRN_API cairn_status cairn_stream_get_logits_row_count(cairn_stream* stream, int64_t* row_count);

/** How to choose a token. All zero: greedy (the largest logit, ties to the lower id). */
typedef struct cairn_sampler_options {
  size_t struct_size;
  float temperature;             /* [0, 1e6]; 0: greedy */
  int32_t top_k;                 /* >= 0; 0: all */
  float top_p;                   /* [0, 1]; 0 or 1: all */
  float min_p;                   /* [0, 1]; 0: none; relative to the largest probability */
  float repetition_penalty;      /* [0, 1000]; 0 or 1: none; of recent_tokens */
  int32_t reserved;              /* 0 */
  uint64_t seed;                 /* with `draw`: the same pair gives the same choice */
  uint64_t draw;                 /* count it up, for example with the position */
  const int32_t* recent_tokens;  /* may be NULL when recent_token_count is 0 */
  size_t recent_token_count;
} cairn_sampler_options;

#define CAIRN_SAMPLER_OPTIONS_INIT {sizeof(cairn_sampler_options), 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0}

/**
 * Chooses a token from logits. Keeps nothing: a restored agent goes on exactly. Thread-safe.
 * @return CAIRN_STATUS_INVALID_ARGUMENT  an option is NaN or out of its range, or recent_tokens is NULL and its count
 *         is not 0; CAIRN_STATUS_NUMERIC  no finite logit. @since 0.1
 */
CAIRN_API cairn_status cairn_sample(const float* logits, size_t count, const cairn_sampler_options* options,
                                    int32_t* token);

/** Gives the stream back; waits for its work. NULL is allowed. @since 0.1 */
CAIRN_API void cairn_stream_release(cairn_stream* stream);

/** Turns tokens into text that never breaks a character. One user at a time. */
typedef struct cairn_text_decoder cairn_text_decoder;

/** Makes a decoder for `model`'s tokens. @since 0.1 */
CAIRN_API cairn_status cairn_text_decoder_create(cairn_model* model, cairn_text_decoder** decoder);

/**
 * Adds a token and lends the text that is complete now: valid UTF-8 (bytes that can never become a character turn
 * into U+FFFD), possibly empty. Valid until the next call on the decoder. @since 0.1
 */
CAIRN_API cairn_status cairn_text_decoder_push(cairn_text_decoder* decoder, int32_t token, const char** text,
                                               size_t* text_bytes);

/** Ends the text: lends what was held back. The decoder is empty afterwards. @since 0.1 */
CAIRN_API cairn_status cairn_text_decoder_finish(cairn_text_decoder* decoder, const char** text, size_t* text_bytes);

/** NULL is allowed. @since 0.1 */
CAIRN_API void cairn_text_decoder_release(cairn_text_decoder* decoder);

#ifdef __cplusplus
}
#endif
#endif
