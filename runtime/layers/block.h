// One block of the stack: h += mixer(norm(h)); h += mlp(norm(h)).
#pragma once

#include <memory>

#include "runtime/layers/layer.h"

namespace cairn {

class Block {
 public:
  static Result<std::unique_ptr<Block>> bind(const LayerBuild& build);

  /// h [T, D], in place.
  void run(Step& step, Rows h);
  /// The mixer alone, on a normalised input: out [T, D] is overwritten. For tests against layer vectors.
  void run_mixer(Step& step, ConstRows x, Rows out) { mixer_->run(step, x, {out, false}); }

 private:
  void run_part(Step& step, Rows h, const float* norm, bool is_mlp);
  std::int32_t dim_ = 0;
  float eps_ = 1e-6F;
  bool norm_after_ = false, routes_after_block_ = false;
  const float *norm1_ = nullptr, *norm2_ = nullptr;
  std::unique_ptr<Mixer> mixer_;
  std::unique_ptr<Mlp> mlp_;
};

}  // namespace cairn
