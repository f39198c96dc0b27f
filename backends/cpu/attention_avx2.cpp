#define CAIRN_ISA avx2
#include "backends/cpu/attention_kernels.inc.h"
