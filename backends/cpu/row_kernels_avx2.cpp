#define CAIRN_ISA avx2
#include "backends/cpu/row_kernels.inc.h"
