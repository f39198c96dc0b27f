// Calls that a GPU backend's counters do not hold are refused when they are planned, with the number and the limit.
#include <doctest/doctest.h>

#include "tests/backends/reduction_problem.h"

namespace cairn::test {
namespace {

TEST_CASE("sdm on a GPU refuses more writes in a call than 32 bits count") {
  for (const Backend* backend : every_backend()) {
    if (backend->host_memory) continue;
    SdmArgs args{};
    args.head_count = 16, args.side = 64, args.value_dim = 64, args.write_count = 128, args.read_count = 1;
    args.rows_per_slab = 64;

    args.batch.token_count = (1 << 20) - 1;
    CHECK(backend->ops->sdm.unsupported_reason(args) == nullptr);
    args.batch.token_count = 1 << 20;
    const char* reason = backend->ops->sdm.unsupported_reason(args);

    REQUIRE(reason != nullptr);
    CHECK(std::string(reason) == "sdm: writes of all tokens 2147483648 is not supported (supported: 0 to 2147483646)");
  }
}

}  // namespace
}  // namespace cairn::test
