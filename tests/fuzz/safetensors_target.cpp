// F7: bytes as a safetensors file. What is accepted covers the data exactly.
#include <cstdlib>

#include "runtime/import/safetensors_reader.h"
#include "tests/fuzz/fuzz_targets.h"

namespace cairn::test {

void fuzz_safetensors(const std::uint8_t* data, std::size_t size) {
  auto source = copied_source(data, size);
  if (!source.ok()) return;
  const std::byte* memory = source.value()->memory();
  const auto tensors = read_safetensors(source.value(), "fuzz");
  if (!tensors.ok()) {
    if (tensors.status().message().empty() || tensors.status().code() == CAIRN_STATUS_INTERNAL) std::abort();
    return;
  }
  std::uint64_t covered = 0;
  for (const auto& [name, tensor] : tensors.value()) {
    if (tensor.data < memory || tensor.data + tensor.size_bytes > memory + size) std::abort();
    covered += tensor.size_bytes;
  }
  if (covered > size) std::abort();
}

}  // namespace cairn::test

CAIRN_FUZZ_ENTRY(fuzz_safetensors)
