// The checkpoints of ../shared/fixtures/hf, which tests change before they are imported.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/import/import_folder.h"
#include "tests/runtime/file_fixture.h"

namespace cairn::test {

using Json = nlohmann::json;

inline const std::string kFixtures = CAIRN_SHARED_DIR "/fixtures/hf/";

/// A checkpoint that tests change before it is imported.
class Checkpoint {
 public:
  explicit Checkpoint(const char* name) {
    config = Json::parse(file_bytes(kFixtures + name + "/config.json"));
    generation = Json::parse(file_bytes(kFixtures + name + "/generation_config.json"));
    const std::string bytes = file_bytes(kFixtures + name + "/model.safetensors");
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), 8);
    header = Json::parse(bytes.substr(8, size));
    header.erase("__metadata__");
    data = bytes.substr(8 + size);
  }
  Checkpoint() = default;

  void add(const std::string& name, const std::vector<std::int64_t>& shape) {
    std::int64_t count = 4;
    for (const std::int64_t dim : shape) count *= dim;
    header[name] = {{"dtype", "F32"},
                    {"shape", shape},
                    {"data_offsets", {data.size(), data.size() + static_cast<std::size_t>(count)}}};
    data.append(static_cast<std::size_t>(count), '\0');
  }
  void rename(const std::string& from, const std::string& to) {
    header[to] = header.at(from);
    header.erase(from);
  }

  Result<ModelDescription> imported() const {
    put_file(folder_ / "config.json", config.dump());
    if (!generation.is_null()) put_file(folder_ / "generation_config.json", generation.dump());
    const std::string text = header.dump();
    const std::uint64_t size = text.size();
    put_file(folder_ / "model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
    return import_folder(folder_.path());
  }

  const TemporaryFolder& folder() const { return folder_; }

  Json config, generation, header = Json::object();
  std::string data;

 private:
  TemporaryFolder folder_;
};

/// The error of a fixture after `change`; it must hold `part`.
inline void check_refused(const char* name, cairn_status code, const char* part,
                          const std::function<void(Checkpoint&)>& change) {
  Checkpoint checkpoint(name);
  change(checkpoint);

  const Result<ModelDescription> result = checkpoint.imported();

  CHECK(result.status().code() == code);
  CHECK_MESSAGE(result.status().message().find(part) != std::string::npos, result.status().message());
}

inline std::vector<float> floats_of(const ModelDescription& description, const std::string& name) {
  const TensorEntry* tensor = description.find(name);
  REQUIRE(tensor);
  std::vector<float> values;
  for (std::uint64_t i = 0; i < tensor->size_bytes / 2; ++i) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, static_cast<const std::byte*>(tensor->data) + 2 * i, 2);
    const std::uint32_t wide = std::uint32_t{bits} << 16;
    float value = 0;
    std::memcpy(&value, &wide, 4);
    values.push_back(value);
  }
  return values;
}

}  // namespace cairn::test
