// Checkpoints of flash-linear-attention's own model classes: gated_deltanet, delta_net, kda.
#pragma once

#include "runtime/import/checkpoint_source.h"

namespace cairn {

Status import_fla_gated_deltanet(ImportContext& context);
Status import_fla_delta_net(ImportContext& context);
Status import_fla_kda(ImportContext& context);

}  // namespace cairn
