// embed, gather_rows, add, gate, swiglu, cross_layer_add, feature_map, decay_gate: rows of every count, in and out of
// place.
#include <memory>

#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

const Lengths kLengths = {1, 63, 0, 65};

/// A case whose operator treats every row alone: any split and any batch give the same bits.
OpCase row_case(std::string name, std::function<Outcome(OpRig&, const Schedule&, Phase)> read,
                Lengths lengths = kLengths) {
  OpCase c{std::move(name), std::move(lengths), std::move(read)};
  c.split_multiple = 1;
  c.has_decode = false;
  return c;
}

/// Runs a row operator: `run` binds one call's arguments and runs it.
Outcome read_rows(OpRig& rig, const Schedule& schedule, TokenOutput out,
                  const std::function<bool(CallIo&, TokenOutput&, Outcome*)>& run) {
  (void)rig;
  Outcome outcome;
  for (const Call& call : schedule) {
    CallIo io(rig, call);
    if (!run(io, out, &outcome)) return outcome;
  }
  add_output(&outcome, out);
  return outcome;
}

/// Row numbers of [0, limit) per token.
std::vector<std::int32_t> row_numbers(CallIo& io, const Call& call, std::int32_t limit) {
  std::vector<std::int32_t> numbers;
  for (const Piece& piece : call) {
    for (std::int32_t t = 0; t < piece.count; ++t)
      numbers.push_back((piece.sequence * 31 + (piece.first + t) * 7) % limit);
  }
  (void)io;
  return numbers;
}

OpCase embed_case(const char* name, DType table_dtype, std::int32_t dim) {
  constexpr std::int32_t kVocab = 37;
  Random random(5);
  auto table32 = std::make_shared<std::vector<float>>(random.normals(kVocab * dim));
  auto table16 = std::make_shared<std::vector<std::uint16_t>>();
  for (std::int32_t i = 0; i < kVocab * dim; ++i)
    table16->push_back(static_cast<std::uint16_t>((random.bits() & 0x83FF) | (10 + random.bits() % 6) << 10));
  return row_case(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    Outcome outcome;
    TokenOutput out("out", kLengths, dim);
    for (const Call& call : schedule) {
      CallIo io(rig, call);
      const void* table =
          table_dtype == DType::kF32 ? static_cast<const void*>(rig.upload(*table32)) : rig.upload(*table16);
      const EmbedArgs args{rig.dtype(), io.token_count(), dim,        rig.upload(row_numbers(io, call, kVocab)),
                           table,       table_dtype,      io.out(out)};
      if (!run_call(rig, io, rig.ops().embed, args, &outcome)) return outcome;
    }
    add_output(&outcome, out);
    return outcome;
  });
}

OpCase add_case(const char* name, std::int32_t dim, bool has_first, bool has_scale, bool in_place) {
  Random random(6);
  auto a = std::make_shared<TokenField>(normal_field(random, kLengths, dim)),
       b = std::make_shared<TokenField>(normal_field(random, kLengths, dim));
  auto scale = std::make_shared<TokenField>(normal_field(random, kLengths, 1));
  return row_case(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    return read_rows(rig, schedule, {"out", kLengths, dim}, [&](CallIo& io, TokenOutput& out, Outcome* outcome) {
      AddArgs args{rig.dtype(), io.token_count(), dim, nullptr, {}, io.in(*b), {}};
      if (has_scale) args.scale = io.packed(*scale);
      args.out = in_place ? io.in_place(*a, out) : io.out(out);
      if (has_first) args.a = in_place ? ConstRows(args.out) : io.in(*a);
      return run_call(rig, io, rig.ops().add, args, outcome);
    });
  });
}

