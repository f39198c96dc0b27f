// What every source of weights becomes: the architecture of a model in Cairn's own terms, and where each tensor lies.
//
// Importers (runtime/import) and the .cairn reader produce it; layers (runtime/layers) are built from it. All numbers
// have been checked by validate() before anything else sees them.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backends/interface/op_args.h"
#include "runtime/support/status.h"

namespace cairn {

/// Values are written to files: never renumber.
enum class Mechanism : std::uint8_t {
  kDeltaNet = 0,
  kGdn = 1,
  kKda = 2,
  kGdn2 = 3,
  kSse = 4,
  kSdm = 5,
  kSoftmaxAttention = 6,
  kLatentAttention = 7
};
const char* mechanism_name(Mechanism mechanism);  ///< "delta_net", "gdn", ...

enum class QkActivation : std::uint8_t { kSilu = 0, kRelu = 1, kEluPlusOne = 2, kIdentity = 3 };
enum class QkNorm : std::uint8_t { kL2 = 0, kSum = 1, kNone = 2 };

/// DeltaNet, GDN, KDA, GDN2 (spec 1).
struct DeltaRuleConfig {
  std::int32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  std::int32_t conv_kernel = 4;  ///< 0: no convolution
  bool conv_bias = false;
  QkActivation qk_activation = QkActivation::kSilu;  ///< v always passes silu
  QkNorm qk_norm = QkNorm::kL2;
  bool has_beta = true;                    ///< DeltaNet may fix beta = 1
  float beta_scale = 1;                    ///< 2: negative eigenvalues; GDN2: of the erase gate b
  DecayKind decay = DecayKind::kSoftplus;  ///< not DeltaNet
  float decay_lower_bound = 0;             ///< kLowerBound
  std::int32_t decay_rank = 0;             ///< KDA, GDN2: rank of the decay projection; 0: full (a.weight)
  std::int32_t gate_rank = 0;              ///< rank of the output-gate projection; 0: full (z.weight)
};

/// Sparse state expansion (spec 4, 8).
struct SseConfig {
  std::int32_t heads = 0, key_dim = 0, value_dim = 0, partitions = 0, top_k = 0;
  SseTransition transition = SseTransition::kGla;
  bool has_shared = true;
  bool adapt_routed = false;           ///< the low-rank adaptation sits on the routed side instead of the shared one
  std::int32_t adapter_rank = 0;       ///< 0: none
  std::int32_t decay_rank = 0;         ///< of the GLA gate; 0: full
  float decay_root = 16;               ///< alpha = sigma(.)^(1/root)
  bool separate_shared_gates = false;  ///< the shared partition has its own decay (and beta)
  QkActivation qv_activation = QkActivation::kIdentity;  ///< of q and v
  bool query_softmax = false;                            ///< of q, instead of qv_activation
  bool key_softmax = true;                               ///< false: silu, then l2
  bool l2_after_gate = false;  ///< SpikingBrain's GDN kernel normalises e q and e k: e cancels
  bool gate_write = true, gate_read = true;
  std::int32_t shared_conv_kernel = 0;  ///< convolution without activation on the shared q and k
  std::int32_t gate_rank = 0;           ///< output gate; 0: full
};

/// Sparse delta memory (spec 5, 8).
struct SdmConfig {
  std::int32_t heads = 0, side = 0, value_dim = 0;  ///< N = side * side
  std::int32_t write_count = 0, read_count = 0;     ///< above N: N
  bool learned_initial = true;                      ///< tensor `initial`; else zeros
  bool slot_residual = false;
  bool key_weighted_decay = false;
  bool has_bias = false;  ///< on every projection
  float write_scale = 1, read_scale = 1;
};

/// Whether a norm's weight is stored as w - 1; kAsModel: as norm_zero_centered says.
enum class NormCentering : std::uint8_t { kAsModel = 0, kPlain = 1, kZeroCentered = 2 };

/// Softmax attention, full or sliding-window (spec 7).
struct AttentionConfig {
  std::int32_t query_heads = 0, kv_heads = 0, head_dim = 0;
  std::int32_t window = 0;      ///< 0: full
  std::int32_t rotary_dim = 0;  ///< 0: no rotation
  float rope_theta = 10000;
  bool qk_norm = false;       ///< per head, weight [head_dim]
  bool qk_norm_full = false;  ///< OLMo: over the whole projected vector, weight [heads * head_dim]
  bool output_gate = false;   ///< sigma(x W_g), tensor `z`
  bool qkv_bias = false;
  float qk_norm_eps = 0;  ///< 0: the model's norm_eps
  NormCentering qk_norm_centering = NormCentering::kAsModel;
};

/// Multi-head latent attention without rotation (Kimi Linear).
struct LatentAttentionConfig {
  std::int32_t heads = 0, nope_dim = 0, shared_dim = 0, value_dim = 0, rank = 0;
  float latent_norm_eps = 1e-6F;
};

/// Output of a recurrent mixer: per-head norm, weight, gate (spec 1).
struct OutputConfig {
  NormKind norm = NormKind::kRms;
  GateKind gate = GateKind::kSilu;
  float eps = 1e-6F;
};

enum class Routing : std::uint8_t { kNone = 0, kCler = 1, kClerH = 2, kClvr = 3 };
enum class RoutingGamma : std::uint8_t { kScalar = 0, kHead = 1, kChannel = 2 };

/// Cross-layer routing (spec 6).
struct RoutingConfig {
  Routing kind = Routing::kNone;
  RoutingGamma gamma = RoutingGamma::kScalar;  ///< CLER
  std::int32_t rank = 0;                       ///< CLER-H, CLVR: 0: full P
  bool scaled = false;                         ///< route beta r instead of r
  bool after_block = false;                    ///< add P after the whole block instead of with the mixer's output
};

enum class MlpKind : std::uint8_t { kNone = 0, kSwiglu = 1, kMoe = 2 };

struct MlpConfig {
  MlpKind kind = MlpKind::kSwiglu;
  std::int32_t hidden_dim = 0;  ///< SwiGLU, or one expert's
  std::int32_t expert_count = 0, top_k = 0;
  RouterKind router = RouterKind::kSoftmax;
  bool renormalize = true;
  bool correction_bias = false;
  float routed_scale = 1;
  std::int32_t group_count = 1, top_groups = 1;
  std::int32_t shared_hidden_dim = 0;  ///< 0: no shared expert
  bool shared_gate = false;            ///< sigma(x w) times the shared expert
};

struct LayerConfig {
  Mechanism mechanism = Mechanism::kGdn;
  DeltaRuleConfig delta;  // the one of these that the mechanism names
  SseConfig sse;
  SdmConfig sdm;
  AttentionConfig attention;
  LatentAttentionConfig latent;
  bool has_side_attention = false;  ///< SSE: attention beside it, out = norm(sse(h)) + norm(attention(h))
  AttentionConfig side_attention;
  OutputConfig output;
  RoutingConfig routing;
  MlpConfig mlp;
  bool norm_after = false;  ///< OLMo attention layers: h += norm1(mixer(h)); h += norm2(mlp(h))
};

enum class TokenizerKind : std::uint8_t { kNone = 0, kBytes = 1, kBpe = 2, kTiktoken = 3 };

/// What the tokenizer is made from. `data` is the file's text (tokenizer.json, or tiktoken ranks); bytes need none.
struct TokenizerConfig {
  TokenizerKind kind = TokenizerKind::kNone;
  std::string data;
  std::string extra;  ///< tokenizer_config.json, when there is one
  std::string chat_template;
  std::int32_t bos = -1, eos = -1;
  bool add_bos = false;
  std::vector<std::int32_t> stop_tokens;
};

/// A tensor of the model: canonical name, shape as stored, and where its bytes are.
struct TensorEntry {
  std::string name;  ///< "layers.3.mixer.q.weight": see expected_tensors()
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  ///< matrices are [out, in]
  const void* data = nullptr;       ///< host memory, kept alive by ModelDescription::storage
  std::uint64_t size_bytes = 0;
  const float* scales = nullptr;  ///< kI8, kI4
  std::uint64_t scales_bytes = 0;
  std::int32_t group_size = 0;
};

struct ModelDescription {
  std::string architecture, name;
  std::int32_t model_dim = 0, vocab_size = 0;
  std::int64_t trained_tokens = 0;  ///< 0: not known
  float norm_eps = 1e-6F;
  bool norm_zero_centered = false;  ///< norm weights are stored as w - 1: norm1, norm2, final norm, and q and k norms
                                    ///< that do not say otherwise
  bool tied_embedding = false;
  std::vector<LayerConfig> layers;
  TokenizerConfig tokenizer;

