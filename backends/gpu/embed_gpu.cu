// embed, gather_rows: a block copies one row.  Traffic: the rows, once in and once out.
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

__global__ void embed_kernel(EmbedArgs args) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const std::int64_t t = blockIdx.x, row = args.tokens[t];
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += static_cast<int>(blockDim.x)) {
    store(args.out, args.dtype, t, i, load(args.table, args.table_dtype, row * args.dim + i));
  }
}

__global__ void gather_rows_kernel(GatherRowsArgs args) {
  let_next_kernel_start();
  wait_for_previous_kernel();
  const std::int64_t r = blockIdx.x, row = args.row_index[r];
  for (int i = static_cast<int>(threadIdx.x); i < args.dim; i += static_cast<int>(blockDim.x)) {
    store(args.out, args.dtype, r, i, load(args.in, args.dtype, row, i));
  }
}

const char* embed_reason(const EmbedArgs& args) {
  return first_reason({require_activations("embed", args.dtype), require_floating("embed", args.table_dtype)});
}
void run_embed(BackendQueue* queue, const EmbedArgs& args, void*) {
  Launcher(queue, "embed").early(embed_kernel, dim3(static_cast<unsigned>(args.token_count)), dim3(kElementThreads), 0, args);
}
void run_gather_rows(BackendQueue* queue, const GatherRowsArgs& args, void*) {
  Launcher(queue, "gather_rows").early(gather_rows_kernel, dim3(static_cast<unsigned>(args.row_count)), dim3(kElementThreads), 0, args);
}

}  // namespace

void add_embed(OpTable& ops) {
  ops.embed = {embed_reason, no_scratch<EmbedArgs>, run_embed};
  ops.gather_rows = {[](const GatherRowsArgs& args) { return require_activations("gather_rows", args.dtype); }, no_scratch<GatherRowsArgs>, run_gather_rows};
}

}  // namespace cairn::gpu
