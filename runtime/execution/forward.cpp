// The network, from tokens to logits, in the order it happens.
#include "runtime/execution/plan.h"

namespace cairn {

void Plan::forward(Step& step, const std::int32_t* tokens, const std::int32_t* logits_row, std::int32_t logits_rows,
                   float* logits) const {
  const Step::Scope scope(step);
  const std::int32_t dim = description_->model_dim;
  const Rows h = step.rows(dim);
  step.bus = {};
  if (bus_width_ > 0) {
    for (Rows& buffer : step.bus.buffers) buffer = step.rows(bus_width_);
  }
  EmbedArgs embed{step.dtype(), step.token_count(), dim, tokens, embedding_.data, embedding_.dtype, h};
  step.run(step.ops().embed, embed, "embed");
  for (const std::unique_ptr<Block>& block : blocks_) block->run(step, h);
  if (logits_rows == 0) return;

  const Rows last = step.rows_of(logits_rows, dim);
  GatherRowsArgs gather{step.dtype(), logits_rows, dim, logits_row, h, last};
  step.run(step.ops().gather_rows, gather, "gather_rows");
  RmsNormArgs norm{step.dtype(), logits_rows, 1, dim, description_->norm_eps, final_norm_, last, last};
  step.run(step.ops().rms_norm, norm, "rms_norm");
  LinearArgs head{};
  head.dtype = step.dtype();
  head.out_dtype = DType::kF32;
  head.phase = Phase::kDecode;  // the same kernel in both phases: a row's logits do not depend on how it was read
  head.token_count = logits_rows;
  head.weight = head_;
  head.in = last;
  head.out = {logits, description_->vocab_size};
  step.run(step.ops().linear, head, "linear");
}

}  // namespace cairn