  std::vector<TensorEntry> tensors;                  ///< sorted by name
  std::array<std::uint8_t, 32> fingerprint{};        ///< of config, tensor table and weights; see schema/FORMAT.md
  std::vector<std::shared_ptr<const void>> storage;  ///< keeps the tensors' memory alive

  const TensorEntry* find(const std::string& tensor_name) const;  ///< null: absent
};

/// A tensor that a description requires. rank 1 and 2 only, but SDM's `initial` [H, N, V].
struct TensorSpec {
  std::string name;
  std::vector<std::int64_t> shape;
  bool is_matrix = false;  ///< a linear layer's weight: may be quantised
};

/// Checks every number of the description against the limits and against each other (spec, reliability.md 2.5 cases
/// 21-45); the message names the layer and the field.
Status validate(const ModelDescription& description);

/// Names and shapes of every tensor that the (valid) description needs, sorted by name:
///   embed.weight [vocab, D]; final_norm.weight [D]; head.weight [vocab, D] unless tied
///   layers.I.norm1.weight, norm2.weight [D]  (norm2 only with an MLP)
///   layers.I.mixer.* by mechanism:
///     delta rules: q, k.weight [HK K, D]; v.weight [HV V, D]; o.weight [D, HV V]; norm.weight [V]; conv_q, conv_k,
///     conv_v.weight
///       [channels, n] (and .bias [channels]); b.weight [HV, D] (GDN2: [HV K, D]); GDN: a.weight [HV, D], a_log [HV],
///       dt_bias [HV]; KDA, GDN2: a_down.weight [rank, D], a_up.weight [HV K, rank] (or a.weight [HV K, D] when rank is
///       0), a_log [HV], dt_bias [HV K]; GDN2: w.weight [HV V, D]; output gate unless kNone: z.weight [HV V, D], or
///       z_down.weight [rank, D], z_up.weight [HV V, rank] and optional z_up.bias
///     sse: e.weight [P, D]; q, k.weight [H K, D]; v.weight [H V, D]; q_down, k_down.weight [rank, D]; q_up,
///     k_up.weight [H K, rank];
///       GLA and delta: a_down, a_up.weight (or a.weight), a_bias [H K]; delta: b.weight [H, D]; GDN: a, b.weight [H,
///       D], a_log, dt_bias [H]; with separate_shared_gates the same again with prefix shared_; conv_q, conv_k.weight
///       when shared_conv_kernel; o, z, norm as above
///     sdm: q, k.weight [H 2 n, D]; v.weight [H V, D]; a, b.weight [H, D]; a_log, dt_bias [H]; initial [H, N, V] when
///     learned; o, z, norm as
///       above; with has_bias q, k, v, a, b, z, o.bias; layer norm: norm.bias [V]
///     softmax_attention: q.weight [HQ hd, D]; k, v.weight [HKV hd, D]; o.weight [D, HQ hd]; q_norm, k_norm.weight;
///     z.weight [HQ hd, D]; q, k, v.bias
///       (the same again under layers.I.side. for attention beside SSE, with merge_mixer.weight and merge_side.weight
///       [D])
///     latent_attention: q.weight [H (nope + shared), D]; kv_a.weight [rank + shared, D]; kv_a_norm.weight [rank];
///       kv_b.weight [H (nope + V), rank]; o.weight [D, H V]
///   layers.I.routing.gamma [1], [HV] or [HV, V] (CLER); routing.p.weight [D, HV V], or routing.down.weight [rank, HV
///   V] and
///     routing.up.weight [D, rank] (CLER-H, CLVR)
///   layers.I.mlp.gate, up.weight [F, D], down.weight [D, F]; MoE: router.weight [E, D], router_bias [E] (correction),
///     experts.E.{gate,up,down}.weight, shared.{gate,up,down}.weight, shared_gate.weight [1, D]
std::vector<TensorSpec> expected_tensors(const ModelDescription& description);

/// Every expected tensor is there with its shape and an allowed dtype, and no other: by name, with both shapes.
Status check_tensors(const ModelDescription& description);

}  // namespace cairn
