// The cases of every operator: one function each, named after its field in ops.inc. A missing one does not link.
#pragma once

#include "tests/backends/op_case.h"

namespace cairn::test {

#define CAIRN_OP(field, Args, what) std::vector<OpCase> field##_cases();
#include "backends/interface/ops.inc"
#undef CAIRN_OP

}  // namespace cairn::test
