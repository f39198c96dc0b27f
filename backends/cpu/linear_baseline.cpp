#define CAIRN_ISA baseline
#include "backends/cpu/linear_kernels.inc.h"
