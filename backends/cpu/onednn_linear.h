// Prefill of bf16 weights by oneDNN, where the processor has tile registers (AMX). The only user of oneDNN.
//
// An f32 activation is split into two bf16 parts, hi + lo, whose products are summed in f32: the error is 2^-18 of each
// activation, and two bf16 products still take half the time of one f32 product there. Without tiles oneDNN's bf16 is
// half as fast as our own f32 kernels (86 against 138 GFLOP/s, M = 512, AVX512-BF16, one core), so those run instead.
#pragma once

#include "backends/cpu/linear_cpu.h"

namespace cairn::cpu {

enum class OnednnUse : std::uint8_t { kWithTiles = 0, kAlways = 1, kNever = 2 };

/// For tests: which weights packed from now on go to oneDNN. Thread-safe.
void use_onednn(OnednnUse use);

/// "3.7.2", or "none": what this build was made with.
const char* onednn_version();

/// True after a weight that oneDNN takes was packed, or is left to our own kernels (weight->packed stays null).
bool onednn_pack(Device& device, LinearWeight* weight, BackendError* error);
void onednn_unpack(LinearWeight* weight);

/// Scratch of a product with a packed weight, with thread 0's block first.
std::size_t onednn_scratch_bytes(const LinearWeight& weight, std::int64_t rows);

/// y = x W^T (+ bias) (+ y) with a packed weight. False: oneDNN failed.
bool onednn_multiply(Device& device, const LinearProduct& product, void* scratch);

}  // namespace cairn::cpu
