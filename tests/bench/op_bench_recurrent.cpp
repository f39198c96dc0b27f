// Benchmark cases of attention and of the recurrent mixers. B sequences of T tokens each, H heads, K and V head dims.
#include <algorithm>
#include <cmath>

#include "tests/bench/op_bench_cases.h"

namespace cairn::bench {
namespace {

double element_bytes(const Rig& rig) { return rig.dtype() == DType::kF32 ? 4 : 2; }
Phase phase_of(const Batch& batch) {
  return batch.token_count == batch.sequence_count ? Phase::kDecode : Phase::kPrefill;
}

Rows rows(Rig& rig, std::int64_t tokens, std::int32_t width) { return {rig.activations(tokens * width), width}; }

struct Starts {
  const std::int64_t *device, *host;
};
Starts starts_of(Rig& rig, std::int32_t sequences, std::int64_t start) {
  std::vector<std::int64_t> host(static_cast<std::size_t>(sequences), start);
  const std::int64_t* device = rig.upload(host);
  return {device, rig.keep(std::move(host))->data()};
}

std::vector<float*> states(Rig& rig, std::int32_t sequences, std::int64_t count) {
  std::vector<float*> result;
  for (std::int32_t b = 0; b < sequences; ++b) result.push_back(rig.numbers(count, -0.1f, 0.1f));
  return result;
}

const KvCache* caches(Rig& rig, std::int32_t sequences, std::int32_t capacity, std::int32_t key_row,
                      std::int32_t value_row) {
  std::vector<KvCache> result;
  for (std::int32_t b = 0; b < sequences; ++b) {
    result.push_back({rig.numbers(static_cast<std::int64_t>(capacity) * key_row, -1, 1),
                      value_row ? rig.numbers(static_cast<std::int64_t>(capacity) * value_row, -1, 1) : nullptr,
                      capacity});
  }
  return rig.upload(result);
}

}  // namespace

Case make_args(Rig& rig, Shape& s, RopeArgs& a) {
  const std::int32_t sequences = s.get("B", 1), tokens = s.get("T", 512);
  a.dtype = rig.dtype();
  a.batch = rig.batch(sequences, tokens);
  a.head_count = s.get("H", 8);
  a.dim = s.get("D", 256);
  a.rotary_dim = s.get("R", 64);
  a.theta = 1e7f;
  a.starts = starts_of(rig, sequences, s.get("start", 0)).device;
  a.x = rows(rig, a.batch.token_count, a.head_count * a.dim);
  return {"", {}, 2.0 * a.batch.token_count * a.head_count * a.rotary_dim * element_bytes(rig), 0};
}

Case make_args(Rig& rig, Shape& s, SoftmaxAttentionArgs& a) {
  const std::int32_t sequences = s.get("B", 1), tokens = s.get("T", 512), start = s.get("start", 0);
  a.dtype = rig.dtype();
  a.batch = rig.batch(sequences, tokens);
  a.phase = phase_of(a.batch);
  a.query_heads = s.get("HQ", 8);
  a.kv_heads = s.get("HK", 2);
  a.key_dim = s.get("K", 256);
  a.value_dim = s.get("V", 256);
  a.window = s.get("window", 0);
  a.scale = 1 / std::sqrt(static_cast<float>(a.key_dim));
  const Starts starts = starts_of(rig, sequences, start);
  a.starts = starts.device;
  a.starts_host = starts.host;
  const std::int32_t key_row = a.kv_heads * a.key_dim, value_row = a.kv_heads * a.value_dim;
  a.caches = caches(rig, sequences, a.window ? a.window : start + tokens, key_row, value_row);
  a.q = rows(rig, a.batch.token_count, a.query_heads * a.key_dim);
  a.k = rows(rig, a.batch.token_count, key_row);
  a.v = rows(rig, a.batch.token_count, value_row);
  a.out = rows(rig, a.batch.token_count, a.query_heads * a.value_dim);
  double pairs = 0, read = 0;
  for (std::int32_t t = 0; t < tokens; ++t) {
    const double seen = a.window && start + t + 1 > a.window ? a.window : start + t + 1;
    pairs += seen;
    read = seen;
  }
  return {"",
          {},
          sequences * (read * (key_row + value_row) * 4 +
                       2.0 * tokens * a.query_heads * (a.key_dim + a.value_dim) * element_bytes(rig)),
          2.0 * sequences * pairs * a.query_heads * (a.key_dim + a.value_dim)};
}

Case make_args(Rig& rig, Shape& s, LatentAttentionArgs& a) {
  const std::int32_t sequences = s.get("B", 1), tokens = s.get("T", 64), start = s.get("start", 0);
  a.dtype = rig.dtype();
  a.batch = rig.batch(sequences, tokens);
  a.phase = phase_of(a.batch);
  a.head_count = s.get("H", 32);
  a.nope_dim = s.get("N", 128);
  a.shared_dim = s.get("S", 64);
  a.value_dim = s.get("V", 128);
  a.rank = s.get("rank", 512);
  a.scale = 0.07f;
  const LinearWeight& kv_b = *rig.keep(rig.weight(a.head_count * (a.nope_dim + a.value_dim), a.rank, DType::kBF16));
  a.kv_b = &kv_b;
  const Starts starts = starts_of(rig, sequences, start);
  a.starts = starts.device;
  a.starts_host = starts.host;
  a.caches = caches(rig, sequences, start + tokens, a.rank + a.shared_dim, 0);
  a.q = rows(rig, a.batch.token_count, a.head_count * (a.nope_dim + a.shared_dim));
  a.latent = rows(rig, a.batch.token_count, a.rank);
  a.shared_key = rows(rig, a.batch.token_count, a.shared_dim);
  a.out = rows(rig, a.batch.token_count, a.head_count * a.value_dim);
  const double pairs = sequences * (static_cast<double>(tokens) * start + 0.5 * tokens * (tokens + 1.0));
  return {"",
          {},
          2.0 * kv_b.out_dim * kv_b.in_dim + 4.0 * sequences * (start + tokens) * (a.rank + a.shared_dim),
          2.0 * a.head_count * pairs * (2.0 * a.rank + a.shared_dim) +
              2.0 * a.batch.token_count * kv_b.out_dim * kv_b.in_dim};
}

Case make_args(Rig& rig, Shape& s, DeltaRuleArgs& a) {
  const std::int32_t sequences = s.get("B", 1), tokens = s.get("T", 512);
  const bool per_row = s.op == "kda" || s.op == "gdn2";
  a.dtype = rig.dtype();
  a.batch = rig.batch(sequences, tokens);
  a.phase = phase_of(a.batch);
  a.key_heads = s.get("HK", 16);
  a.value_heads = s.get("HV", 16);
  a.key_dim = s.get("K", 128);
  a.value_dim = s.get("V", 128);
  a.scale = 1 / std::sqrt(static_cast<float>(a.key_dim));
  const std::int64_t all = a.batch.token_count, gates = all * a.value_heads * (per_row ? a.key_dim : 1);
  const float reach = a.scale;  // keys of about unit length
  a.q = {rig.numbers(all * a.key_heads * a.key_dim, -reach, reach), a.key_heads * a.key_dim};
  a.k = {rig.numbers(all * a.key_heads * a.key_dim, -reach, reach), a.key_heads * a.key_dim};
  if (rig.dtype() != DType::kF32) {
    a.q = rows(rig, all, a.key_heads * a.key_dim);
    a.k = rows(rig, all, a.key_heads * a.key_dim);
  }
  a.v = rows(rig, all, a.value_heads * a.value_dim);
  if (s.op != "delta_net") a.log_decay = rig.numbers(gates, -0.2f, -0.001f);
  if (s.op != "gdn2") a.beta = rig.numbers(all * a.value_heads, 0, 0.1f);
  if (s.op == "gdn2") {
    a.erase = rows(rig, all, a.value_heads * a.key_dim);
    a.write = rows(rig, all, a.value_heads * a.value_dim);
  }
  const std::int64_t state = static_cast<std::int64_t>(a.value_heads) * a.key_dim * a.value_dim;
  a.states = rig.upload(states(rig, sequences, state));
  a.out = rows(rig, all, a.value_heads * a.value_dim);
  const double row = (2.0 * a.key_heads * a.key_dim + 2.0 * a.value_heads * a.value_dim) * element_bytes(rig);
  return {"",
          {},
          8.0 * sequences * static_cast<double>(state) + static_cast<double>(all) * row,
          6.0 * static_cast<double>(all) * static_cast<double>(state)};
}

Case make_args(Rig& rig, Shape& s, SparseGdnArgs& a) {
  s.op = "gdn";
  s.get("T", 4096);
  Case c = make_args(rig, s, a.delta);
  a.delta.phase = Phase::kPrefill;
  a.policy = SparsePolicy::kAdaptive;
  a.seed = 1;
  a.gate = rows(rig, a.delta.batch.token_count, a.delta.value_heads * a.delta.value_dim);
  a.norm_weight = rig.numbers(a.delta.value_dim, 0.5f, 1.5f);
  return c;
}

Case make_args(Rig& rig, Shape& s, SseArgs& a) {
  const std::int32_t sequences = s.get("B", 1), tokens = s.get("T", 512);
  a.dtype = rig.dtype();
  a.batch = rig.batch(sequences, tokens);
  a.phase = phase_of(a.batch);
  a.gate_write = a.gate_read = true;
  a.head_count = s.get("H", 16);
  a.key_dim = s.get("K", 128);
  a.value_dim = s.get("V", 128);
  a.partition_count = s.get("P", 4);
  a.top_k = s.get("k", 1);
  const std::int64_t all = a.batch.token_count,
                     state = static_cast<std::int64_t>(a.head_count) * a.key_dim * a.value_dim;
  a.route_logits = rig.numbers(all * a.partition_count, -2, 2);
  a.q = rows(rig, all, a.head_count * a.key_dim);
  a.k = rows(rig, all, a.head_count * a.key_dim);
  a.v = rows(rig, all, a.head_count * a.value_dim);
  a.shared_q = rows(rig, all, a.head_count * a.key_dim);
  a.shared_k = rows(rig, all, a.head_count * a.key_dim);
  a.log_decay = rig.numbers(all * a.head_count * a.key_dim, -0.2f, -0.001f);
  a.states = rig.upload(states(rig, sequences, state * a.partition_count));
  a.shared_states = rig.upload(states(rig, sequences, state));
  a.out = rows(rig, all, a.head_count * a.value_dim);
  const double touched = tokens > 1 ? a.partition_count + 1 : a.top_k + 1;
  return {"",
          {},
          8.0 * sequences * touched * static_cast<double>(state) +
              5.0 * static_cast<double>(all) * a.head_count * a.key_dim * element_bytes(rig),
          4.0 * static_cast<double>(all) * (a.top_k + 1) * static_cast<double>(state)};
}

namespace {

/// Tables of all sequences, side by side so that one copy sets them back.
struct SdmTables {
  std::int32_t *index, *control;  ///< [B, slots], [B, 2]
  std::size_t index_bytes, control_bytes;
};

SdmTables make_tables(Rig& rig, SdmArgs* a, std::int64_t slots, std::int64_t rows_each) {
  constexpr std::int64_t kSlabBytes = 4 << 20;
  a->rows_per_slab = 1;
  const std::int64_t row_bytes = static_cast<std::int64_t>(a->value_dim) * (dtype_bits(a->row_dtype) / 8);
  while (2 * a->rows_per_slab * row_bytes <= kSlabBytes) a->rows_per_slab *= 2;
  const std::int64_t sequences = a->batch.sequence_count;
  const std::size_t index_bytes = static_cast<std::size_t>(sequences * slots) * 4;
  const SdmTables t = {static_cast<std::int32_t*>(rig.allocate(index_bytes)),
                       static_cast<std::int32_t*>(rig.allocate(static_cast<std::size_t>(sequences) * 8)), index_bytes,
                       static_cast<std::size_t>(sequences) * 8};
  std::vector<SdmTable> tables;
  for (std::int64_t b = 0; b < sequences; ++b) {
    auto* rows = static_cast<std::byte*>(rig.allocate(static_cast<std::size_t>(rows_each * row_bytes)));
    std::vector<void*> slabs;
    for (std::int64_t row = 0; row < rows_each; row += a->rows_per_slab) slabs.push_back(rows + row * row_bytes);
    tables.push_back({t.index + b * slots, rig.upload(slabs), t.control + b * 2});
  }
  a->tables = rig.upload(tables);
  return t;
}

/// fresh=1: the timed run finds every slot equal to M0; fresh=2: in rows that a fork shares. Else all rows are private
/// after the first run.
std::function<void()> make_reset(Rig& rig, const SdmTables& tables, const SdmArgs& args, std::int32_t fresh) {
  const auto minus_ones = [](std::size_t bytes) { return std::vector<std::int32_t>(bytes / 4, -1); };
  rig.copy(tables.index, minus_ones(tables.index_bytes).data(), tables.index_bytes, CopyKind::kHostToDevice);
  rig.synchronize();
  if (fresh == 0) return nullptr;
  auto* index = static_cast<std::int32_t*>(rig.allocate(tables.index_bytes));
  auto* control = static_cast<std::int32_t*>(rig.allocate(tables.control_bytes));
  if (fresh == 2 && !rig.ops().sdm.unsupported_reason(args)) {
    rig.ops().sdm.run(rig.queue(), args, rig.scratch(rig.ops().sdm.scratch_bytes(args)));
    std::vector<std::int32_t> values(tables.control_bytes / 4);
    rig.copy(values.data(), tables.control, tables.control_bytes, CopyKind::kDeviceToHost);
    rig.synchronize();
    for (std::size_t i = 0; i < values.size(); i += 2) values[i + 1] = values[i];
    rig.copy(tables.control, values.data(), tables.control_bytes, CopyKind::kHostToDevice);
  }
  const auto copy_both = [&rig, tables](auto* to_index, auto* to_control, const auto* index, const auto* control) {
    rig.copy(to_index, index, tables.index_bytes, CopyKind::kDeviceToDevice);
    rig.copy(to_control, control, tables.control_bytes, CopyKind::kDeviceToDevice);
  };
  copy_both(index, control, tables.index, tables.control);
  rig.synchronize();
  return [copy_both, tables, index, control] { copy_both(tables.index, tables.control, index, control); };
}

}  // namespace

Case make_args(Rig& rig, Shape& s, SdmArgs& a) {
  const std::int32_t sequences = s.get("B", 1), tokens = s.get("T", 64), fresh = s.get("fresh", 0);
  a.dtype = rig.dtype();
  a.batch = rig.batch(sequences, tokens);
  a.phase = phase_of(a.batch);
  a.head_count = s.get("H", 2);
  a.side = s.get("side", 96);
  a.value_dim = s.get("V", 256);
  a.write_count = a.read_count = s.get("W", 64);
  a.write_scale = a.read_scale = 1;
  const std::int64_t all = a.batch.token_count, slots = static_cast<std::int64_t>(a.head_count) * a.side * a.side;
  a.write_scores = rows(rig, all, a.head_count * 2 * a.side);
  a.read_scores = s.get("same", 0) ? a.write_scores : ConstRows(rows(rig, all, a.head_count * 2 * a.side));
  a.v = rows(rig, all, a.head_count * a.value_dim);
  a.log_decay = rig.numbers(all * a.head_count, -0.2f, -0.001f);
  a.beta = rig.numbers(all * a.head_count, 0, 0.5f);
  a.initial_dtype = static_cast<DType>(s.get("M0", static_cast<int>(DType::kBF16)));
  a.row_dtype = static_cast<DType>(s.get("rows", static_cast<int>(DType::kF32)));
  a.initial = rig.shared("M0", [&]() -> void* {
    if (a.initial_dtype == DType::kF32) return rig.numbers(slots * a.value_dim, -1, 1);
    return rig.halves(slots * a.value_dim, -1, 1);
  });
  a.out = rows(rig, all, a.head_count * a.value_dim);
  const std::int64_t writes = std::min(slots, std::int64_t{tokens} * a.head_count * a.write_count);
  const SdmTables tables = make_tables(rig, &a, slots, fresh == 2 ? 2 * writes : writes);
  const double row = static_cast<double>(all) * a.head_count * a.value_dim, m0 = dtype_bits(a.initial_dtype) / 8,
               kept = dtype_bits(a.row_dtype) / 8;
  return {"",
          {},
          row * (a.write_count * (fresh == 1 ? m0 + kept : 2 * kept) +
                 a.read_count * (a.read_scores.data == a.write_scores.data ? 0 : m0)),
          row * (4.0 * a.write_count + 2.0 * a.read_count),
          make_reset(rig, tables, a, fresh)};
}

}  // namespace cairn::bench
