// Layer and model cases as model descriptions: weights [in, out] become [out, in] under the names of
// expected_tensors().
#pragma once

#include "runtime/model/model_description.h"
#include "tests/golden/vector_case.h"

namespace cairn::test {

/// One layer without an MLP, its norm the identity. `routes_residual`: the layer's routing is replaced by CLER with
/// gamma 0, so that its residual can be seen.
Result<std::shared_ptr<const ModelDescription>> layer_description(const VectorCase& vectors, bool routes_residual);

Result<std::shared_ptr<const ModelDescription>> model_description(const VectorCase& vectors);

}  // namespace cairn::test
