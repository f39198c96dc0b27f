// The chips that a build of the rocm backend has code for; the names are those of the HIP runtime.
#include <doctest/doctest.h>

#include "backends/rocm/rocm_architectures.h"

namespace cairn::gpu {

TEST_CASE("a chip is known by its name, whatever its features") {
  CHECK(has_machine_code("gfx90a", "gfx90a gfx1030"));
  CHECK(has_machine_code("gfx90a:sramecc+:xnack-", "gfx90a gfx1030"));
  CHECK(has_machine_code("gfx1030", "gfx90a gfx1030"));
  CHECK(has_machine_code("gfx1030", "gfx90a:xnack- gfx1030"));

  CHECK_FALSE(has_machine_code("gfx103", "gfx90a gfx1030"));
  CHECK_FALSE(has_machine_code("gfx1030x", "gfx90a gfx1030"));
  CHECK_FALSE(has_machine_code("gfx942:sramecc+:xnack-", "gfx90a gfx1030"));
  CHECK_FALSE(has_machine_code("", "gfx90a gfx1030"));
  CHECK_FALSE(has_machine_code("gfx90a", ""));
}

}  // namespace cairn::gpu
