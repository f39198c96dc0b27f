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
  const char* params;  ///< those that it may have; blanks between them
};

inline constexpr const char* kDeltaRuleParams = "T HK HV K V init harsh";
inline constexpr VectorKind kVectorKinds[] = {
    {"conv", check_conv, "T C n carry"},
    {"pointwise", check_pointwise, "T H W"},
    {"mlp", check_mlp, "T d ff"},
    {"deltanet", check_delta_rule, kDeltaRuleParams},
    {"gdn", check_delta_rule, kDeltaRuleParams},
    {"kda", check_delta_rule, kDeltaRuleParams},
    {"gdn2", check_delta_rule, kDeltaRuleParams},
    {"sse", check_sse, "T H K V N topk delta init harsh"},
    {"sdm", check_sdm, "T H n V W R slot key_weighted_decay init harsh"},
    {"sdm_address", check_sdm_address, "T H n W"},
    {"sparse", check_sparse_gdn, "T HK HV K V init harsh policy policies full_inverse o_heads want_nH min_margin"},
    {"select", check_select, "C HK HV policy slow ties want_nH"},
    {"layer", check_layer, "T D d split cfg side sparse"},
    {"model", check_model, "T D split cfg sparse_T"},
};

}  // namespace cairn::test
