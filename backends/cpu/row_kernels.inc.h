// The table of row kernels, for the instruction set of the including file.
#include "backends/cpu/norm_kernels.inc.h"
#include "backends/cpu/pointwise_kernels.inc.h"
#include "backends/cpu/short_conv_kernels.inc.h"

namespace cairn::cpu::CAIRN_ISA {

const RowKernels kRowKernels = {
    .embed = embed_rows,
    .rms_norm = rms_norm_rows,
    .gated_rms_norm = gated_rms_norm_rows,
    .feature_map = feature_map_rows,
    .decay_gate = decay_gate_rows,
    .add = add_rows,
    .gate = gate_rows,
    .swiglu = swiglu_rows,
    .cross_layer_add = cross_layer_add_rows,
    .short_conv = short_conv_piece,
    .rotate = rotate_row,
};

}  // namespace cairn::cpu::CAIRN_ISA
