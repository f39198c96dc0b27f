// A head whose e^A_log is beyond f32, on every backend, on the emulator too.
#include "tests/backends/reduction_problem.h"
#include "tests/backends/steep_gate_problem.h"

namespace cairn::test {
namespace {

TEST_CASE("a log-decay whose exp(A_log) is beyond f32 is the reference's, on every backend") {
  for (const Backend* backend : every_backend()) {
    CAPTURE(std::string(backend->name));
    check_steep_log_decays(*backend);
  }
}

}  // namespace
}  // namespace cairn::test
