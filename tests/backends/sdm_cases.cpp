// sdm: shared and slot residual, key-weighted decay, M0 of every storage or none, fresh and shared rows, rows in bf16.
#include <algorithm>
#include <memory>

#include "tests/backends/op_cases.h"
#include "tests/support/sdm_table_memory.h"
#include "tests/support/tolerance.h"

namespace cairn::test {
namespace {

constexpr std::int32_t kRowsPerSlab = 16;

struct SdmSpec {
  const char* name;
  std::int32_t H, n, V, W, R;
  Lengths lengths;
  bool slot_residual = false, key_weighted = false;
  bool has_initial = true;
  DType initial_dtype = DType::kF32;
  float write_scale = 1, read_scale = 1;
  bool harsh = false;
  bool forks = false;  ///< the tables are forked after every call: decode copies every row that it writes
  DType row_dtype = DType::kF32;
  std::int64_t slots() const { return static_cast<std::int64_t>(n) * n; }
  std::int32_t writes() const { return static_cast<std::int32_t>(std::min<std::int64_t>(W, slots())); }
  std::int32_t reads() const { return static_cast<std::int32_t>(std::min<std::int64_t>(R, slots())); }
};

struct SdmInputs {
  SdmSpec spec;
  TokenField write_scores, read_scores, v, decay, beta;
  std::vector<std::uint16_t> initial16;
  std::vector<float> initial32;
};

std::uint16_t bf16_bits(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);
}

/// Exponents 2^-5 .. 2^0, and now and then one below the normal range.
std::uint16_t f16_bits(Random& random) {
  const std::uint64_t bits = random.bits();
  const std::uint64_t exponent = bits % 16 == 0 ? 0 : 10 + bits / 16 % 6;
  return static_cast<std::uint16_t>((bits >> 20 & 0x83FF) | exponent << 10);
}

std::shared_ptr<SdmInputs> make_inputs(const SdmSpec& s) {
  Random random(static_cast<std::uint64_t>(s.n * 100 + s.V));
  auto in = std::make_shared<SdmInputs>();
  in->spec = s;
  in->write_scores = normal_field(random, s.lengths, s.H * 2 * s.n);
  in->read_scores = normal_field(random, s.lengths, s.H * 2 * s.n);
  in->v = normal_field(random, s.lengths, s.H * s.V);
  in->decay = decay_field(random, s.lengths, s.H, s.harsh);
  in->beta = uniform_field(random, s.lengths, s.H, 0, 1);
  in->initial32 = random.normals(s.H * s.slots() * s.V, 0.5);
  for (const float value : in->initial32)
    in->initial16.push_back(s.initial_dtype == DType::kBF16 ? bf16_bits(value) : f16_bits(random));
  return in;
}

void bind_initial(OpRig& rig, const SdmInputs& in, SdmArgs* a) {
  a->initial_dtype = in.spec.initial_dtype;
  if (!in.spec.has_initial) return;
  if (in.spec.initial_dtype == DType::kF32)
    a->initial = rig.upload(in.initial32);
  else
    a->initial = rig.upload(in.initial16);
}

/// Largest weight of each address first: the order inside an address is the backend's own.
void sort_addresses(TokenOutput* weights, std::int32_t size) {
  for (std::vector<float>& values : weights->field.of_sequence) {
    for (auto first = values.begin(); size && first != values.end(); first += size)
      std::sort(first, first + size, std::greater<float>());
  }
}

Outcome read(OpRig& rig, const SdmInputs& in, const Schedule& schedule, Phase phase) {
  const SdmSpec& s = in.spec;
  Outcome outcome;
  TokenOutput out("out", s.lengths, s.H * s.V), residual("residual", s.lengths, s.H * s.V);
  TokenOutput write_weights("write weights", s.lengths, s.H * s.writes()),
      read_weights("read weights", s.lengths, s.H * s.reads());
  std::vector<SdmTableMemory> memory;
  for (std::size_t b = 0; b < s.lengths.size(); ++b) {
    const std::int64_t writes = static_cast<std::int64_t>(s.lengths[b]) * s.H * s.writes();
    memory.emplace_back(
        rig, s.H, s.slots(), s.V,
        s.forks ? writes + s.lengths[b] * kRowsPerSlab : std::min<std::int64_t>(s.H * s.slots(), writes), kRowsPerSlab,
        s.row_dtype);
  }
  for (const Call& call : schedule) {
    std::vector<SdmTable> tables;
    for (std::size_t b = 0; b < memory.size(); ++b) {
      if (s.forks && &call != &schedule.front()) memory[b] = memory[b].fork(rig);
      tables.push_back(memory[b].table());
    }
    CallIo io(rig, call);
    SdmArgs a{};
    a.dtype = rig.dtype();
    a.phase = phase;
    a.batch = io.batch();
    a.slot_residual = s.slot_residual, a.key_weighted_decay = s.key_weighted;
    a.head_count = s.H, a.side = s.n, a.value_dim = s.V, a.write_count = s.W, a.read_count = s.R;
    a.write_scale = s.write_scale, a.read_scale = s.read_scale;
    a.write_scores = io.in(in.write_scores), a.read_scores = io.in(in.read_scores), a.v = io.in(in.v);
    a.log_decay = io.packed(in.decay);
    a.beta = io.packed(in.beta);
    bind_initial(rig, in, &a);
    a.rows_per_slab = kRowsPerSlab;
    a.row_dtype = s.row_dtype;
    a.tables = rig.upload(io.pick(tables));
    a.out = io.out(out);
    if (!s.slot_residual) a.residual = io.out(residual);
    a.trace_write_weights = io.packed_out(write_weights);
    a.trace_read_weights = io.packed_out(read_weights);
    if (!run_call(rig, io, rig.ops().sdm, a, &outcome)) return outcome;
  }
  sort_addresses(&write_weights, s.writes());
  sort_addresses(&read_weights, s.reads());
  add_output(&outcome, write_weights);
  add_output(&outcome, read_weights);
  add_output(&outcome, out);
  if (!s.slot_residual) add_output(&outcome, residual);
  for (std::size_t b = 0; b < memory.size(); ++b) {
    const SdmTableMemory::Written written = memory[b].written(rig);
    outcome.outputs.push_back({"rows of " + std::to_string(b), written.rows});
    outcome.outputs.push_back({"slots of " + std::to_string(b), {written.pairs.begin(), written.pairs.end()}});
  }
  return outcome;
}

}  // namespace

