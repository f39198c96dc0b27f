#define CAIRN_ISA avx512
#include "backends/cpu/attention_kernels.inc.h"
