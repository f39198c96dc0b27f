#define CAIRN_ISA avx512
#include "backends/cpu/row_kernels.inc.h"
