// SwiGLU: down(silu(gate x) * up x).
#include "runtime/layers/layer.h"

namespace cairn {
namespace {

class SwigluMlp : public Mlp {
 public:
  Status bind(const LayerBuild& build) {
    CAIRN_TRY_ASSIGN(group_, build.weights.linear_group({build.name("mlp.gate"), build.name("mlp.up")}));
    CAIRN_TRY_ASSIGN(down_, build.weights.linear(build.name("mlp.down")));
    return {};
  }

  void run(Step& step, ConstRows x, const MixerOutput& output) override {
    const Step::Scope scope(step);
    const Rows both = step.rows(group_.width);
    run_swiglu_group(step, group_, x, both);
    run_linear(step, *down_, both, output.out, output.accumulate);
  }

 private:
  LinearGroup group_;
  const LinearWeight* down_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Mlp>> make_swiglu_mlp(const LayerBuild& build) {
  auto mlp = std::make_unique<SwigluMlp>();
  CAIRN_TRY(mlp->bind(build));
  return std::unique_ptr<Mlp>(std::move(mlp));
}

}  // namespace cairn
