// OLMo-Hybrid: GDN layers with norms before, attention layers with norms after (OLMo 3).
#pragma once

#include "runtime/import/checkpoint_source.h"

namespace cairn {

/// Takes the names of the release and those of transformers.
Status import_olmo_hybrid(ImportContext& context);

}  // namespace cairn
