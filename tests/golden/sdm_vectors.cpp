// Kinds sdm and sdm_address: addresses, update and read, in prefill and token by token.
#include <algorithm>

#include "tests/golden/vector_kinds.h"
#include "tests/support/sdm_table_memory.h"

namespace cairn::test {
namespace {

constexpr std::int32_t kRowsPerSlab = 64;

struct SdmShape {
  std::int32_t T, H, n, V, W, R;
  std::int64_t slots() const { return static_cast<std::int64_t>(n) * n; }
  std::int32_t writes() const { return static_cast<std::int32_t>(std::min<std::int64_t>(W, slots())); }
  std::int32_t reads() const { return static_cast<std::int32_t>(std::min<std::int64_t>(R, slots())); }
};

/// Scores of both halves side by side: [T, H, 2 n].
std::vector<float> joined(const VectorCase& v, const char* first, const char* second, std::int32_t n) {
  const std::vector<float> a = v.floats(first), b = v.floats(second);
  std::vector<float> scores;
  for (std::size_t i = 0; i < a.size(); i += n) {
    scores.insert(scores.end(), a.begin() + i, a.begin() + i + n);
    scores.insert(scores.end(), b.begin() + i, b.begin() + i + n);
  }
  return scores;
}

struct SdmCase {
  SdmArgs args{};
  float *out, *residual;
};

SdmCase prepare(OpRig& rig, const SdmShape& s, const std::vector<float>& write_scores,
                const std::vector<float>& read_scores, const SdmTableMemory& table) {
  SdmCase c;
  SdmArgs& a = c.args;
  const std::size_t heads = static_cast<std::size_t>(s.T) * s.H;
  a.dtype = DType::kF32;
  a.head_count = s.H, a.side = s.n, a.value_dim = s.V, a.write_count = s.W, a.read_count = s.R;
  a.write_scale = a.read_scale = 1;
  a.write_scores = rows(rig.upload(write_scores), s.H * 2 * s.n);
  a.read_scores = rows(rig.upload(read_scores), s.H * 2 * s.n);
  a.initial_dtype = DType::kF32;
  a.rows_per_slab = kRowsPerSlab;
  a.tables = rig.upload(std::vector<SdmTable>{table.table()});
  c.out = rig.poisoned(heads * s.V);
  c.residual = rig.poisoned(heads * s.V);
  a.out = rows(c.out, s.H * s.V);
  a.residual = rows(c.residual, s.H * s.V);
  a.trace_write_slots = rig.poisoned<std::int32_t>(heads * s.writes());
  a.trace_write_weights = rig.poisoned(heads * s.writes());
  a.trace_read_slots = rig.poisoned<std::int32_t>(heads * s.reads());
  a.trace_read_weights = rig.poisoned(heads * s.reads());
  return c;
}

void bind_inputs(const VectorCase& v, OpRig& rig, const SdmShape& s, SdmArgs* a) {
  a->slot_residual = v.flag("slot");
  a->key_weighted_decay = v.flag("key_weighted_decay");
  a->v = rows(rig.upload(v.floats("v")), s.H * s.V);
  a->log_decay = rig.upload(v.floats("g"));
  a->beta = rig.upload(v.floats("beta"));
  if (!v.has("M0")) return;
  a->initial_dtype = v.tensor("M0").dtype;  // bf16 where the file stores it so
  a->initial = rig.upload(v.tensor("M0").bytes);
}

/// Each address sorted by slot: any order is right if slots and weights agree as a set of pairs.
template <class Slot>
void sort_pairs(std::size_t size, std::vector<Slot>* slots, std::vector<float>* weights) {
  for (std::size_t first = 0; size && first + size <= slots->size(); first += size) {
    std::vector<std::pair<Slot, float>> pairs;
    for (std::size_t i = first; i < first + size; ++i) pairs.emplace_back((*slots)[i], (*weights)[i]);
    std::sort(pairs.begin(), pairs.end());
    for (std::size_t i = 0; i < size; ++i) std::tie((*slots)[first + i], (*weights)[first + i]) = pairs[i];
  }
}

void compare_address(const VectorCase& v, const std::string& slot_name, const std::string& weight_name,
                     std::int32_t size, std::vector<std::int32_t> slots, std::vector<float> weights, const char* label,
                     Comparison& result) {
  std::vector<std::int64_t> want_slots = v.integers(slot_name);
  std::vector<float> want_weights = v.floats(weight_name);
  sort_pairs(size, &slots, &weights);
  sort_pairs(size, &want_slots, &want_weights);
  result.floats_against(weight_name, weights, want_weights, Path::kRecurrent, label);
  result.mark(slot_name);
  if (std::vector<std::int64_t>(slots.begin(), slots.end()) != want_slots)
    result.fail(slot_name + " " + label + ": slots differ");
}

void compare_addresses(const VectorCase& v, OpRig& rig, const SdmShape& s, const SdmArgs& a, const char* label,
                       Comparison& result) {
  const std::size_t heads = static_cast<std::size_t>(s.T) * s.H;
  compare_address(v, "wi", "wk", s.writes(), rig.download(a.trace_write_slots, heads * s.writes()),
                  rig.download(a.trace_write_weights, heads * s.writes()), label, result);
  compare_address(v, "ri", "rq", s.reads(), rig.download(a.trace_read_slots, heads * s.reads()),
                  rig.download(a.trace_read_weights, heads * s.reads()), label, result);
}

void compare(const VectorCase& v, OpRig& rig, const SdmShape& s, const SdmCase& c, const SdmTableMemory& table,
             Path path, const char* label, Comparison& result) {
  const std::size_t values = static_cast<std::size_t>(s.T) * s.H * s.V;
  result.floats("y", rig.download(c.out, values), path, label);
  if (!v.flag("slot")) result.floats("r", rig.download(c.residual, values), path, label);
  const SdmTableMemory::Written written = table.written(rig);
  result.integers("final_slots", written.pairs, label);
  result.floats("final_rows", written.rows, path, label);
  compare_addresses(v, rig, s, c.args, label, result);
}

SdmArgs at_token(SdmArgs a, const SdmShape& s, std::int64_t t) {
  const auto move = [t](ConstRows& view) { view.data = static_cast<const float*>(view.data) + t * view.stride; };
  move(a.write_scores), move(a.read_scores), move(a.v);
  a.log_decay += t * s.H;
  a.beta += t * s.H;
  a.out.data = static_cast<float*>(a.out.data) + t * a.out.stride;
  a.residual.data = static_cast<float*>(a.residual.data) + t * a.residual.stride;
  a.trace_write_slots += t * s.H * s.writes();
  a.trace_write_weights += t * s.H * s.writes();
  a.trace_read_slots += t * s.H * s.reads();
  a.trace_read_weights += t * s.H * s.reads();
  return a;
}

}  // namespace

void check_sdm(const VectorCase& v, OpRig& rig, Comparison& result) {
  const SdmShape s{v.dim("v", 0), v.dim("v", 1), v.dim("wa", 2), v.dim("v", 2), v.param("W"), v.param("R")};
  const std::int64_t capacity = s.H * std::min<std::int64_t>(s.slots(), static_cast<std::int64_t>(s.T) * s.writes());
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    const bool decode = phase == Phase::kDecode;
    const SdmTableMemory table(rig, s.H, s.slots(), s.V, capacity, kRowsPerSlab);
    SdmCase c = prepare(rig, s, joined(v, "wa", "wb", s.n), joined(v, "ra", "rb", s.n), table);
    bind_inputs(v, rig, s, &c.args);
    c.args.phase = phase;
    c.args.batch = rig.batch({decode ? 1 : s.T});
    for (std::int32_t t = 0; t < (decode ? s.T : 1); ++t) {
      if (!result.ran(rig.run(rig.ops().sdm, at_token(c.args, s, t)), decode ? "decode" : "prefill")) return;
    }
    compare(v, rig, s, c, table, decode ? Path::kRecurrent : Path::kChunked, decode ? "decode" : "prefill", result);
    rig.clear();
  }
}

