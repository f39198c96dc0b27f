// linear for bf16 weights and activations, by tensor cores (mma.sync m16n8k16, f32 sums).
//   Prefill  a block owns 128 tokens x 128 outputs and walks over the inputs 64 at a time, three stages of cp.async ahead;
//            8 warps of 64 x 32. No split over the inputs: an output is one chain of products in the order of the inputs.
//   Decode   a block owns 16 outputs and up to 64 tokens; its 8 warps share the inputs (32 at a time, in turn) and add their
//            sums in the order of the warps. Weights are read once, 16 bytes a thread, straight into fragments: the inputs
//            within 32 are permuted alike for weights and tokens, which changes no product.
//   Numerics A row's bits depend on the row, the weight and the phase: padding rows are zeros in other fragments' places.
//   Limits   prefill: 2 T N K operations, 790 TFLOP/s; decode: 2 N K bytes of weights, 4.3 TB/s.
//   Not here other element types, inputs that are no multiple of 8, unaligned rows: the shared operator takes them.
#include <cuda_bf16.h>

#include "backends/cuda/cuda_overrides.h"
#include "backends/gpu/gpu_launch.h"
#include "backends/gpu/kernels/any_element.cuh"

namespace cairn::gpu {
namespace {

constexpr int kTokens = 128, kOutputs = 128, kDepth = 64, kStages = 3, kThreads = 256;
constexpr int kStageElements = (kTokens + kOutputs) * kDepth;
constexpr int kDecodeOutputs = 16, kDecodeWarps = 8, kDecodeTokens = 64;

struct LinearBf16Args {
  const __nv_bfloat16* x;
  const __nv_bfloat16* weight;
  const float* bias;
  void* out;
  std::int64_t x_stride, out_stride;
  int token_count, out_dim, in_dim;
  bool accumulate, out_is_f32;
};

// ---------------------------------------------------------------- instructions

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes, or zeros when !is_inside.
__device__ inline void copy_16_async(std::uint32_t to, const void* from, bool is_inside) {
  const int bytes = is_inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
__device__ void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(kPending)); }

__device__ inline void load_matrices(std::uint32_t (&r)[4], std::uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from));
}

