// linear: every storage of weights, with and without bias and accumulation; a row's bits depend on the row alone.
#include "tests/backends/linear_cases.h"

#include <memory>

#include "tests/backends/op_cases.h"

namespace cairn::test {
namespace {

struct LinearSpec {
  const char* name;
  std::int32_t out_dim, in_dim;
  DType dtype;
  bool has_bias = false, accumulate = false;
  std::int32_t group_size = 32;
  Lengths lengths = {1, 63, 0, 65};
  bool f32_out = false;  ///< whatever the activations are
};

OpCase linear_case(const LinearSpec& spec) {
  Random random(30);
  auto weight = std::make_shared<HostWeight>(
      random_weight(random, spec.out_dim, spec.in_dim, spec.dtype, spec.has_bias, spec.group_size));
  auto x = std::make_shared<TokenField>(normal_field(random, spec.lengths, spec.in_dim)),
       y = std::make_shared<TokenField>(normal_field(random, spec.lengths, spec.out_dim));
  return weight_case(spec.name, spec.lengths, weight, spec.out_dim,
                     [=](OpRig& rig, CallIo& io, const LinearWeight& w, Phase phase, TokenOutput& out,
                         Outcome* outcome) {
                       LinearArgs args{rig.dtype(),
                                       spec.f32_out ? DType::kF32 : rig.dtype(),
                                       phase,
                                       spec.accumulate,
                                       io.token_count(),
                                       &w,
                                       io.in(*x),
                                       {}};
                       if (spec.f32_out)
                         args.out = {io.packed_out(out), spec.out_dim};
                       else
                         args.out = spec.accumulate ? io.in_place(*y, out) : io.out(out);
                       return run_call(rig, io, rig.ops().linear, args, outcome);
                     });
}

std::uint16_t sixteen_bits(DType dtype, Random& random) {
  if (dtype == DType::kBF16) {
    const auto value = static_cast<float>(random.normal() * 0.2);
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<std::uint16_t>(bits >> 16);
  }
  const std::uint64_t bits = random.bits();
  const std::uint64_t exponent = bits % 16 == 0 ? 0 : 8 + bits / 16 % 6;  // now and then below the normal range
  return static_cast<std::uint16_t>((bits >> 20 & 0x83FF) | exponent << 10);
}

}  // namespace

HostWeight random_weight(Random& random, std::int32_t out_dim, std::int32_t in_dim, DType dtype, bool has_bias,
                         std::int32_t group_size) {
  HostWeight w{out_dim, in_dim, dtype, dtype == DType::kI4 ? group_size : 0, {}, {}, {}};
  const std::size_t count = static_cast<std::size_t>(out_dim) * in_dim;
  w.data.resize(count * dtype_bits(dtype) / 8);
  if (dtype == DType::kF32) {
    const std::vector<float> values = random.normals(count, 0.2);
    std::memcpy(w.data.data(), values.data(), w.data.size());
  } else if (dtype == DType::kI8 || dtype == DType::kI4) {
    for (std::uint8_t& byte : w.data) byte = static_cast<std::uint8_t>(random.bits());
    w.scales = random.uniforms(dtype == DType::kI8 ? out_dim : count / group_size, 0.001, 0.01);
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint16_t bits = sixteen_bits(dtype, random);
      std::memcpy(&w.data[2 * i], &bits, 2);
    }
  }
  if (has_bias) w.bias = random.normals(out_dim);
  return w;
}

LinearWeight bind_weight(OpRig& rig, const HostWeight& weight) {
  LinearWeight w;
  w.data = rig.upload(weight.data);
  w.dtype = weight.dtype;
  w.out_dim = weight.out_dim;
  w.in_dim = weight.in_dim;
  w.group_size = weight.group_size;
  if (!weight.scales.empty()) w.scales = rig.upload(weight.scales);
  if (!weight.bias.empty()) w.bias = rig.upload(weight.bias);
  return w;
}

OpCase weight_case(const char* name, const Lengths& lengths, std::shared_ptr<const HostWeight> weight,
                   std::int32_t out_dim, WeightCall run) {
  OpCase c{name, lengths, [=](OpRig& rig, const Schedule& schedule, Phase phase) {
             Outcome outcome;
             TokenOutput out("out", lengths, out_dim);
             LinearWeight w = bind_weight(rig, *weight);
             rig.pack(&w);
             for (const Call& call : schedule) {
               CallIo io(rig, call);
               if (!run(rig, io, w, phase, out, &outcome)) break;
             }
             if (outcome.trouble.empty()) add_output(&outcome, out);
             rig.clear();  // w is unpacked while it lives
             return outcome;
           }};
  c.split_multiple = 1;
  return c;
}

std::vector<OpCase> linear_cases() {
  std::vector<OpCase> cases;
  for (const LinearSpec& spec :
       std::vector<LinearSpec>{{"f32, bias", 48, 33, DType::kF32, true},
                               {"f32, one by one", 1, 1, DType::kF32},
                               {"bf16", 96, 64, DType::kBF16},
                               {"bf16, odd, accumulate", 37, 41, DType::kBF16, true, true},
                               {"f16", 40, 72, DType::kF16, true},
                               {"i8", 65, 96, DType::kI8, true},
                               {"i8, odd, accumulate", 7, 45, DType::kI8, false, true},
                               {"i4, groups of 32", 33, 96, DType::kI4, true},
                               {"i4, groups of 64, accumulate", 48, 128, DType::kI4, false, true, 64},
                               {"bf16, T 500", 130, 192, DType::kBF16, false, false, 32, {500}},
                               {"f32, wide", 300, 520, DType::kF32, false, false, 32, {3, 70}},
                               {"bf16, output in f32", 24, 64, DType::kBF16, false, false, 32, {1, 70}, true},
                               {"bf16, inputs past the tiles, bias", 200, 328, DType::kBF16, true, false, 32, {1, 33, 260}},
                               {"bf16, out_dim odd, accumulate", 133, 136, DType::kBF16, true, true, 32, {65, 100}},
                               // Rings of stages and the forms of 9, 17, 33 tokens and more: a decode has one of each sequence.
                               {"bf16, several passes, accumulate", 25400, 128, DType::kBF16, true, true, 32, {1, 2}},
                               {"bf16, 9 at once, inputs past a ring", 150, 5696, DType::kBF16, true, false, 32, Lengths(9, 1)},
                               {"bf16, 17 at once, many outputs", 4300, 704, DType::kBF16, true, true, 32, Lengths(17, 1)},
                               {"bf16, 70 at once", 133, 1088, DType::kBF16, false, true, 32, Lengths(70, 1)},
                               {"i8, tiles", 136, 272, DType::kI8, true, false, 32, {1, 9, 130}},
                               {"i8, accumulate", 72, 144, DType::kI8, false, true, 32, {17, 70}},
                               {"i4, groups of 32, tiles", 200, 320, DType::kI4, true, false, 32, {1, 9, 130}},
                               {"i4, groups of 64, output in f32", 68, 192, DType::kI4, false, false, 64, {3, 40}, true}}) {
    cases.push_back(linear_case(spec));
  }
  return cases;
}

}  // namespace cairn::test
