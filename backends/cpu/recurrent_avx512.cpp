#define CAIRN_ISA avx512
#include "backends/cpu/recurrent_kernels.inc.h"