OpCase gate_case(const char* name, GateKind kind, std::int32_t dim, bool in_place) {
  Random random(7);
  auto x = std::make_shared<TokenField>(normal_field(random, kLengths, dim)),
       z = std::make_shared<TokenField>(normal_field(random, kLengths, dim, 4));
  return row_case(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    return read_rows(rig, schedule, {"out", kLengths, dim}, [&](CallIo& io, TokenOutput& out, Outcome* outcome) {
      GateArgs args{rig.dtype(), kind, io.token_count(), dim, {}, io.in(*z), {}};
      args.out = in_place ? io.in_place(*x, out) : io.out(out);
      args.x = in_place ? ConstRows(args.out) : io.in(*x);
      return run_call(rig, io, rig.ops().gate, args, outcome);
    });
  });
}

OpCase swiglu_case(const char* name, std::int32_t dim, bool in_place) {
  Random random(8);
  auto gate = std::make_shared<TokenField>(normal_field(random, kLengths, dim, 5)),
       up = std::make_shared<TokenField>(normal_field(random, kLengths, dim));
  return row_case(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    return read_rows(rig, schedule, {"out", kLengths, dim}, [&](CallIo& io, TokenOutput& out, Outcome* outcome) {
      SwigluArgs args{rig.dtype(), io.token_count(), dim, {}, io.in(*up), {}};
      args.out = in_place ? io.in_place(*gate, out) : io.out(out);
      args.gate = in_place ? ConstRows(args.out) : io.in(*gate);
      return run_call(rig, io, rig.ops().swiglu, args, outcome);
    });
  });
}

OpCase cross_layer_case(const char* name, std::int32_t head_stride, std::int32_t dim_stride, bool in_place) {
  constexpr std::int32_t kHeads = 3, kDim = 7, kWidth = kHeads * kDim;
  Random random(9);
  auto v = std::make_shared<TokenField>(normal_field(random, kLengths, kWidth)),
       side = std::make_shared<TokenField>(normal_field(random, kLengths, kWidth));
  auto gamma = std::make_shared<std::vector<float>>(random.normals(kWidth));
  return row_case(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    return read_rows(rig, schedule, {"out", kLengths, kWidth}, [&](CallIo& io, TokenOutput& out, Outcome* outcome) {
      CrossLayerAddArgs args{rig.dtype(), io.token_count(), kHeads, kDim,         rig.upload(*gamma),
                             head_stride, dim_stride,       {},     io.in(*side), {}};
      args.out = in_place ? io.in_place(*v, out) : io.out(out);
      args.v = in_place ? ConstRows(args.out) : io.in(*v);
      return run_call(rig, io, rig.ops().cross_layer_add, args, outcome);
    });
  });
}

OpCase map_case(const char* name, FeatureMap map, std::int32_t heads, std::int32_t dim, bool in_place = false,
                float scale = 1, float out_scale = 1) {
  Random random(10);
  // x / sum x needs a sum away from 0.
  auto x =
      std::make_shared<TokenField>(map == FeatureMap::kSumNorm ? uniform_field(random, kLengths, heads * dim, 0.1, 2)
                                                               : normal_field(random, kLengths, heads * dim, 3));
  return row_case(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    return read_rows(
        rig, schedule, {"out", kLengths, heads * dim}, [&](CallIo& io, TokenOutput& out, Outcome* outcome) {
          FeatureMapArgs args{rig.dtype(), rig.dtype(), map, io.token_count(), heads, dim, scale, out_scale, {}, {}};
          args.out = in_place ? io.in_place(*x, out) : io.out(out);
          args.in = in_place ? ConstRows(args.out) : io.in(*x);
          return run_call(rig, io, rig.ops().feature_map, args, outcome);
        });
  });
}

