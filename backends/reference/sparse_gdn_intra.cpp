#include "backends/reference/sparse_gdn_intra.h"

#include <algorithm>
#include <cmath>

#include "backends/reference/row_access.h"

namespace cairn::reference {
namespace {

constexpr std::int32_t kN = kSparseChunk, kBlock = kSparseBlock, kBlocks = kN / kBlock;

/// Log-decays end at -1e4 (spec 2), which is a factor of 0 in double too: differences of sums with -inf are no numbers.
/// One that is no number stays so.
double finite_log_decay(double g) { return g < -1e4 ? -1e4 : g; }

void cumulate_decay(const SparseGdnSequence& s, std::int32_t c, std::int32_t h, double* decay_log2) {
  double sum = 0;
  for (std::int32_t i = 0; i < kN; ++i) {
    if (i < s.tokens_in(c)) sum += finite_log_decay(s.log_decay(c, i, h)) / std::log(2.0);
    decay_log2[i] = sum;
  }
}

/// M = I + A,  A[t, s] = beta_t <k_t, k_s> 2^(g_t - g_s) for s < t; rows past T are those of I.
void form_system(const SparseGdnSequence& s, std::int32_t c, std::int32_t h, const double* decay_log2, double* m) {
  std::fill_n(m, kN * kN, 0.0);
  for (std::int32_t i = 0; i < kN; ++i) m[i * kN + i] = 1;
  for (std::int32_t i = 0; i < s.tokens_in(c); ++i) {
    for (std::int32_t j = 0; j < i; ++j) {
      double dot = 0;
      for (std::int32_t k = 0; k < s.delta().key_dim; ++k)
        dot += static_cast<double>(s.k_K(c, i, h)[k]) * s.k_K(c, j, h)[k];
      m[i * kN + j] = s.beta(c, i, h) * dot * std::exp2(decay_log2[i] - decay_log2[j]);
    }
  }
}

/// Inverse of the unit lower triangle of rows and columns [first, first + size) of m, by forward substitution.
void invert_triangle(const double* m, std::int32_t first, std::int32_t size, double* inverse) {
  const std::int32_t end = first + size;
  for (std::int32_t i = first; i < end; ++i) {
    for (std::int32_t j = first; j < end; ++j) {
      double sum = i == j ? 1 : 0;
      for (std::int32_t l = j; l < i; ++l) sum -= m[i * kN + l] * inverse[l * kN + j];
      inverse[i * kN + j] = j > i ? 0 : sum;
    }
  }
}

/// C_{i,i-1} = -C_ii M_{i,i-1} C_{i-1,i-1}. The factors C are triangles: a zero above, times NaN, would be NaN.
void fill_adjacent_block(const double* m, std::int32_t block, double* inverse) {
  const std::int32_t r = block * kBlock, c = r - kBlock;
  double product[kBlock][kBlock];
  for (std::int32_t i = 0; i < kBlock; ++i) {
    for (std::int32_t j = 0; j < kBlock; ++j) {
      product[i][j] = 0;
      for (std::int32_t l = j; l < kBlock; ++l)
        product[i][j] += m[(r + i) * kN + c + l] * inverse[(c + l) * kN + c + j];
    }
  }
  for (std::int32_t i = 0; i < kBlock; ++i) {
    for (std::int32_t j = 0; j < kBlock; ++j) {
      double sum = 0;
      for (std::int32_t l = 0; l <= i; ++l) sum -= inverse[(r + i) * kN + r + l] * product[l][j];
      inverse[(r + i) * kN + c + j] = sum;
    }
  }
}

void invert_seven_blocks(const double* m, double* inverse) {
  std::fill_n(inverse, kN * kN, 0.0);
  for (std::int32_t block = 0; block < kBlocks; ++block) {
    invert_triangle(m, block * kBlock, kBlock, inverse);
    if (block > 0) fill_adjacent_block(m, block, inverse);
  }
}

/// U = inverse diag(beta) V, and the tail score sqrt(sum over rows 48..63 of U^2).
double form_u(const SparseGdnSequence& s, std::int32_t c, std::int32_t h, const double* inverse, double* u) {
  const std::int32_t value_dim = s.delta().value_dim;
  double tail = 0;
  std::fill_n(u, kN * value_dim, 0.0);
  for (std::int32_t i = 0; i < s.tokens_in(c); ++i) {
    for (std::int32_t j = 0; j <= i; ++j) {
      const double weight = inverse[i * kN + j] * s.beta(c, j, h);
      for (std::int32_t v = 0; v < value_dim; ++v) u[i * value_dim + v] += weight * s.v_V(c, j, h)[v];
    }
    for (std::int32_t v = 0; i >= kN - kBlock && v < value_dim; ++v)
      tail += u[i * value_dim + v] * u[i * value_dim + v];
  }
  return std::sqrt(tail);
}

}  // namespace

SparseGdnSequence sparse_gdn_sequence(const SparseGdnArgs& args, std::int32_t first_row, std::int32_t token_count) {
  return {args, first_row, token_count, (token_count + kSparseChunk - 1) / kSparseChunk};
}

const float* SparseGdnSequence::q_K(std::int32_t chunk, std::int32_t i, std::int32_t h) const {
  return row(delta().q, first_row + chunk * kN + i) + h / heads_per_group() * delta().key_dim;
}
const float* SparseGdnSequence::k_K(std::int32_t chunk, std::int32_t i, std::int32_t h) const {
  return row(delta().k, first_row + chunk * kN + i) + h / heads_per_group() * delta().key_dim;
}
const float* SparseGdnSequence::v_V(std::int32_t chunk, std::int32_t i, std::int32_t h) const {
  return row(delta().v, first_row + chunk * kN + i) + h * delta().value_dim;
}
double SparseGdnSequence::beta(std::int32_t chunk, std::int32_t i, std::int32_t h) const {
  return delta().beta[static_cast<std::int64_t>(first_row + chunk * kN + i) * delta().value_heads + h];
}
double SparseGdnSequence::log_decay(std::int32_t chunk, std::int32_t i, std::int32_t h) const {
  return delta().log_decay[static_cast<std::int64_t>(first_row + chunk * kN + i) * delta().value_heads + h];
}

SparseGdnIntra carve_sparse_gdn_intra(const SparseGdnArgs& args, std::int32_t chunk_count, ScratchLayout& layout) {
  const std::size_t pieces = static_cast<std::size_t>(chunk_count) * args.delta.value_heads;
  SparseGdnIntra intra = {args.delta.value_heads, args.delta.value_dim};
  intra.decay_log2 = layout.take<double>(pieces * kN);
  intra.inverse = layout.take<double>(pieces * kN * kN);
  intra.u = layout.take<double>(pieces * kN * args.delta.value_dim);
  intra.scores = layout.take<double>(pieces);
  intra.gamma_log2 = layout.take<double>(pieces);
  return intra;
}

void compute_sparse_gdn_intra(const SparseGdnSequence& s, const SparseGdnIntra& intra) {
  double m[kN * kN];
  for (std::int32_t c = 0; c < s.chunk_count; ++c) {
    for (std::int32_t h = 0; h < s.delta().value_heads; ++h) {
      cumulate_decay(s, c, h, intra.decay_log2_of(c, h));
      form_system(s, c, h, intra.decay_log2_of(c, h), m);
      if (s.args.full_inverse) {
        invert_triangle(m, 0, kN, intra.inverse_of(c, h));
      } else {
        invert_seven_blocks(m, intra.inverse_of(c, h));
      }
      intra.scores[intra.at(c, h)] = form_u(s, c, h, intra.inverse_of(c, h), intra.u_of(c, h));
      intra.gamma_log2[intra.at(c, h)] = intra.decay_log2_of(c, h)[kN - 1];
    }
  }
}

}  // namespace cairn::reference
