// The kinds of cases, and the function that runs each.
#pragma once

#include "tests/golden/comparison.h"
#include "tests/support/op_rig.h"

namespace cairn::test {

using CheckCase = void (*)(const VectorCase& vectors, OpRig& rig, Comparison& result);

void check_conv(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_pointwise(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_mlp(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_delta_rule(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_sse(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_sdm(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_sdm_address(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_sparse_gdn(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_select(const VectorCase& vectors, OpRig& rig, Comparison& result);

void check_layer(const VectorCase& vectors, OpRig& rig, Comparison& result);
void check_model(const VectorCase& vectors, OpRig& rig, Comparison& result);

struct VectorKind {
  const char* name;
  CheckCase check;
};

inline constexpr VectorKind kVectorKinds[] = {
    {"conv", check_conv},         {"pointwise", check_pointwise},
    {"mlp", check_mlp},           {"deltanet", check_delta_rule},
    {"gdn", check_delta_rule},    {"kda", check_delta_rule},
    {"gdn2", check_delta_rule},   {"sse", check_sse},
    {"sdm", check_sdm},           {"sdm_address", check_sdm_address},
    {"sparse", check_sparse_gdn}, {"select", check_select},
    {"layer", check_layer},       {"model", check_model},
};

}  // namespace cairn::test
