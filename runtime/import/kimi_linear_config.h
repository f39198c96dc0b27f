// Kimi Linear: KDA layers, latent attention without rotation, sigmoid-routed experts.
#pragma once

#include "runtime/import/checkpoint_source.h"

namespace cairn {

Status import_kimi_linear(ImportContext& context);

}  // namespace cairn
