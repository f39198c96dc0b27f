#define CAIRN_ISA avx2
#include "backends/cpu/recurrent_kernels.inc.h"
