// One chunk of at most 64 tokens of one head: the chunked delta rule of spec 2, for one decay per token or per key row.
//
// With e, q, k decayed to the chunk's borders, r solves a unit lower triangle, and state and outputs follow:
//   (I + [<e_i, k_j> decay beta_j]) r = v - (e decay)^T S      u = beta r
//   o = (q decay)^T S + [<q_i, k_j> decay] u                   S <- decay S + (k decay) u^T
// beta stands in the columns, so that the residual r itself is solved for. Gated linear attention has u = v instead.
// W and U of spec 2 are never formed: the state is at hand when a chunk is solved, and one solve replaces two.
#pragma once

#include "backends/cpu/recurrent_kernels.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::cpu {

struct ChunkWork {
  int key_dim, value_dim;
  int key_width, value_width;          ///< rounded up to 16
  float *query, *key, *erase;          ///< [64, key_width] rows of the chunk; pads zero up to the next 16 rows
  float* log_decay;                    ///< [64, key_width], or [64] with one decay per token
  float* beta;                         ///< [64]
  float *key_columns, *key_out;        ///< [K, 64]
  float *key_key, *query_key;          ///< [64, 64]
  float *solve, *attend;               ///< [64, 64]
  float *erase_in, *query_in, *total;  ///< [64, key_width] twice, [key_width]
  float *high, *low, *in, *tail;       ///< [64]
  float* values;                       ///< [64, value_width]: v, then r, then u
  float* out;                          ///< [64, value_width]
  float* row_work;
};

ChunkWork carve_chunk_work(int key_dim, int value_dim, ScratchLayout& layout);

/// How a chunk enters the state.
struct ChunkUpdate {
  float* state;               ///< [K, V]
  bool is_delta;              ///< false: u = v
  bool has_beta;              ///< u = beta r
  float* residual = nullptr;  ///< rows of V; null: not wanted
  std::int64_t residual_stride = 0;
};

/// Copies n rows of `columns` floats into [64, width]; the pads, and rows up to the next 16, become zero.
void pack_rows(const RecurrentKernels& kernels, int n, int columns, const float* from, std::int64_t from_stride,
               float* to, int width);
/// Copies n numbers into [64], zeros behind.
void pack_numbers(int n, const float* from, std::int64_t from_stride, float* to);

/// key_columns, key_key and query_key of the chunk's n tokens; needed before decay_by_token, once for all its heads.
void relate_tokens(const RecurrentKernels& kernels, const ChunkWork& work, int n);
/// From log_decay [64] and beta [64] (has_beta): the triangle and the decayed copies.
void decay_by_token(const RecurrentKernels& kernels, const ChunkWork& work, int n, float scale, bool has_beta);
/// From log_decay [64, key_width]; `erase` null: gated linear attention.
void decay_by_row(const RecurrentKernels& kernels, const ChunkWork& work, int n, const float* erase, float scale,
                  bool has_beta);
/// values -> u, out, and the state after the chunk.
void advance_state(const RecurrentKernels& kernels, const ChunkWork& work, int n, const ChunkUpdate& update);

/// Inclusive cumulative log-decay of n <= 64 tokens in two f32 parts, high + low; past n the last one is repeated.
/// g is clamped at -120 per token (spec 2). Returns the chunk's total.
double cumulate_log_decay(int n, const float* log_decay, float* high, float* low);

}  // namespace cairn::cpu
