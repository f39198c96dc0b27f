#define CAIRN_ISA baseline
#include "backends/cpu/row_kernels.inc.h"
