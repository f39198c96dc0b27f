// The backends that a test program can reach: linked in, or a plug-in beside the build.
#pragma once

#include <string>
#include <vector>

#include "backends/interface/backend.h"

namespace cairn::test {

/// "reference", "cpu" (linked in where they are built), "cuda", "rocm" (plug-ins). Null: not there, and why.
const Backend* find_backend(const std::string& name, std::string* reason);

/// Names of the backends that are to be compared with the reference: those of CAIRN_TEST_BACKENDS ("cuda,emulator"),
/// else the linked-in ones.
std::vector<std::string> tested_backends();

}  // namespace cairn::test
