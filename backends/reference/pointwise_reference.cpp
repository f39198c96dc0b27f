// add, gate, swiglu: element by element.
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* add_unsupported_reason(const AddArgs& a) {
  return first_reason({require_f32("add", a.dtype), require_sizes("add", {a.dim})});
}

std::size_t add_scratch_bytes(const AddArgs&) { return 0; }

void add_run(BackendQueue*, const AddArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    const double scale = a.scale ? a.scale[t] : 1;
    for (std::int32_t d = 0; d < a.dim; ++d) {
      const double first = a.a.data ? row(a.a, t)[d] : 0;
      row(a.out, t)[d] = static_cast<float>(first + row(a.b, t)[d] * scale);
    }
  }
}

const char* gate_unsupported_reason(const GateArgs& a) {
  return first_reason({require_f32("gate", a.dtype), require_sizes("gate", {a.dim})});
}

std::size_t gate_scratch_bytes(const GateArgs&) { return 0; }

void gate_run(BackendQueue*, const GateArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t d = 0; d < a.dim; ++d) {
      const double open = a.kind == GateKind::kNone ? 1 : activate(a.kind, row(a.z, t)[d]);
      row(a.out, t)[d] = static_cast<float>(row(a.x, t)[d] * open);
    }
  }
}

const char* swiglu_unsupported_reason(const SwigluArgs& a) {
  return first_reason({require_f32("swiglu", a.dtype), require_sizes("swiglu", {a.dim})});
}

std::size_t swiglu_scratch_bytes(const SwigluArgs&) { return 0; }

void swiglu_run(BackendQueue*, const SwigluArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    for (std::int32_t d = 0; d < a.dim; ++d) {
      row(a.out, t)[d] = static_cast<float>(silu(row(a.gate, t)[d]) * row(a.up, t)[d]);
    }
  }
}

}  // namespace cairn::reference
