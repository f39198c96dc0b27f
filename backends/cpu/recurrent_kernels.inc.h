// Every recurrent kernel, and their table; recurrent_<instruction set>.cpp include it.
// The kernels stand on vector_lanes.h and on one another:
// clang-format off
#include "backends/cpu/recurrent_kernels.h"
#include "backends/cpu/vector_lanes.h"
#include "backends/cpu/chunk_products_kernels.inc.h"
#include "backends/cpu/decay_pairs_kernels.inc.h"
#include "backends/cpu/sdm_kernels.inc.h"
#include "backends/cpu/state_step_kernels.inc.h"
// clang-format on

namespace cairn::cpu::CAIRN_ISA {

extern const RecurrentKernels kRecurrentKernels;
const RecurrentKernels kRecurrentKernels = {
    .multiply = multiply,
    .solve_unit_lower = solve_unit_lower,
    .transpose = transpose,
    .copy_rows = copy_rows,
    .scale_rows = scale_rows,
    .scale_columns = scale_columns,
    .add_scaled = add_scaled,
    .exponentials = exponentials,
    .sum_of_squares = sum_of_squares,
    .decay_triangle = decay_triangle,
    .row_decay = row_decay,
    .state_step = state_step,
    .sdm_rows = sdm_rows,
    .largest_places = largest_places,
    .best_pairs = best_pairs,
};

}  // namespace cairn::cpu::CAIRN_ISA