OpCase decay_case(const char* name, DecayKind kind, float parameter, std::int32_t heads, std::int32_t rows,
                  bool has_bias) {
  Random random(11);
  const std::int32_t width = heads * rows;
  auto x = std::make_shared<TokenField>(normal_field(random, kLengths, width, 6));
  auto a_log = std::make_shared<std::vector<float>>(random.uniforms(heads, -2, 2.7)),
       bias = std::make_shared<std::vector<float>>(random.normals(width));
  return row_case(name, [=](OpRig& rig, const Schedule& schedule, Phase) {
    return read_rows(rig, schedule, {"out", kLengths, width}, [&](CallIo& io, TokenOutput& out, Outcome* outcome) {
      const DecayGateArgs args{rig.dtype(),
                               kind,
                               parameter,
                               io.token_count(),
                               heads,
                               rows,
                               rig.upload(*a_log),
                               has_bias ? rig.upload(*bias) : nullptr,
                               io.in(*x),
                               io.packed_out(out)};
      return run_call(rig, io, rig.ops().decay_gate, args, outcome);
    });
  });
}

}  // namespace

std::vector<OpCase> embed_cases() {
  return {embed_case("f32", DType::kF32, 24), embed_case("bf16, odd", DType::kBF16, 7),
          embed_case("f16", DType::kF16, 33)};
}

std::vector<OpCase> gather_rows_cases() {
  return {row_case("rows out of order", [](OpRig& rig, const Schedule& schedule, Phase) {
    constexpr std::int32_t kDim = 19, kRows = 11;
    Outcome outcome;
    TokenOutput out("out", kLengths, kDim);
    Random random(4);
    const std::vector<float> source = random.normals(kRows * kDim);
    for (const Call& call : schedule) {
      CallIo io(rig, call);
      const GatherRowsArgs args{rig.dtype(),
                                io.token_count(),
                                kDim,
                                rig.upload(row_numbers(io, call, kRows)),
                                {rig.upload_activations(source), kDim},
                                io.out(out)};
      if (!run_call(rig, io, rig.ops().gather_rows, args, &outcome)) return outcome;
    }
    add_output(&outcome, out);
    return outcome;
  })};
}

std::vector<OpCase> add_cases() {
  return {add_case("two operands", 33, true, false, false), add_case("in place", 48, true, false, true),
          add_case("one operand", 7, false, false, false), add_case("scaled by token", 40, true, true, false),
          add_case("one operand, scaled", 5, false, true, false)};
}

std::vector<OpCase> gate_cases() {
  return {gate_case("silu", GateKind::kSilu, 33, false), gate_case("sigmoid, in place", GateKind::kSigmoid, 48, true),
          gate_case("none", GateKind::kNone, 7, false)};
}

std::vector<OpCase> swiglu_cases() { return {swiglu_case("odd", 37, false), swiglu_case("in place", 64, true)}; }

std::vector<OpCase> cross_layer_add_cases() {
  return {cross_layer_case("scalar", 0, 0, false), cross_layer_case("per head", 1, 0, true),
          cross_layer_case("per channel", 7, 1, false)};
}

std::vector<OpCase> feature_map_cases() {
  return {map_case("silu", FeatureMap::kSilu, 1, 37),
          map_case("relu", FeatureMap::kRelu, 2, 9),
          map_case("elu plus one", FeatureMap::kEluPlusOne, 2, 16),
          map_case("sigmoid, doubled", FeatureMap::kSigmoid, 1, 5, false, 1, 2),
          map_case("softmax", FeatureMap::kSoftmax, 3, 65),
          map_case("softmax, scaled, in place", FeatureMap::kSoftmax, 2, 16, true, 3),
          map_case("l2, in place", FeatureMap::kL2, 4, 32, true),
          map_case("l2 of one", FeatureMap::kL2, 3, 1),
          map_case("sum", FeatureMap::kSumNorm, 2, 17)};
}

std::vector<OpCase> decay_gate_cases() {
  return {decay_case("softplus per head", DecayKind::kSoftplus, 0, 5, 1, true),
          decay_case("softplus per row", DecayKind::kSoftplus, 0, 3, 16, true),
          decay_case("softplus, no bias", DecayKind::kSoftplus, 0, 2, 7, false),
          decay_case("log sigmoid", DecayKind::kLogSigmoid, 16, 2, 24, true),
          decay_case("lower bound", DecayKind::kLowerBound, -5, 3, 8, true)};
}

}  // namespace cairn::test
