#include "tests/golden/checkpoint_builder.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace cairn::test {

CheckpointBuilder::CheckpointBuilder(nlohmann::json config_json, std::uint64_t seed)
    : config(std::move(config_json)), random_(seed) {
  folder_ = (std::filesystem::temp_directory_path() / "cairn-checkpoint-XXXXXX").string();
  if (!mkdtemp(folder_.data())) std::abort();
}

CheckpointBuilder::~CheckpointBuilder() { std::filesystem::remove_all(folder_); }

void CheckpointBuilder::put(const std::string& name, std::vector<std::int64_t> shape,
                            const std::vector<float>& values) {
  FileTensor tensor;
  tensor.shape = std::move(shape);
  tensor.bytes.resize(values.size() * sizeof(float));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  tensors[name] = std::move(tensor);
}

void CheckpointBuilder::matrix(const std::string& name, std::int64_t out, std::int64_t in, double scale) {
  put(name + ".weight", {out, in},
      random_.normals(static_cast<std::size_t>(out * in), scale / std::sqrt(static_cast<double>(in))));
}

void CheckpointBuilder::vector(const std::string& name, std::int64_t size, double mean, double spread) {
  put(name, {size}, random_.normals(static_cast<std::size_t>(size), spread, mean));
}

void CheckpointBuilder::convolution(const std::string& name, std::int64_t channels, std::int64_t taps) {
  put(name + ".weight", {channels, 1, taps}, random_.normals(static_cast<std::size_t>(channels * taps), 0.5));
}

void CheckpointBuilder::tensor(const std::string& name, std::vector<std::int64_t> shape, double spread) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  put(name, std::move(shape), random_.normals(static_cast<std::size_t>(count), spread));
}

void CheckpointBuilder::round_to_bf16() {
  for (auto& [name, tensor] : tensors) {
    const std::vector<float> values = tensor.floats();
    std::vector<std::uint8_t> halves(values.size() * 2);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &values[i], sizeof bits);
      const auto half = static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
      std::memcpy(&halves[2 * i], &half, sizeof half);
    }
    tensor.dtype = DType::kBF16;
    tensor.bytes = std::move(halves);
  }
}

const std::string& CheckpointBuilder::write() const {
  std::ofstream(folder_ + "/config.json") << config.dump();
  if (!write_safetensors(folder_ + "/model.safetensors", tensors)) std::abort();
  return folder_;
}

void add_model(CheckpointBuilder& c, const PlainNames& names, const PlainSizes& sizes) {
  const auto bare = [](const std::string& name) { return name.substr(0, name.size() - 7); };  // without ".weight"
  c.matrix(bare(names.embed), sizes.vocab, sizes.dim, 4);
  if (!sizes.is_tied) c.matrix(bare(names.head), sizes.vocab, sizes.dim);
  c.vector(names.final_norm, sizes.dim, 1, 0.1);
  for (int i = 0; i < sizes.layers; ++i) {
    const std::string block = names.block + std::to_string(i) + ".";
    c.vector(block + names.norm1, sizes.dim, 1, 0.1);
    c.vector(block + names.norm2, sizes.dim, 1, 0.1);
    c.matrix(block + names.gate, sizes.hidden, sizes.dim);
    c.matrix(block + names.up, sizes.hidden, sizes.dim);
    c.matrix(block + names.down, sizes.dim, sizes.hidden);
  }
}

}  // namespace cairn::test