void check_sdm_address(const VectorCase& v, OpRig& rig, Comparison& result) {
  SdmShape s{v.dim("a", 0), v.dim("a", 1), v.dim("a", 2), 1, v.param("W"), v.param("W")};
  for (const std::int32_t value_dim : {1, 64}) {  // the second where the first is not taken
    s.V = value_dim;
    const std::size_t heads = static_cast<std::size_t>(s.T) * s.H;
    const SdmTableMemory table(rig, s.H, s.slots(), s.V, s.H * s.slots(), kRowsPerSlab);
    SdmCase c = prepare(rig, s, joined(v, "a", "b", s.n), joined(v, "a", "b", s.n), table);
    c.args.phase = Phase::kPrefill;
    c.args.batch = rig.batch({s.T});
    c.args.v = rows(rig.upload(std::vector<float>(heads * s.V, 0.0F)), s.H * s.V);
    c.args.log_decay = rig.upload(std::vector<float>(heads, 0.0F));
    c.args.beta = rig.upload(std::vector<float>(heads, 0.0F));
    if (value_dim == 1 && rig.ops().sdm.unsupported_reason(c.args)) continue;
    if (!result.ran(rig.run(rig.ops().sdm, c.args), "addressing")) return;
    for (const bool write : {true, false}) {
      const std::int32_t* slots = write ? c.args.trace_write_slots : c.args.trace_read_slots;
      const float* weights = write ? c.args.trace_write_weights : c.args.trace_read_weights;
      compare_address(v, "idx", "weight", s.writes(), rig.download(slots, heads * s.writes()),
                      rig.download(weights, heads * s.writes()), write ? "write" : "read", result);
    }
    return;
  }
}

}  // namespace cairn::test
