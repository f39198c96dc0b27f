// SpikingBrain 2 (sse_swa_moba): SSE on GDN transitions averaged with sliding-window attention, and layers of
// attention.
#pragma once

#include "runtime/import/checkpoint_source.h"

namespace cairn {

/// MoBA layers are full attention as long as the chunks that they choose cover max_position_embeddings; refused
/// otherwise.
Status import_spiking_brain(ImportContext& context);

}  // namespace cairn
