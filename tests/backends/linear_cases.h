// Random weights of every storage, for linear, moe and latent_attention.
#pragma once

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

}  // namespace cairn::test
