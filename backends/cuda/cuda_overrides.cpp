#include "backends/cuda/cuda_overrides.h"

namespace cairn::gpu {

void override_linear_for_sm80(OpTable& ops);
void override_linear_prefill_for_sm90(OpTable& ops);
void override_linear_decode_for_sm90(OpTable& ops);
void override_linear_quantised_for_sm80(OpTable& ops);
void override_gdn_for_sm90(OpTable& ops);
void override_delta_step_for_sm90(OpTable& ops);
void override_sparse_gdn_for_sm90(OpTable& ops);

void override_for_cuda(OpTable& ops) {
  override_linear_for_sm80(ops);
  override_linear_prefill_for_sm90(ops);
  override_linear_decode_for_sm90(ops);
  override_linear_quantised_for_sm80(ops);
  override_gdn_for_sm90(ops);
  override_delta_step_for_sm90(ops);
  override_sparse_gdn_for_sm90(ops);
}

}  // namespace cairn::gpu
