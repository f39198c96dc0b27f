#define CAIRN_ISA avx2
#include "backends/cpu/linear_kernels.inc.h"
