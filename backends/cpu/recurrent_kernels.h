// The dense and streaming kernels that the recurrent operators share, one table for each instruction set.
//
// Matrices are row-major f32 with a leading dimension. Every sum runs in index order whatever the shape of the call, so
// a value's bits depend on its own inputs alone. No kernel allocates; outputs and inputs overlap only where said.
#pragma once

#include <cstdint>

#include "backends/cpu/cpu_features.h"

namespace cairn::cpu {

/// Chunk length of every chunked prefill (spec 2), and the sub-block of its row-decay form and of SparseGDN's inverse.
inline constexpr int kChunk = 64, kBlock = 16;

/// c [rows, columns] = a [rows, depth] b [depth, columns]; plus c with `accumulate`; plus diag(keep) c with `keep`.
/// is_lower: the last `rows` of a's columns are a lower triangle; what is above its diagonal is not looked at.
struct ChunkProduct {
  int rows, columns, depth;
  const float* a;
  std::int64_t a_stride;
  const float* b;
  std::int64_t b_stride;
  float* c;
  std::int64_t c_stride;
  bool accumulate = false, is_lower = false;
  const float* keep = nullptr;
};

/// A triangle of factors for n <= 64 tokens with one decay each. G = high + low: the chunk's inclusive cumulative
/// natural log-decay, in two parts.  d[i, j] = e^(G_i - G_j);  kk, qk [64, 64] hold <k_i, k_j>, <q_i, k_j>.
///   solve[i, j]  = -kk d beta_j  for j < i;   attend[i, j] = scale qk d  for j <= i;   0 up to the next 16 columns.
struct DecayTriangle {
  int token_count;
  const float* high;
  const float* low;
  const float* beta;  ///< null: 1
  float scale;
  const float* kk;  ///< null: no `solve`
  const float* qk;  ///< null: no `attend`
  float* solve;
  float* attend;
};

/// The same for one decay per key row, and the decayed copies of keys and queries that carry state in and out of a
/// chunk of n <= 64 tokens. Rows are padded: `width` is K rounded up to 16, pads and rows n .. 63 are zero.
///   solve[i, j]  = -beta_j sum_k e_i k_j e^(G_i - G_j),  j < i
///   attend[i, j] = scale sum_k q_i k_j e^(G_i - G_j),  j <= i
///   erase_in     = -e_i e^G_i
///   query_in     = scale q_i e^G_i
///   key_out      = k_j e^(G_last - G_j), tokens in columns
///   total        = e^G_last
/// No exponent is ever positive: decays are products of e^g <= 1 inside a block of 16 tokens, and between blocks both
/// sides are decayed to the block's border.
struct RowDecay {
  int token_count, key_dim, width;
  const float* erase;      ///< e [64, width]; null: no delta rule, `solve` and `erase_in` are not written
  const float* query;      ///< [64, width]
  const float* key;        ///< [64, width]
  const float* log_decay;  ///< [64, width]
  const float* beta;       ///< [64]; null: 1
  float scale;
  float* solve;     ///< [64, 64]
  float* attend;    ///< [64, 64]
  float* erase_in;  ///< [64, width]
  float* query_in;  ///< [64, width]
  float* key_out;   ///< [key_dim, 64]
  float* total;     ///< [width]
  float* work;      ///< [row_decay_work(width)]
};
inline constexpr std::int64_t row_decay_work(std::int64_t width) { return (3 * kBlock + 3) * width; }

/// One token of one head over a state S [K, V], in place:
///   r = v - S^T predict (r = v when predict is null)
///   o = S^T read + read_of_write r
///   S <- diag(decay) S + write r^T
/// `predict` and `read` hold the decay already. The state is read from memory once.
struct StateStep {
  int key_dim, value_dim;
  const float* predict;
  const float* read;
  const float* decay;
  const float* write;
  float read_of_write, out_scale;
  bool accumulate;  ///< out += out_scale o, else out = out_scale o
  const float* value;
  float* state;
  float* residual;  ///< [V]; may be null
  float* out;
};

/// Where a slot of an SDM table is read from.
enum class RowKind : std::uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2, kZero = 3 };

/// One token of one SDM head, columns [0, columns) of its rows (pointers are already at the first column).
///   r = v - sum_i weight_i decay_i source_i
///   row_i <- decay_i source_i + beta weight_i r    (slot_residual: v - decay_i source_i instead of r)
/// A row is its own source but at its first write, when the source is M0 or a shared row.
///   out = sum over the read set of weight_i row_i
struct SdmRows {
  int columns, write_count, read_count;
  bool slot_residual, has_half_rows;  ///< rows are bf16, else f32
  float beta;
  void* const* write_rows;
  const void* const* write_sources;
  const RowKind* write_kinds;  ///< of the sources
  const float* write_weights;
  const float* write_decays;
  const void* const* read_rows;
  const RowKind* read_kinds;
  const float* read_weights;
  const float* value;
  float* residual;  ///< [columns], working space even where it is not wanted
  float* out;
};

/// The places of the `count` largest of n scores, ties to the lower place: largest first, or (by_place) lowest place
/// first. NaN counts as -infinity.
struct LargestPlaces {
  int n, count;
  bool by_place;
  const float* scores;
  float* work;  ///< [4 n + 64]
  std::int32_t* places;
};

/// The `count` <= kept^2 largest sums scores[row] + scores[side + column], in double, largest first; ties: lower slot
/// row * side + column. rows [kept] ascending; columns [kept] with their scores descending.
struct BestPairs {
  int side, kept, count;
  const float* scores;
  const std::int32_t *rows, *columns;
  double* offers;       ///< [kept rounded up to 8] working space
  std::int32_t* taken;  ///< [kept] working space
  std::int32_t* slots;
  double* sums;
};

struct RecurrentKernels {
  void (*multiply)(const ChunkProduct&);
  /// x <- (I - m)^-1 x: m [n, n] strictly lower with stride 64, zero up to the next 16 columns; x [n, columns].
  void (*solve_unit_lower)(int n, int columns, const float* m, float* x, std::int64_t x_stride);
  /// to[j, i] = from[i, j] for i < rows, j < columns.
  void (*transpose)(int rows, int columns, const float* from, std::int64_t from_stride, float* to,
                    std::int64_t to_stride);
  /// to[i, j] = from[i, j] for i < rows, j < columns.
  void (*copy_rows)(int rows, int columns, const float* from, std::int64_t from_stride, float* to,
                    std::int64_t to_stride);
  /// to[i, j] = from[i, j] factor[i]; to may be from.
  void (*scale_rows)(int rows, int columns, const float* from, std::int64_t from_stride, const float* factor, float* to,
                     std::int64_t to_stride);
  /// to[i, j] = from[i, j] factor[j]; to may be from.
  void (*scale_columns)(int rows, int columns, const float* from, std::int64_t from_stride, const float* factor,
                        float* to, std::int64_t to_stride);
  /// to[i] += factor from[i].
  void (*add_scaled)(int count, float factor, const float* from, float* to);
  void (*exponentials)(int count, const float* from, float* to);
  /// Sum of squares, in double.
  double (*sum_of_squares)(int count, const float* from);
  void (*decay_triangle)(const DecayTriangle&);
  void (*row_decay)(const RowDecay&);
  void (*state_step)(const StateStep&);
  void (*sdm_rows)(const SdmRows&);
  void (*largest_places)(const LargestPlaces&);
  void (*best_pairs)(const BestPairs&);
};

const RecurrentKernels& recurrent_kernels(Isa isa);

}  // namespace cairn::cpu