__device__ inline void multiply_add(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                    std::uint32_t b0, std::uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline void finish(const LinearBf16Args& args, int token, int out, float sum) {
  if (token >= args.token_count || out >= args.out_dim) return;
  const DType type = args.out_is_f32 ? DType::kF32 : DType::kBF16;
  const std::int64_t at = token * args.out_stride + out;
  if (args.bias) sum += args.bias[out];
  if (args.accumulate) sum += load(args.out, type, at);
  store(args.out, type, at, sum);
}

// ---------------------------------------------------------------- prefill

/// Byte offset of 16-byte piece `piece` of row `row` in a tile of 128-byte rows; swizzled: 8 rows hit 8 bank groups.
__device__ inline std::uint32_t tile_offset(int row, int piece) {
  return static_cast<std::uint32_t>(row * (kDepth * 2) + ((piece ^ (row & 7)) << 4));
}

/// Queues the copies of inputs [k, k + 64) of this block's tokens and outputs.
__device__ inline void load_stage(const LinearBf16Args& args, std::uint32_t stage, int first_token, int first_out, int k) {
  for (int i = static_cast<int>(threadIdx.x); i < (kTokens + kOutputs) * 8; i += kThreads) {
    const int row = i / 8, piece = i % 8, column = k + piece * 8;
    const bool is_token = row < kTokens;
    const int index = is_token ? first_token + row : first_out + row - kTokens;
    const bool is_inside = column < args.in_dim && index < (is_token ? args.token_count : args.out_dim);
    const __nv_bfloat16* from = is_token ? args.x + index * args.x_stride + column
                                         : args.weight + static_cast<std::int64_t>(index) * args.in_dim + column;
    copy_16_async(stage + tile_offset(row, piece), is_inside ? from : args.x, is_inside);
  }
}

__global__ void __launch_bounds__(kThreads, 2) linear_prefill_kernel(LinearBf16Args args) {
  const std::uint32_t shared = shared_address(dynamic_shared());
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int first_token = static_cast<int>(blockIdx.y) * kTokens, first_out = static_cast<int>(blockIdx.x) * kOutputs;
  const int warp_token = warp / 4 * 64, warp_out = warp % 4 * 32;
  const int step_count = (args.in_dim + kDepth - 1) / kDepth;
  float sums[4][4][4] = {};
  for (int s = 0; s < kStages - 1; ++s) {
    if (s < step_count) load_stage(args, shared + s * kStageElements * 2, first_token, first_out, s * kDepth);
    commit_copies();
  }
  for (int step = 0; step < step_count; ++step) {
    wait_for_copies<kStages - 2>();
    __syncthreads();
    const int next = step + kStages - 1;
    if (next < step_count) load_stage(args, shared + next % kStages * kStageElements * 2, first_token, first_out, next * kDepth);
    commit_copies();
    const std::uint32_t tile = shared + step % kStages * kStageElements * 2;
#pragma unroll
    for (int part = 0; part < kDepth / 16; ++part) {
      std::uint32_t x[4][4], w[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrices(x[i], tile + tile_offset(warp_token + i * 16 + lane % 16, part * 2 + lane / 16));
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        load_matrices(w[j], tile + tile_offset(kTokens + warp_out + j * 16 + lane / 16 * 8 + lane % 8, part * 2 + lane / 8 % 2));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          multiply_add(sums[i][j], x[i][0], x[i][1], x[i][2], x[i][3], w[j / 2][j % 2 * 2], w[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        finish(args, first_token + warp_token + i * 16 + lane / 4 + e / 2 * 8, first_out + warp_out + j * 8 + lane % 4 * 2 + e % 2, sums[i][j][e]);
      }
    }
  }
}

// ---------------------------------------------------------------- decode

__device__ inline uint4 load_piece(const __nv_bfloat16* row, int column, int in_dim, bool is_inside) {
  if (!is_inside || column >= in_dim) return make_uint4(0, 0, 0, 0);
  return *reinterpret_cast<const uint4*>(row + column);
}

/// kTiles: tiles of 8 tokens.
template <int kTiles>
__global__ void __launch_bounds__(kDecodeWarps * 32) linear_decode_kernel(LinearBf16Args args) {
  __shared__ float partial[kDecodeWarps][kDecodeOutputs][kTiles * 8 + 1];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int group = lane / 4, piece = lane % 4 * 8;
  const int first_out = static_cast<int>(blockIdx.x) * kDecodeOutputs, first_token = static_cast<int>(blockIdx.y) * kDecodeTokens;
  const bool has_low = first_out + group < args.out_dim, has_high = first_out + group + 8 < args.out_dim;
  const __nv_bfloat16* low = args.weight + static_cast<std::int64_t>(has_low ? first_out + group : 0) * args.in_dim;
  const __nv_bfloat16* high = args.weight + static_cast<std::int64_t>(has_high ? first_out + group + 8 : 0) * args.in_dim;
  float sums[kTiles][4] = {};
#pragma unroll 4
  for (int k = warp * 32; k < args.in_dim; k += kDecodeWarps * 32) {
    const uint4 a = load_piece(low, k + piece, args.in_dim, has_low), b = load_piece(high, k + piece, args.in_dim, has_high);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int token = first_token + tile * 8 + group;
      const bool is_inside = token < args.token_count;
      const uint4 x = load_piece(args.x + (is_inside ? token : 0) * args.x_stride, k + piece, args.in_dim, is_inside);
      multiply_add(sums[tile], a.x, b.x, a.y, b.y, x.x, x.y);
      multiply_add(sums[tile], a.z, b.z, a.w, b.w, x.z, x.w);
    }
  }
  for (int tile = 0; tile < kTiles; ++tile) {
    for (int e = 0; e < 4; ++e) partial[warp][group + e / 2 * 8][tile * 8 + lane % 4 * 2 + e % 2] = sums[tile][e];
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kDecodeOutputs * kTiles * 8; i += kDecodeWarps * 32) {
    const int out = i % kDecodeOutputs, token = i / kDecodeOutputs;
    float sum = 0;
    for (int w = 0; w < kDecodeWarps; ++w) sum += partial[w][out][token];
    finish(args, first_token + token, first_out + out, sum);
  }
}

// ---------------------------------------------------------------- the operator

Op<LinearArgs> shared_linear;

bool is_aligned(const void* pointer, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0 && stride % 8 == 0;
}

bool takes(const LinearArgs& args) {
  const LinearWeight& weight = *args.weight;
  return args.dtype == DType::kBF16 && weight.dtype == DType::kBF16 && weight.in_dim % 8 == 0 &&
         is_aligned(args.in.data, args.in.stride) && is_aligned(weight.data, weight.in_dim);
}

void run(BackendQueue* queue, const LinearArgs& args, void* scratch) {
  if (!takes(args)) return shared_linear.run(queue, args, scratch);
  const LinearWeight& weight = *args.weight;
  const LinearBf16Args kernel_args{static_cast<const __nv_bfloat16*>(args.in.data), static_cast<const __nv_bfloat16*>(weight.data),
                                   weight.bias, args.out.data, args.in.stride, args.out.stride, args.token_count, weight.out_dim,
                                   weight.in_dim, args.accumulate, args.out_dtype == DType::kF32};
  const Launcher launcher(queue, "linear");
  const auto blocks = [](int count, int each) { return static_cast<unsigned>((count + each - 1) / each); };
  if (args.phase == Phase::kPrefill) {
    launcher(linear_prefill_kernel, dim3(blocks(weight.out_dim, kOutputs), blocks(args.token_count, kTokens)), dim3(kThreads),
             kStages * kStageElements * sizeof(__nv_bfloat16), kernel_args);
    return;
  }
  const dim3 grid(blocks(weight.out_dim, kDecodeOutputs), blocks(args.token_count, kDecodeTokens));
  const auto kernel = args.token_count <= 8    ? linear_decode_kernel<1>
                      : args.token_count <= 16 ? linear_decode_kernel<2>
                      : args.token_count <= 32 ? linear_decode_kernel<4>
                                               : linear_decode_kernel<8>;
  launcher(kernel, grid, dim3(kDecodeWarps * 32), 0, kernel_args);
}

}  // namespace

void override_linear_for_sm80(OpTable& ops) {
  shared_linear = ops.linear;
  ops.linear.run = run;
}

}  // namespace cairn::gpu
