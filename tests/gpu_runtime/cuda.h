// The names of CUDA's driver that backends/gpu takes; see cuda_runtime.h.
#pragma once

using CUresult = int;
using CUcontext = struct CUctx_st*;

constexpr CUresult CUDA_SUCCESS = 0;
