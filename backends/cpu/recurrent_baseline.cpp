#define CAIRN_ISA baseline
#include "backends/cpu/recurrent_kernels.inc.h"
