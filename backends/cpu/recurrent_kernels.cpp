#include "backends/cpu/recurrent_kernels.h"

namespace cairn::cpu {

namespace baseline {
extern const RecurrentKernels kRecurrentKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const RecurrentKernels kRecurrentKernels;
}
namespace avx512 {
extern const RecurrentKernels kRecurrentKernels;
}
#endif

const RecurrentKernels& recurrent_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return avx512::kRecurrentKernels;
  if (isa == Isa::kAvx2) return avx2::kRecurrentKernels;
#endif
  return baseline::kRecurrentKernels;
}

}  // namespace cairn::cpu
