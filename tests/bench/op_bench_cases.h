// One function for each argument struct of ops.inc: fills in arguments of the shape, and says what they cost at least.
#pragma once

#include "tests/bench/op_bench.h"

namespace cairn::bench {

Case make_args(Rig& rig, Shape& shape, EmbedArgs& args);
Case make_args(Rig& rig, Shape& shape, GatherRowsArgs& args);
Case make_args(Rig& rig, Shape& shape, LinearArgs& args);
Case make_args(Rig& rig, Shape& shape, DeltaInputsArgs& args);
Case make_args(Rig& rig, Shape& shape, DeltaStepArgs& args);
Case make_args(Rig& rig, Shape& shape, RmsNormArgs& args);
Case make_args(Rig& rig, Shape& shape, GatedRmsNormArgs& args);
Case make_args(Rig& rig, Shape& shape, ShortConvArgs& args);
Case make_args(Rig& rig, Shape& shape, FeatureMapArgs& args);
Case make_args(Rig& rig, Shape& shape, DecayGateArgs& args);
Case make_args(Rig& rig, Shape& shape, AddArgs& args);
Case make_args(Rig& rig, Shape& shape, GateArgs& args);
Case make_args(Rig& rig, Shape& shape, SwigluArgs& args);
Case make_args(Rig& rig, Shape& shape, CrossLayerAddArgs& args);
Case make_args(Rig& rig, Shape& shape, MoeArgs& args);
Case make_args(Rig& rig, Shape& shape, RopeArgs& args);
Case make_args(Rig& rig, Shape& shape, SoftmaxAttentionArgs& args);
Case make_args(Rig& rig, Shape& shape, LatentAttentionArgs& args);
Case make_args(Rig& rig, Shape& shape, DeltaRuleArgs& args);
Case make_args(Rig& rig, Shape& shape, SparseGdnArgs& args);
Case make_args(Rig& rig, Shape& shape, SseArgs& args);
Case make_args(Rig& rig, Shape& shape, SdmArgs& args);

}  // namespace cairn::bench
