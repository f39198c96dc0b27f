#include "tests/support/safetensors_file.h"

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace cairn::test {
namespace {

constexpr std::pair<const char*, DType> kTypes[] = {
    {"F64", DType::kF64}, {"F32", DType::kF32}, {"BF16", DType::kBF16}, {"F16", DType::kF16},
    {"I64", DType::kI64}, {"I32", DType::kI32}, {"U8", DType::kU8},     {"BOOL", DType::kU8}};

bool dtype_of(const std::string& name, DType* type) {
  for (const auto& [known, value] : kTypes) {
    if (name == known) return *type = value, true;
  }
  return false;
}

const char* name_of(DType type) {
  for (const auto& [name, value] : kTypes) {
    if (type == value) return name;
  }
  return "";
}

template <class T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0F : 1.0F;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return sign *
         (exponent ? std::ldexp(1024.0F + mantissa, exponent - 25) : std::ldexp(static_cast<float>(mantissa), -24));
}

double number(DType type, const std::uint8_t* at) {
  switch (type) {
    case DType::kF64: return load<double>(at);
    case DType::kF32: return load<float>(at);
    case DType::kBF16: {
      const std::uint32_t wide = static_cast<std::uint32_t>(load<std::uint16_t>(at)) << 16;
      return load<float>(reinterpret_cast<const std::uint8_t*>(&wide));
    }
    case DType::kF16: return half(load<std::uint16_t>(at));
    case DType::kI64: return static_cast<double>(load<std::int64_t>(at));
    case DType::kI32: return load<std::int32_t>(at);
    default: return *at;
  }
}

}  // namespace

std::int64_t FileTensor::count() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

std::vector<float> FileTensor::floats() const {
  std::vector<float> values(count());
  const std::size_t step = dtype_bits(dtype) / 8;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(number(dtype, bytes.data() + i * step));
  return values;
}

std::vector<std::int64_t> FileTensor::integers() const {
  std::vector<std::int64_t> values(count());
  const std::size_t step = dtype_bits(dtype) / 8;
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::int64_t>(number(dtype, bytes.data() + i * step));
  return values;
}

bool read_safetensors(const std::string& path, FileTensors* tensors, std::string* reason) {
  std::ifstream file(path, std::ios::binary);
  std::uint64_t header_bytes = 0;
  file.read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  if (!file || header_bytes > (1U << 28)) return *reason = path + ": no safetensors header", false;
  std::string text(header_bytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(header_bytes));
  const nlohmann::json header = nlohmann::json::parse(text, nullptr, false);
  if (!file || !header.is_object()) return *reason = path + ": the header is not JSON", false;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    FileTensor tensor;
    if (!dtype_of(entry["dtype"].get<std::string>(), &tensor.dtype))
      return *reason = path + ": " + name + ": dtype", false;
    tensor.shape = entry["shape"].get<std::vector<std::int64_t>>();
    const auto begin = entry["data_offsets"][0].get<std::uint64_t>(),
               end = entry["data_offsets"][1].get<std::uint64_t>();
    if (end - begin != static_cast<std::uint64_t>(tensor.count()) * dtype_bits(tensor.dtype) / 8)
      return *reason = path + ": " + name + ": size", false;
    tensor.bytes.resize(end - begin);
    file.seekg(static_cast<std::streamoff>(sizeof header_bytes + header_bytes + begin));
    file.read(reinterpret_cast<char*>(tensor.bytes.data()), static_cast<std::streamsize>(tensor.bytes.size()));
    if (!file) return *reason = path + ": " + name + ": the file ends early", false;
    (*tensors)[name] = std::move(tensor);
  }
  return true;
}

bool write_safetensors(const std::string& path, const FileTensors& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::uint64_t begin = end;
    end += tensor.bytes.size();
    header[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  const std::string text = header.dump();
  const std::uint64_t header_bytes = text.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes) << text;
  for (const auto& [name, tensor] : tensors)
    file.write(reinterpret_cast<const char*>(tensor.bytes.data()), static_cast<std::streamsize>(tensor.bytes.size()));
  return static_cast<bool>(file.flush());
}

}  // namespace cairn::test