std::vector<OpCase> sdm_cases() {
  std::vector<SdmSpec> specs = {
      {"ragged", 2, 12, 24, 8, 8, {1, 63, 0, 65, 130}},
      {"T 500", 1, 8, 16, 6, 10, {500}},
      {"every slot", 1, 3, 5, 64, 64, {70, 2}},
      {"more than every slot", 1, 3, 5, 200, 4000, {5, 2}},
      {"no M0", 2, 16, 16, 16, 16, {100, 64}, false, false, false},
      {"M0 in bf16", 1, 8, 12, 8, 8, {70}, false, false, true, DType::kBF16},
      {"M0 in f16", 1, 8, 12, 8, 8, {70}, false, false, true, DType::kF16},
      {"slot residual", 2, 8, 8, 8, 6, {70, 0, 3}, true},
      {"key-weighted decay", 1, 8, 8, 8, 8, {130}, false, true},
      {"scales of the softmaxes", 1, 8, 8, 8, 8, {65}, false, false, true, DType::kF32, 0.5F, 2},
      {"slot residual, key-weighted", 1, 8, 8, 8, 8, {65}, true, true},
      {"W 64, R 64, N 1024", 1, 32, 64, 64, 64, {130}},
      {"gates to -1e4", 1, 8, 8, 8, 8, {150}, false, false, true, DType::kF32, 1, 1, true},
      {"nothing to read", 1, 4, 4, 4, 4, {0, 0}},
      {"lengths around the chunk, neighbours share slots", 2, 4, 20, 8, 12, {0, 1, 63, 65, 200}},
      {"V 13", 2, 6, 13, 5, 7, {3, 70}},
      {"V 13, M0 in bf16, R 40", 1, 7, 13, 20, 40, {5, 66}, false, false, true, DType::kBF16},
      {"V 18, no M0", 3, 6, 18, 9, 4, {66, 0, 2}, false, false, false},
      {"W 128, R 100", 1, 40, 8, 128, 100, {5, 2}},
      {"W 90, side 300", 2, 300, 4, 90, 20, {3, 1}},
      {"W 20, side 300", 1, 300, 4, 20, 3, {3}},
      {"forked after every call", 2, 5, 8, 6, 6, {30, 0, 9}, false, false, true, DType::kBF16, 1, 1, false, true},
  };
  // Pairs of sequence and head enough for blocks of many tiles, the last of them short.
  const Lengths many_sequences = {1, 1, 2, 1, 0, 1, 1, 1, 1};
  specs.push_back({"many tiles", 8, 7, 484, 40, 36, many_sequences});
  specs.push_back({"many tiles, M0 in bf16", 8, 7, 488, 64, 20, many_sequences, false, false, true, DType::kBF16});
  // Rows of bf16: the columns of a lane follow from V and the types of rows and M0.
  const auto half_rows = [&](SdmSpec spec) {
    spec.row_dtype = DType::kBF16;
    specs.push_back(spec);
  };
  half_rows({"bf16 rows, ragged", 2, 12, 24, 8, 8, {1, 63, 0, 65, 64}, false, false, true, DType::kBF16});
  half_rows({"bf16 rows, M0 in f32", 2, 8, 16, 8, 6, {65, 0, 2}});
  half_rows({"bf16 rows, M0 in f16", 1, 8, 16, 8, 8, {66}, false, false, true, DType::kF16});
  half_rows({"bf16 rows, no M0, V 12", 2, 16, 12, 16, 16, {64, 1}, false, false, false});
  half_rows({"bf16 rows, V 13", 2, 6, 13, 5, 7, {3, 63}, false, false, true, DType::kBF16});
  half_rows({"bf16 rows, slot residual", 2, 8, 8, 8, 6, {65, 0, 3}, true, false, true, DType::kBF16});
  half_rows({"bf16 rows, key-weighted decay", 1, 8, 8, 8, 8, {64}, false, true, true, DType::kBF16});
  half_rows({"bf16 rows, W 64, R 40", 1, 32, 72, 64, 40, {64, 1}, false, false, true, DType::kBF16});
  half_rows({"bf16 rows, W 100, R 128", 1, 40, 40, 100, 128, {5, 2}, false, false, true, DType::kBF16});
  half_rows({"bf16 rows, V 296, few write", 2, 9, 296, 3, 30, {4, 1}, false, false, true, DType::kBF16});
  half_rows({"bf16 rows, many tiles", 8, 7, 968, 40, 36, many_sequences, false, false, true, DType::kBF16});
  half_rows({"bf16 rows, many tiles of few rows", 8, 5, 968, 9, 20, many_sequences, true, false, true, DType::kBF16});
  half_rows({"bf16 rows, every slot", 1, 3, 8, 64, 64, {63, 2}, false, false, true, DType::kBF16});
  half_rows({"bf16 rows, gates to -1e4", 1, 8, 8, 8, 8, {150}, false, false, true, DType::kBF16, 1, 1, true});
  half_rows({"bf16 rows, forked after every call",
             2,
             5,
             8,
             6,
             6,
             {30, 0, 9},
             false,
             false,
             true,
             DType::kF32,
             1,
             1,
             false,
             true});
  std::vector<OpCase> result;
  for (const SdmSpec& spec : specs) {
    const auto inputs = make_inputs(spec);
    OpCase c{spec.name, spec.lengths, [inputs](OpRig& rig, const Schedule& schedule, Phase phase) {
               return read(rig, *inputs, schedule, phase);
             }};
    if (spec.harsh) c.tolerance = kHarshTolerance;
    if (spec.row_dtype == DType::kBF16) c.tolerance = kBf16RowTolerance;
    result.push_back(c);
  }
  return result;
}

}  // namespace cairn::test
