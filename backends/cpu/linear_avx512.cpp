#define CAIRN_ISA avx512
#include "backends/cpu/linear_kernels.inc.h"
