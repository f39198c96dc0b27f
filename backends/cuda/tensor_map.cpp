#include "backends/cuda/tensor_map.h"

#include <cuda_runtime.h>

namespace cairn::gpu {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                            const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

Encode find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode>(function) : nullptr;
}

/// bf16, innermost 64 wide, in the 128-byte swizzle or as it is.
bool encode(CUtensorMap* map, const ConstRows& rows, cuuint32_t rank, const cuuint64_t* sizes, const cuuint64_t* strides,
            const cuuint32_t* box, bool is_swizzled = true) {
  static const Encode encode_tiled = find_encoder();
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  return encode_tiled && encode_tiled(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<void*>(rows.data), sizes, strides,
                                      box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                      is_swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                      is_swizzled ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool encode_2d(CUtensorMap* map, const ConstRows& rows, std::int64_t token_count, std::int64_t width, unsigned box_rows,
               bool is_swizzled) {
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(width), static_cast<cuuint64_t>(token_count)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(rows.stride) * 2};
  const cuuint32_t box[2] = {64, box_rows};
  return encode(map, rows, 2, sizes, strides, box, is_swizzled);
}

}  // namespace

bool encode_rows(CUtensorMap* map, const ConstRows& rows, std::int64_t token_count, std::int64_t width,
                 unsigned box_rows) {
  return encode_2d(map, rows, token_count, width, box_rows, true);
}

bool encode_plain_rows(CUtensorMap* map, const ConstRows& rows, std::int64_t token_count, std::int64_t width,
                       unsigned box_rows) {
  return encode_2d(map, rows, token_count, width, box_rows, false);
}

bool encode_row_slabs(CUtensorMap* map, const ConstRows& rows, std::int64_t row_count, std::int64_t width, unsigned box_rows,
                      unsigned groups) {
  const cuuint64_t sizes[3] = {64, static_cast<cuuint64_t>(row_count), static_cast<cuuint64_t>(width) / 64};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(rows.stride) * 2, 128};
  const cuuint32_t box[3] = {64, box_rows, groups};
  return encode(map, rows, 3, sizes, strides, box);
}

bool encode_row_slabs_of_parts(CUtensorMap* map, const ConstRows& rows, std::int64_t row_count, unsigned parts, std::int64_t width,
                               unsigned box_rows, unsigned groups) {
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(rows.stride) * 2;
  const cuuint64_t sizes[4] = {64, static_cast<cuuint64_t>(row_count), parts, static_cast<cuuint64_t>(width) / 64};
  const cuuint64_t strides[3] = {row_bytes, row_bytes * static_cast<cuuint64_t>(row_count), 128};
  const cuuint32_t box[4] = {64, box_rows, parts, groups};
  return encode(map, rows, 4, sizes, strides, box);
}

}  // namespace cairn::gpu
