/* Models: immutable weights on a device, and their tokenizer. */
#ifndef CAIRN_MODEL_H
#define CAIRN_MODEL_H

#include "cairn/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Weights on a device. Immutable, thread-safe, shared by any number of states. */
typedef struct cairn_model cairn_model;

/** What a reader refuses before it allocates. Zero means the default in brackets. */
typedef struct cairn_limits {
  size_t struct_size;
  uint32_t max_layers;          /* [4,096] */
  uint32_t max_tensors;         /* [131,072] */
  uint32_t max_vocab;           /* [4,194,304] */
  uint32_t reserved;            /* 0 */
  uint64_t max_tensor_bytes;    /* [2^44] */
  uint64_t max_metadata_bytes;  /* [1 MiB] */
  uint64_t max_snapshot_bytes;  /* [no limit] quota for one snapshot */
} cairn_limits;

#define CAIRN_LIMITS_INIT {sizeof(cairn_limits), 0, 0, 0, 0, 0, 0, 0}

typedef int32_t cairn_verify;
enum {
  CAIRN_VERIFY_FULL = 0,     /* structure, meaning and every checksum */
  CAIRN_VERIFY_STRUCTURE = 1 /* structure and meaning; payload checksums are not read (a file that you trust) */
};

typedef int32_t cairn_precision;
enum {
  CAIRN_PRECISION_DEFAULT = 0, /* cpu, reference: f32 activations; GPUs: bf16 activations, f32 states (sdm_rows aside) */
  CAIRN_PRECISION_F32 = 1,
  CAIRN_PRECISION_BF16 = 2 /* cpu: matrix products round activations to bf16 (AMX, AVX-512-BF16) */
};

typedef struct cairn_model_options {
  size_t struct_size;
  const cairn_limits* limits; /* NULL: defaults */
  cairn_verify verify;
  cairn_precision precision;
  int32_t no_mmap;            /* 1: read the file instead of mapping it */
  int32_t check_finite;       /* 1: refuse NaN and infinity in weights with CAIRN_STATUS_NUMERIC */
  cairn_progress_fn progress; /* NULL: none; bytes */
  void* progress_user;
  cairn_precision sdm_rows;   /* rows of SDM tables in states. DEFAULT, F32: f32. BF16: rounded to nearest even at each
                                 write: half the memory and traffic; a change below 1/512 of a value may be lost */
} cairn_model_options;

#define CAIRN_MODEL_OPTIONS_INIT {sizeof(cairn_model_options), NULL, 0, 0, 0, 0, NULL, NULL, 0}

/**
 * Loads a model.
 *
 * @param path     [in]  A `.cairn` file, or a folder with config.json and safetensors. UTF-8.
 * @param model    [out] Owned by the caller. NULL on failure.
 * @return CAIRN_STATUS_NOT_FOUND, _IO, _FORMAT, _CHECKSUM, _VERSION, _LIMIT_EXCEEDED, _UNSUPPORTED (an operator that
 *         this device lacks, by name and reason), _OUT_OF_MEMORY, _OUT_OF_DEVICE_MEMORY, _CANCELLED.
 * A mapped file must not be truncated while the model lives. Thread-safe. @since 0.1
 */
CAIRN_API cairn_status cairn_model_load(cairn_device* device, const char* path, const cairn_model_options* options,
                                        cairn_model** model);

/** As cairn_model_load, from the bytes of a `.cairn` file. The bytes are copied. @since 0.1 */
CAIRN_API cairn_status cairn_model_load_from_memory(cairn_device* device, const void* data, size_t size_bytes,
                                                    const cairn_model_options* options, cairn_model** model);

typedef int32_t cairn_weight_format;
enum { CAIRN_WEIGHT_KEEP = 0, CAIRN_WEIGHT_F32 = 1, CAIRN_WEIGHT_BF16 = 2, CAIRN_WEIGHT_INT8 = 3, CAIRN_WEIGHT_INT4 = 4 };

typedef struct cairn_pack_options {
  size_t struct_size;
  const cairn_limits* limits;
  cairn_weight_format format; /* of the linear layers */
  int32_t group_size;         /* INT4: 32 or 64; 0: 32 */
  cairn_progress_fn progress; /* bytes */
  void* progress_user;
} cairn_pack_options;

#define CAIRN_PACK_OPTIONS_INIT {sizeof(cairn_pack_options), NULL, 0, 0, NULL, NULL}

/**
 * Converts a folder with config.json and safetensors into one `.cairn` file, atomically, and verifies what it wrote.
 * A symbolic link at `path` is followed, as by cairn_state_save. Needs no device.
 *
 * @return CAIRN_STATUS_INVALID_ARGUMENT  format or group_size is none of those above; `path` names no file;
 *         reading the folder: CAIRN_STATUS_NOT_FOUND, _IO, _FORMAT, _LIMIT_EXCEEDED, _UNSUPPORTED;
 *         writing the file: CAIRN_STATUS_NOT_FOUND, _NO_SPACE, _IO, _DURABILITY; CAIRN_STATUS_CANCELLED.
 * Thread-safe. @since 0.1
 */
