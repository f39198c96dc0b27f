// One 64-token chunk of a SparseGDN prefill: its system, the kept blocks of the inverse, U and the tail score
// (spec 3.1).
#pragma once

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/recurrent_kernels.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::cpu {

/// A sequence's rows of the batch; C chunks, the last one may be short.
struct SparseSequence {
  const SparseGdnArgs& args;
  const RecurrentKernels& kernels;
  std::int32_t first_row, token_count, chunk_count;
  double* scores;      ///< [C, HV]
  double* gamma_log2;  ///< [C, HV] log2-decay of whole chunks, not clamped

  const DeltaRuleArgs& delta() const { return args.delta; }
  std::int32_t heads_per_group() const { return delta().value_heads / delta().key_heads; }
  std::int32_t row_of(std::int32_t chunk) const { return first_row + chunk * kChunk; }
  int tokens_in(std::int32_t chunk) const {
    const std::int32_t left = token_count - chunk * kChunk;
    return left < kChunk ? left : kChunk;
  }
  std::int64_t at(std::int32_t chunk, std::int32_t head) const {
    return static_cast<std::int64_t>(chunk) * delta().value_heads + head;
  }
};

struct SparseChunk {
  int token_count;  ///< of the chunk at hand
  int key_dim, value_dim, key_width, value_width;
  float *query, *key;             ///< [64, key_width]; rows up to the next 16 are zero
  float* key_columns;             ///< [K, 64]
  float *key_key, *query_key;     ///< [64, 64] of the group
  float* attend;                  ///< [64, 64] of a head: scale <q_i, k_j> decay
  float *log_decay, *beta;        ///< [64] of a head
  float *high, *low, *in, *tail;  ///< [64] cumulative log-decay; decay from the chunk's start, to its end
  double total;                   ///< log-decay of the chunk, clamped
  float *values, *out;            ///< [64, value_width]: U, later U'; outputs
};

/// Working space beside one or two chunks.
struct SparseWork {
  float *solve, *inverse;  ///< [64, 64]
  float* block;            ///< [16, 16]
  float* weighted;         ///< [64, value_width]
  float* scaled;           ///< [64, key_width], or [K, 64]
  float* factor;           ///< [64]
};

SparseChunk carve_sparse_chunk(const DeltaRuleArgs& args, ScratchLayout& layout);
SparseWork carve_sparse_work(const DeltaRuleArgs& args, ScratchLayout& layout);

/// Keys of a group: key, key_columns; with `relates`, the pairs that the inverse needs.
void load_sparse_keys(const SparseSequence& s, std::int32_t chunk, std::int32_t group, bool relates, SparseChunk* out);
/// Gates of a value head, and their cumulative decays.
void load_sparse_gates(const SparseSequence& s, std::int32_t chunk, std::int32_t head, SparseChunk* out);
/// work.inverse: the 7 kept blocks of (I + A)^-1, or all of it; zero elsewhere below the diagonal.
void invert_sparse_system(const SparseSequence& s, const SparseChunk& chunk, const SparseWork& work);
/// to (+)= inverse from: [n, V] rows of value_width. No overlap.
void apply_sparse_inverse(const SparseSequence& s, const SparseChunk& chunk, const SparseWork& work, const float* from,
                          float* to, bool accumulate);

/// Stage 1 of one chunk and group: U goes to the rows of `out`, scores and whole-chunk decays to the sequence's tables.
void run_sparse_intra(const SparseSequence& s, std::int32_t chunk, std::int32_t group, SparseChunk* memory,
                      const SparseWork& work);

}  // namespace cairn::cpu
