// The `cairn-native/1` format: config.json and safetensors of Cairn's own trained models.
#pragma once

#include "runtime/import/import_folder.h"

namespace cairn {

/// Every field of config.json is read or refused by name. Mixers: swa, attn, gdn, delta_net, kda, gdn2, sdm, sse.
Status import_native(ImportContext& context);

}  // namespace cairn
