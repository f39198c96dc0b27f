// SparseGDN, stage 1: what every 64-token chunk computes on its own (spec 3.1).
#pragma once

#include "backends/interface/op_args.h"
#include "backends/interface/scratch_layout.h"

namespace cairn::reference {

inline constexpr std::int32_t kSparseChunk = 64, kSparseBlock = 16;

/// One sequence of a SparseGDN prefill: its rows of the batch. C chunks; the last one may be short.
struct SparseGdnSequence {
  const SparseGdnArgs& args;
  std::int32_t first_row, token_count, chunk_count;

  const DeltaRuleArgs& delta() const { return args.delta; }
  std::int32_t heads_per_group() const { return delta().value_heads / delta().key_heads; }
  std::int32_t tokens_in(std::int32_t chunk) const {
    const std::int32_t left = token_count - chunk * kSparseChunk;
    return left < kSparseChunk ? left : kSparseChunk;
  }
  // Rows of token `i` of a chunk, for value head h.
  const float* q_K(std::int32_t chunk, std::int32_t i, std::int32_t h) const;
  const float* k_K(std::int32_t chunk, std::int32_t i, std::int32_t h) const;
  const float* v_V(std::int32_t chunk, std::int32_t i, std::int32_t h) const;
  double beta(std::int32_t chunk, std::int32_t i, std::int32_t h) const;
  double log_decay(std::int32_t chunk, std::int32_t i, std::int32_t h) const;
};

SparseGdnSequence sparse_gdn_sequence(const SparseGdnArgs& args, std::int32_t first_row, std::int32_t token_count);

/// Results per chunk and value head; index with at(chunk, head).
struct SparseGdnIntra {
  std::int32_t value_heads, value_dim;
  double* decay_log2;  ///< [C, HV, 64] inclusive cumulative log2-decay; rows past T repeat the last
  double* inverse;     ///< [C, HV, 64, 64] inverse of M = I + A, or its 7 blocks
  double* u;           ///< [C, HV, 64, V] inverse diag(beta) V; rows past T are zero
  double* scores;      ///< [C, HV] norm of u's last 16 rows
  double* gamma_log2;  ///< [C, HV] decay of the whole chunk

  std::int64_t at(std::int32_t chunk, std::int32_t head) const {
    return static_cast<std::int64_t>(chunk) * value_heads + head;
  }
  double* decay_log2_of(std::int32_t c, std::int32_t h) const { return decay_log2 + at(c, h) * kSparseChunk; }
  double* inverse_of(std::int32_t c, std::int32_t h) const { return inverse + at(c, h) * kSparseChunk * kSparseChunk; }
  double* u_of(std::int32_t c, std::int32_t h) const { return u + at(c, h) * kSparseChunk * value_dim; }
};

SparseGdnIntra carve_sparse_gdn_intra(const SparseGdnArgs& args, std::int32_t chunk_count, ScratchLayout& layout);
void compute_sparse_gdn_intra(const SparseGdnSequence& sequence, const SparseGdnIntra& intra);

}  // namespace cairn::reference
