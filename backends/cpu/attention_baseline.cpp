#define CAIRN_ISA baseline
#include "backends/cpu/attention_kernels.inc.h"
