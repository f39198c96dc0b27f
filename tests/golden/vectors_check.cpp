// vectors_check [--vectors DIR] [--backend reference|cpu|cuda|rocm] [--only TEXT]
// Runs every case of a folder of test vectors. Exit 0: every case passed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/golden/vector_kinds.h"
#include "tests/support/backend_access.h"

namespace {

using cairn::test::Comparison;
using cairn::test::VectorCase;

struct Options {
  std::string vectors = CAIRN_SHARED_DIR "/vectors", backend = "reference", only;
};

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    if (!std::strcmp(argv[i], "--vectors"))
      options->vectors = argv[i + 1];
    else if (!std::strcmp(argv[i], "--backend"))
      options->backend = argv[i + 1];
    else if (!std::strcmp(argv[i], "--only"))
      options->only = argv[i + 1];
    else
      return false;
  }
  return true;
}

bool check_case(const nlohmann::json& entry, const Options& options, const cairn::Backend& backend) {
  const std::string name = entry.at("name").get<std::string>();
  VectorCase vectors;
  std::string reason;
  if (!vectors.load(options.vectors, entry, &reason))
    return std::printf("FAIL %-24s %s\n", name.c_str(), reason.c_str()), false;
  Comparison result(vectors);
  bool known = false;
  for (const auto& kind : cairn::test::kVectorKinds) {
    if (vectors.kind() != kind.name) continue;
    known = true;
    const std::string unknown = cairn::test::unknown_key(vectors.params(), kind.params);
    if (!unknown.empty()) {
      result.fail("parameter '" + unknown + "' is not known");
      continue;
    }
    cairn::test::OpRig rig(backend);
    kind.check(vectors, rig, result);
  }
  if (known)
    result.finish();
  else
    result.fail("kind '" + vectors.kind() + "' is not known");
  std::printf("%s %-24s %s\n", result.passed() ? "ok  " : "FAIL", name.c_str(), result.summary().c_str());
  for (const std::string& line : result.details()) std::printf("       %s\n", line.c_str());
  std::fflush(stdout);
  return result.passed();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, &options))
    return std::fprintf(stderr, "usage: vectors_check [--vectors DIR] [--backend NAME] [--only TEXT]\n"), 2;
  setenv("CAIRN_BACKEND_PATH", CAIRN_PLUGIN_DIR, 0);  // layers and models run through the runtime, which loads plug-ins
  std::string reason;
  const cairn::Backend* backend = cairn::test::find_backend(options.backend, &reason);
  if (!backend) return std::fprintf(stderr, "backend '%s': %s\n", options.backend.c_str(), reason.c_str()), 2;
  std::ifstream file(options.vectors + "/index.json");
  const nlohmann::json index = nlohmann::json::parse(file, nullptr, false);
  if (!index.is_object() || !index.contains("cases"))
    return std::fprintf(stderr, "%s/index.json: not an index of cases\n", options.vectors.c_str()), 2;
  int passed = 0, failed = 0;
  for (const nlohmann::json& entry : index["cases"]) {
    if (entry.at("name").get<std::string>().find(options.only) == std::string::npos) continue;
    (check_case(entry, options, *backend) ? passed : failed) += 1;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}
