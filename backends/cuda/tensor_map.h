// Describes rows of activations to the bulk copy engine. The driver's encoder is found at run time.
#pragma once

#include <cuda.h>

#include "backends/interface/tensor_view.h"

namespace cairn::gpu {

/// box_rows x 64 boxes of bf16 with the 128-byte swizzle over [token_count, width]; rows past the end read as zeros.
bool encode_rows(CUtensorMap* map, const ConstRows& rows, std::int64_t token_count, std::int64_t width, unsigned box_rows = 64);

/// The same boxes as they are, without the swizzle.
bool encode_plain_rows(CUtensorMap* map, const ConstRows& rows, std::int64_t token_count, std::int64_t width, unsigned box_rows);

/// groups x box_rows x 64 boxes over the same rows seen as [width / 64][row_count][64]; what lies past the end reads as zeros.
/// width: a multiple of 64.
bool encode_row_slabs(CUtensorMap* map, const ConstRows& rows, std::int64_t row_count, std::int64_t width, unsigned box_rows,
                      unsigned groups);

/// The same of `parts` matrices of row_count rows, one behind the other in memory: boxes of groups x parts x box_rows x 64.
bool encode_row_slabs_of_parts(CUtensorMap* map, const ConstRows& rows, std::int64_t row_count, unsigned parts, std::int64_t width,
                               unsigned box_rows, unsigned groups);

}  // namespace cairn::gpu
