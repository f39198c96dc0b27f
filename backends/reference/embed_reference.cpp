// embed, gather_rows: rows by index.
#include "backends/reference/reference_ops.h"
#include "backends/reference/row_access.h"
#include "backends/reference/scalar_functions.h"
#include "backends/reference/unsupported.h"

namespace cairn::reference {

const char* embed_unsupported_reason(const EmbedArgs& a) {
  if (!is_float_storage(a.table_dtype)) {
    return unsupported("embed: a %s table is not supported (supported: f32, bf16, f16)", dtype_name(a.table_dtype));
  }
  return first_reason({require_f32("embed", a.dtype), require_sizes("embed", {a.dim})});
}

std::size_t embed_scratch_bytes(const EmbedArgs&) { return 0; }

void embed_run(BackendQueue*, const EmbedArgs& a, void*) {
  for (std::int32_t t = 0; t < a.token_count; ++t) {
    const std::int64_t first = static_cast<std::int64_t>(a.tokens[t]) * a.dim;
    for (std::int32_t d = 0; d < a.dim; ++d)
      row(a.out, t)[d] = static_cast<float>(element(a.table, a.table_dtype, first + d));
  }
}

const char* gather_rows_unsupported_reason(const GatherRowsArgs& a) {
  return first_reason({require_f32("gather_rows", a.dtype), require_sizes("gather_rows", {a.dim})});
}

std::size_t gather_rows_scratch_bytes(const GatherRowsArgs&) { return 0; }

void gather_rows_run(BackendQueue*, const GatherRowsArgs& a, void*) {
  for (std::int32_t i = 0; i < a.row_count; ++i) {
    for (std::int32_t d = 0; d < a.dim; ++d) row(a.out, i)[d] = row(a.in, a.row_index[i])[d];
  }
}

}  // namespace cairn::reference
