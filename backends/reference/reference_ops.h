// Every operator of the list, declared: one that has no definition here does not link.
#pragma once

#include "backends/interface/backend.h"

namespace cairn::reference {

#define CAIRN_OP(field, Args, what)                    \
  const char* field##_unsupported_reason(const Args&); \
  std::size_t field##_scratch_bytes(const Args&);      \
  void field##_run(BackendQueue*, const Args&, void* scratch);
#include "backends/interface/ops.inc"
#undef CAIRN_OP

}  // namespace cairn::reference
