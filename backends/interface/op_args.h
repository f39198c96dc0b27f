// The arguments of every operator: plain structs, all pointers device memory unless they say host.
//
// Shapes use the house's letters: T tokens of the batch, B sequences, D model dim, H heads, HK key heads, HV value heads,
// K key dim, V value dim, P partitions, N slots. Row-major, last letter fastest. Activations have the element type `dtype`
// (kF32, or kBF16 on a GPU); gates (log-decays, beta) and states are f32 always, SDM rows aside. Log-decays are
// natural logs, <= 0.
// An operator writes all of its outputs and nothing else; outputs may hold NaN before. Inputs and outputs do not overlap
// unless the comment says so. Same inputs, same bits; the same sequence gives the same bits in any batch.
#pragma once

#include "backends/interface/tensor_view.h"

namespace cairn {

// ---------------------------------------------------------------- dense operators

/// out[t] = table[tokens[t]].  tokens [T] i32 (checked by the caller), table [vocab, D] of table_dtype, out [T, D].
struct EmbedArgs {
  DType dtype;
  std::int32_t token_count, dim;
  const std::int32_t* tokens;
  const void* table;
  DType table_dtype;
  Rows out;
};

/// out[i] = in[row_index[i]].  in [*, D], row_index [R] i32, out [R, D].
struct GatherRowsArgs {
  DType dtype;
  std::int32_t row_count, dim;
  const std::int32_t* row_index;
  ConstRows in;
  Rows out;
};

/// A weight matrix. `data` is row-major [out_dim, in_dim] of `dtype` as stored in the file (kF32, kBF16, kF16; kI8: one
/// f32 scale per row; kI4: two per byte, low nibble first, signed -8..7, one f32 scale per row and group).
/// `packed` is the backend's own copy (see Backend::pack_linear) and may be null where none is needed.
struct LinearWeight {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  std::int32_t out_dim = 0, in_dim = 0;
  const float* scales = nullptr;   ///< kI8: [out_dim]; kI4: [out_dim, in_dim / group_size]
  std::int32_t group_size = 0;     ///< kI4: 32 or 64
  const float* bias = nullptr;     ///< [out_dim] or null
  void* packed = nullptr;
};

/// y = x W^T (+ bias) (+ y when accumulate).  in [T, in_dim] dtype, out [T, out_dim] out_dtype.
/// A row's bits depend on the row, the weight and `phase` alone: not on T, on its place, or on the thread count.
/// linear_swiglu, fused: the outputs are gate | up, and out [T, out_dim / 2] = swiglu of them; out_dtype is dtype, accumulate
/// false. The bits of linear and swiglu, one after the other.
struct LinearArgs {
  DType dtype, out_dtype;
  Phase phase;
  bool accumulate;
  std::int32_t token_count;
  const LinearWeight* weight;  ///< host pointer to the struct; its members are device pointers
  ConstRows in;
  Rows out;
};

/// out = x / sqrt(mean(x^2) + eps) * weight, per head.  in, out [T, H, dim] (may be the same rows), weight [dim] f32.
struct RmsNormArgs {
  DType dtype;
  std::int32_t token_count, head_count, dim;
  float eps;
  const float* weight;  ///< null: 1
  ConstRows in;
  Rows out;
};

enum class NormKind : std::uint8_t { kRms = 0, kLayerNorm = 1 };
enum class GateKind : std::uint8_t { kNone = 0, kSilu = 1, kSigmoid = 2 };

/// out = norm(x) * weight (+ bias) * gate(z), per head.  in, gate, out [T, H, dim] (out may be in), weight, bias [dim] f32.
struct GatedRmsNormArgs {
  DType dtype;
  NormKind norm;
  GateKind gate_kind;
  std::int32_t token_count, head_count, dim;
  float eps;
  const float* weight;
  const float* bias;  ///< layer norm; may be null
  ConstRows in, gate;
  Rows out;
};

/// Depthwise causal convolution of each sequence, then an activation:  y_t = act(sum_j weight[c, j] x_{t-n+1+j} + bias).
/// in, out [T, C]; weight [C, n] f32; tails [B] -> [n - 1, C] f32, the inputs before the first token, oldest first;
/// updated in place to the last n - 1 inputs.  out may be in only in the decode phase.
struct ShortConvArgs {
  DType dtype;
  GateKind activation;  ///< kNone or kSilu
  Batch batch;
  std::int32_t channel_count, kernel_size;
  const float* weight;
  const float* bias;  ///< [C] or null
  ConstRows in;
  float* const* tails;
  Rows out;
};

enum class FeatureMap : std::uint8_t {
  kSilu = 0, kRelu = 1, kEluPlusOne = 2, kSigmoid = 3,  // element-wise
  kSoftmax = 4, kL2 = 5, kSumNorm = 6                   // over each head: softmax; x / sqrt(sum x^2 + 1e-6); x / sum x
};

/// out = map(x * scale), per head.  in, out [T, H, dim]; may be the same rows. out_dtype: dtype or kF32.
struct FeatureMapArgs {
  DType dtype, out_dtype;
  FeatureMap map;
  std::int32_t token_count, head_count, dim;
  float scale;      ///< before the map
  float out_scale;  ///< after it (2 for beta = 2 sigma(b))
  ConstRows in;
  Rows out;
};

enum class DecayKind : std::uint8_t {
  kSoftplus = 0,    ///< g = -exp(A_log[h]) softplus(x + bias)                   GDN, KDA, GDN2, SDM
  kLogSigmoid = 1,  ///< g = log sigma(x + bias) / parameter                     GLA gate of SSE, parameter 16
  kLowerBound = 2   ///< g = parameter * sigma(exp(A_log[h]) (x + bias))         KDA with a lower bound, parameter < 0
};

/// Log-decays.  in [T, H, rows] (rows = 1: one decay per head; K: one per key row), A_log [H], bias [H, rows] f32 or null,
/// out [T, H, rows] f32, densely packed.
struct DecayGateArgs {
  DType dtype;
  DecayKind kind;
  float parameter;
  std::int32_t token_count, head_count, rows;
  const float* a_log;
  const float* bias;
  ConstRows in;
  float* out;
};

/// Fused, decode only (exactly one token of each sequence): short_conv over q | k | v, norm over each of the first
/// 2 key_heads heads of key_dim of its output, in place, decay_gate, and the feature map `beta`. The bits of the four, one
/// after the other.
struct DeltaInputsArgs {
  ShortConvArgs conv;
  std::int32_t key_heads, key_dim;
  FeatureMap norm;
  DecayGateArgs decay;
  FeatureMapArgs beta;
};

/// out = a + b * scale[t].  a, b, out [T, dim]; out may be a; a.data null: zeros.  scale [T] f32 or null (1).
struct AddArgs {
  DType dtype;
  std::int32_t token_count, dim;
  const float* scale;
  ConstRows a, b;
  Rows out;
};

/// out = x * gate(z).  x, z, out [T, dim]; out may be x.
struct GateArgs {
  DType dtype;
  GateKind kind;
  std::int32_t token_count, dim;
  ConstRows x, z;
  Rows out;
};

/// out = silu(gate) * up.  [T, dim] each; out may be gate.
struct SwigluArgs {
  DType dtype;
  std::int32_t token_count, dim;
  ConstRows gate, up;
  Rows out;
};

/// v~ = v + gamma * side (CLER).  v, side, out [T, H, dim]; out may be v.
/// gamma f32: [1] (head_stride 0, dim_stride 0), [H] (1, 0) or [H, dim] (dim, 1).
struct CrossLayerAddArgs {
  DType dtype;
  std::int32_t token_count, head_count, dim;
  const float* gamma;
  std::int32_t gamma_head_stride, gamma_dim_stride;
  ConstRows v, side;
  Rows out;
};

// ---------------------------------------------------------------- mixture of experts

enum class RouterKind : std::uint8_t { kSoftmax = 0, kSigmoid = 1 };

/// out = sum over the chosen experts e of w_e * down_e(silu(gate_e x) * up_e x).  Spec: public-models.md 2.1, 2.3, 2.5.
/// router_logits [T, E] f32. Softmax: top-k of softmax, renormalised if asked. Sigmoid: top-k of s + correction_bias
/// (within the best groups), weights are the raw s, divided by their sum + 1e-20 if asked; then times routed_scale.
/// Ties: lower index first. experts: host array of E weights each.
struct MoeArgs {
  DType dtype;
  Phase phase;
  RouterKind router;
  bool renormalize;
  float routed_scale;
  std::int32_t token_count, dim, hidden_dim, expert_count, top_k, group_count, top_groups;
  const float* router_logits;
  const float* correction_bias;  ///< [E] or null
  const LinearWeight* gate;      ///< host array [E]: hidden_dim x dim
  const LinearWeight* up;
  const LinearWeight* down;      ///< dim x hidden_dim
  ConstRows in;
  Rows out;                      ///< [T, D], overwritten
};

// ---------------------------------------------------------------- attention

/// Rotates the first rotary_dim columns of each head in place, half-split pairs (i, i + rotary_dim / 2).
/// x [T, H, dim]; position of token t of sequence b is starts[b] + its index in the sequence; starts [B] i64.
struct RopeArgs {
  DType dtype;
  Batch batch;
  std::int32_t head_count, dim, rotary_dim;
  float theta;
  const std::int64_t* starts;
  Rows x;
};

/// One sequence's key-value memory of one layer: row p % capacity holds the token at position p.  f32.
struct KvCache {
  float* keys;             ///< [capacity, HKV, K]
  float* values;           ///< [capacity, HKV, V]
  std::int32_t capacity;   ///< window layers: the window; else the state's kv capacity
};

/// Softmax attention of the batch's new tokens over the cache and themselves; then the new keys and values are stored
/// (only the last `capacity` of them).  q [T, HQ, K], k [T, HKV, K], v [T, HKV, V], out [T, HQ, V]; query head h uses
/// key head h / (HQ / HKV). A token at position p sees positions [max(0, p - window + 1), p]; window 0: all.
/// caches [B] and starts [B] (tokens already stored) are device memory.
struct SoftmaxAttentionArgs {
  DType dtype;
  Phase phase;
  Batch batch;
  std::int32_t query_heads, kv_heads, key_dim, value_dim, window;
  float scale;
  const std::int64_t* starts;
  const std::int64_t* starts_host;
  const KvCache* caches;
  ConstRows q, k, v;
  Rows out;
};

/// Multi-head latent attention without rotation (Kimi Linear).  Per token the cache holds [latent | shared key]:
/// q [T, H, nope_dim + shared_dim]; latent [T, rank] (after its norm), shared_key [T, shared_dim]; kv_b maps a latent to
/// per head [k_nope (nope_dim) | v (value_dim)]. Score of head h: q_nope . k_nope + q_shared . shared_key, times scale.
/// caches [B]: keys [capacity, rank + shared_dim], values unused.  out [T, H, value_dim].
struct LatentAttentionArgs {
  DType dtype;
  Phase phase;
  Batch batch;
  std::int32_t head_count, nope_dim, shared_dim, value_dim, rank;
  float scale;
  const LinearWeight* kv_b;  ///< [H * (nope_dim + value_dim), rank]
  const std::int64_t* starts;
  const std::int64_t* starts_host;
  const KvCache* caches;
  ConstRows q, latent, shared_key;
  Rows out;
};

// ---------------------------------------------------------------- delta rules (spec 1, 2)

/// One ladder: GDN2 > KDA > GDN > DeltaNet. q, k [T, HK, K] (after l2), v [T, HV, V], out and residual [T, HV, V];
/// value head h uses key head h / (HV / HK). States [B] -> [HV, K, V] f32, updated in place.
struct DeltaRuleArgs {
  DType dtype;
  Phase phase;
  Batch batch;
  std::int32_t key_heads, value_heads, key_dim, value_dim;
  float scale;             ///< of the output: 1 / sqrt(K)
  ConstRows q, k, v;
  const float* log_decay;  ///< DeltaNet: null; GDN [T, HV]; KDA, GDN2 [T, HV, K]; packed
  const float* beta;       ///< [T, HV] packed; GDN2: null
  ConstRows erase;         ///< GDN2: b [T, HV, K]
  ConstRows write;         ///< GDN2: w [T, HV, V]
  float* const* states;
  Rows out;
  Rows residual;           ///< decay-adjusted residual r of spec 1, before beta; data null: not wanted
  /// State checkpoints: after every checkpoint_chunks * 64 tokens of sequence b (not after its end) the state is copied to
  /// checkpoints[b] + i * HV * K * V.  0: none.
  std::int32_t checkpoint_chunks;
  float* const* checkpoints;
};

/// Fused, decode only (exactly one token of each sequence): delta_inputs, gdn of its rows and gates, gated_rms_norm of
/// gdn's rows. The bits of the three, one after the other. What lies between them (conv.out, decay.out, beta.out,
/// rule.out) is room that may be written or not; norm.out may be rule.out. No residual, no checkpoints.
struct DeltaStepArgs {
  DeltaInputsArgs inputs;
  DeltaRuleArgs rule;
  GatedRmsNormArgs norm;
};

enum class SparsePolicy : std::uint8_t { kAdaptive = 0, kAll = 1, kRandom = 2, kFixed = 3, kGiven = 4 };

/// Where a test asks a SparseGDN prefill to leave its stage tensors (one sequence; spec 3; any pointer may be null).
/// C chunks, n = HK groups; event numbers and shapes as vectors/index.json says.  Device memory, f32 unless said.
struct SparseGdnTrace {
  float* scores;             ///< [C, HV]
  float* gamma_log2;         ///< [C, HV]
  float* u;                  ///< [T, HV, V], before the events
  float* u_new;              ///< [T, HV, V], after
  float* inverse_blocks;     ///< [C, HV, 7, 16, 16]
  float* rank;               ///< [n, C]
  std::int32_t* order;       ///< [n, C]
  float* retention;          ///< [HV]
  float* lifetime;           ///< [HV]
  float* eta;                ///< [HV]
  float* visibility;         ///< [HV]
  float* gain_low_medium;    ///< [n]
  float* gain_medium_high;   ///< [n]
  std::uint8_t* mask;        ///< [n, C]
  std::int32_t* tier;        ///< [n]: 0 low, 1 medium, 2 high
  std::int32_t* row_group;   ///< [n]
  std::int32_t* row_ptr;     ///< [n + 1]
  std::int32_t* event_chunk; ///< [events]
  std::int32_t* event_snapshot;  ///< [events]: -1 not stored
  std::int32_t* snapshot_count;  ///< [n]
  std::int32_t* entry_event;     ///< [n, ceil(C / 2)]
  std::int32_t* entry_snapshot;  ///< [n, ceil(C / 2)]
  float* snapshots;          ///< value head 0's, then head 1's, ...: [., K, V]
};

/// SparseGDN prefill (spec 3): every sequence of the batch selects over its own tokens. `delta` as for gdn_prefill
/// (residual and checkpoints are not available).
struct SparseGdnArgs {
  DeltaRuleArgs delta;
  SparsePolicy policy;
  bool full_inverse;
  std::uint64_t seed;
  ConstRows gate;                     ///< z [T, HV, V], output-gate pre-activation
  const float* norm_weight;           ///< nu [V]
  const std::uint8_t* given_mask;     ///< kGiven: [n, C] of the one sequence
  const std::int32_t* given_tier;     ///< kGiven: [n]
  const SparseGdnTrace* trace;        ///< host pointer, or null
};

// ---------------------------------------------------------------- SSE (spec 4, 8)

enum class SseTransition : std::uint8_t { kGla = 0, kDelta = 1, kGdn = 2 };
enum class SsePath : std::uint8_t { kAuto = 0, kMasked = 1, kVarlen = 2 };

/// e = softmax(route_logits), top_k partitions per token (ties: lower index), not renormalised. Chosen partitions decay,
/// write e_i k, read e_i q; others are untouched. The shared partition always runs, weight 1.
/// q, k, shared_q, shared_k [T, H, K] (k after its softmax), v and out [T, H, V].
/// kGla: log_decay [T, H, K]. kDelta: the same and beta [T, H]. kGdn: log_decay and beta [T, H], key e_i k, query e_i q.
struct SseArgs {
  DType dtype;
  Phase phase;
  SseTransition transition;
  SsePath path;
  bool gate_write, gate_read;          ///< apply e_i when writing, when reading (default both)
  Batch batch;
  std::int32_t head_count, key_dim, value_dim, partition_count, top_k;
  const float* route_logits;           ///< [T, P] f32
  ConstRows q, k, v, shared_q, shared_k;  ///< shared_q.data null: no shared partition
  const float* log_decay;
  const float* shared_log_decay;       ///< null: as log_decay
  const float* beta;
  const float* shared_beta;            ///< null: as beta
  float* const* states;                ///< [B] -> [P, H, K, V]
  float* const* shared_states;         ///< [B] -> [H, K, V]
  Rows out;
};

// ---------------------------------------------------------------- SDM (spec 5, 8)

/// One sequence's slot tables of one layer: copy-on-write rows over the model's M0.
/// Row r lives at element (r % rows_per_slab) * V of slabs[r / rows_per_slab]. A slot's row is row_of_slot[h * N + i], or -1: the
/// slot still equals M0. Rows below control[1] are shared with other states: to write one, take the next free row
/// (control[0]++), copy, and point the slot at it. The runtime reserves enough rows before each call.
struct SdmTable {
  std::int32_t* row_of_slot;  ///< [H, N]
  void* const* slabs;         ///< elements of SdmArgs::row_dtype
  std::int32_t* control;      ///< [0] rows in use, [1] first private row
};

/// Product-key addressing, then the update and the read (spec 5). write_scores, read_scores [T, H, 2 n]: per head the n
/// scores a, then the n scores b; slot i * n + j has score a_i + b_j. v, out, residual [T, H, V].
struct SdmArgs {
  DType dtype;
  Phase phase;
  Batch batch;
  bool slot_residual, key_weighted_decay;
  std::int32_t head_count, side;       ///< n: N = n * n slots
  std::int32_t value_dim, write_count, read_count;
  float write_scale, read_scale;       ///< of the scores before their softmax: 1
  ConstRows write_scores, read_scores, v;
  const float* log_decay;              ///< [T, H]
  const float* beta;                   ///< [T, H]
  const void* initial;                 ///< M0 [H, N, V], or null: zeros
  DType initial_dtype;
  std::int32_t rows_per_slab;          ///< a power of two
  DType row_dtype;                     ///< of the tables: f32, or bf16: rounded to nearest even at each write, nowhere else
  const SdmTable* tables;              ///< [B], device memory
  Rows out;
  Rows residual;                       ///< shared residual, before beta; data null: not wanted
  std::int32_t* trace_write_slots;     ///< [T, H, min(W, N)] or null; with trace_write_weights the set of pairs
  float* trace_write_weights;
  std::int32_t* trace_read_slots;
  float* trace_read_weights;
};

}  // namespace cairn