CAIRN_API cairn_status cairn_pack(const char* folder, const char* path, const cairn_pack_options* options);

typedef struct cairn_model_info {
  size_t struct_size;
  char architecture[64];          /* "cairn-native", "qwen3_5", ... */
  char name[128];
  int32_t layer_count;
  int32_t model_dim;
  int32_t vocab_size;             /* rows of the embedding: token ids are in [0, vocab_size) */
  int32_t bos_token;              /* -1: none; a new state expects it first when add_bos is 1 */
  int32_t add_bos;
  int32_t eos_token;              /* -1: none; see cairn_model_is_stop_token */
  int64_t trained_tokens;         /* longest length the model was trained for; 0: not known */
  uint64_t parameter_count;
  uint64_t weight_bytes;          /* held on the device */
  uint64_t fresh_state_bytes;     /* of a state with default options, before the first token: without the logits that
                                     it keeps from then on (vocab_size floats, see no_last_logits) */
  uint64_t kv_bytes_per_token;    /* 0 without full softmax attention */
  uint8_t fingerprint[32];        /* of config, tensor table and weights; snapshots carry it */
} cairn_model_info;

#define CAIRN_MODEL_INFO_INIT {sizeof(cairn_model_info), {0}, {0}, 0, 0, 0, -1, 0, -1, 0, 0, 0, 0, 0, {0}}

/** Describes a model. Thread-safe. @since 0.1 */
CAIRN_API cairn_status cairn_model_get_info(const cairn_model* model, cairn_model_info* info);

typedef struct cairn_layer_info {
  size_t struct_size;
  char mechanism[32];  /* "gdn", "sdm", "sse", "kda", "gdn2", "delta_net", "softmax_attention", "sliding_window_attention", "latent_attention" */
  char mlp[16];        /* "swiglu", "moe", "none" */
  char routing[16];    /* "cler", "cler_h", "clvr", "none" */
  int32_t key_heads, value_heads, key_dim, value_dim;
  int32_t window;      /* attention; 0: full */
  int32_t partitions;  /* SSE */
  int64_t slots;       /* SDM, per head */
  uint64_t parameter_count;
  uint64_t state_bytes; /* of a fresh state; SDM: its index table. All layers: fresh_state_bytes less alignment */
} cairn_layer_info;

#define CAIRN_LAYER_INFO_INIT {sizeof(cairn_layer_info), {0}, {0}, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/** Describes layer `index`, 0 based from the embedding up. Thread-safe. @since 0.1 */
CAIRN_API cairn_status cairn_model_get_layer_info(const cairn_model* model, int32_t index, cairn_layer_info* info);

/**
 * Text to token ids. Adds no BOS.
 *
 * @param text      [in]     UTF-8 (byte vocabularies take any bytes); need not end with NUL.
 * @param tokens    [out]    May be NULL when *count is 0: asks for the size.
 * @param count     [in,out] In: room in `tokens`. Out: ids written, or needed.
 * @return CAIRN_STATUS_BUFFER_TOO_SMALL  *count tells the need; nothing was written;
 *         CAIRN_STATUS_UNSUPPORTED       the model carries no tokenizer.
 * Thread-safe. @since 0.1
 */
CAIRN_API cairn_status cairn_model_tokenize(const cairn_model* model, const char* text, size_t text_bytes,
                                            int32_t* tokens, size_t* count);

/**
 * Token ids to bytes (not NUL-terminated; a token may hold half a character: see cairn_text_decoder).
 * Sizes as in cairn_model_tokenize. Special tokens and ids without a text give no bytes; negative ids are refused.
 * Thread-safe. @since 0.1
 */
CAIRN_API cairn_status cairn_model_detokenize(const cairn_model* model, const int32_t* tokens, size_t token_count,
                                              char* text, size_t* text_bytes);

/**
 * The model's own chat template, Jinja text as its makers wrote it; never run by the library. Sizes as in
 * cairn_model_tokenize; 0 bytes: it has none. Thread-safe. @since 0.1
 */
CAIRN_API cairn_status cairn_model_get_chat_template(const cairn_model* model, char* text, size_t* text_bytes);

/** *is_stop = 1 when `token` ends a reply (generation_config's eos ids). Thread-safe. @since 0.1 */
CAIRN_API cairn_status cairn_model_is_stop_token(const cairn_model* model, int32_t token, int32_t* is_stop);

/** Gives the handle back. States of the model keep it alive. NULL is allowed. Thread-safe. @since 0.1 */
CAIRN_API void cairn_model_release(cairn_model* model);

#ifdef __cplusplus
}
#endif
#endif
