// Random weights of every storage, for linear, moe and latent_attention.
#pragma once

#include <functional>
#include <memory>

#include "tests/backends/op_case.h"

namespace cairn::test {

/// A weight on the host; bind() puts it on a device.
struct HostWeight {
  std::int32_t out_dim = 0, in_dim = 0;
  DType dtype = DType::kF32;
  std::int32_t group_size = 0;
  std::vector<std::uint8_t> data;
  std::vector<float> scales, bias;
};

HostWeight random_weight(Random& random, std::int32_t out_dim, std::int32_t in_dim, DType dtype, bool has_bias = false,
                         std::int32_t group_size = 32);

/// Uploaded, not packed: the caller packs the LinearWeight at its final address.
LinearWeight bind_weight(OpRig& rig, const HostWeight& weight);

/// One call of a schedule, with the weight on the device, into `out`; false: something was wrong.
using WeightCall = std::function<bool(OpRig&, CallIo&, const LinearWeight&, Phase, TokenOutput& out, Outcome*)>;
/// An operator on tokens and one weight; `out` has so many columns.
OpCase weight_case(const char* name, const Lengths& lengths, std::shared_ptr<const HostWeight> weight,
                   std::int32_t out_dim, WeightCall run);

}  // namespace cairn::test
