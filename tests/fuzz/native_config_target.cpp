// F7: bytes as the config.json of a native folder without tensors: read, refused or validated, never more.
#include <cstdlib>

#include "runtime/import/json_reader.h"
#include "runtime/import/native_config.h"
#include "tests/fuzz/fuzz_targets.h"

namespace cairn::test {

void fuzz_native_config(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_json(text, "config.json");
  if (!config.ok() || !config.value().is_object()) return;
  const std::string folder;
  const ModelLimits limits;
  ModelDescription description;
  ImportedTensors tensors({}, description);
  ImportContext context{folder, config.value(), limits, tensors, description};
  const Status status = import_native(context);
  if (status.ok() || status.message().empty() || status.code() == CAIRN_STATUS_INTERNAL) std::abort();  // no tensor is there
}

}  // namespace cairn::test

CAIRN_FUZZ_ENTRY(fuzz_native_config)
