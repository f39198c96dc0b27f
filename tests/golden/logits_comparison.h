// Logits of a checkpoint, through the public C API, against the plain forward pass.
#pragma once

#include <string>

#include "tests/golden/plain_forward.h"

namespace cairn::test {

/// Prefill of 70 tokens and 16 decode steps, on the reference and cpu backends: within kGoldenRelativeRms.
void check_logits(const std::string& folder, PlainModel& plain, int vocab);

/// The folder is refused with a message that holds `part`.
void check_load_refused(const std::string& folder, const char* part);

}  // namespace cairn::test
