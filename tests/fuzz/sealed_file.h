// Makes container files whose checksums are right and whose contents are not: what an attacker writes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/model/container_format.h"

namespace flatbuffers {
class FlatBufferBuilder;
}

namespace cairn::test {

using Bytes = std::vector<std::uint8_t>;

std::uint64_t load_number(const Bytes& bytes, std::size_t offset, int size);
void store_number(Bytes& bytes, std::size_t offset, int size, std::uint64_t value);

/// Recomputes the header checksum and the trailer's digest of a file whose bytes were changed, as far as its lengths allow.
void reseal(Bytes& file);

/// A section entry as it is to stand in the header, whatever it says.
struct RawSection {
  std::string name;
  std::uint8_t dtype = 0;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0, size = 0;
};

/// A whole file around a finished header and a payload: lengths, checksum table (one block for each started MiB of each
/// section, as the sections say) and trailer are consistent with them.
Bytes seal_file(ContainerKind kind, const Bytes& header, const std::vector<RawSection>& sections, const Bytes& payload);

/// A snapshot header with these sections and nothing else worth a check.
Bytes raw_snapshot_header(const std::vector<RawSection>& sections);

/// Small files that are all right: a model with every mechanism, one with quantised weights and texts, and a snapshot
/// container.
Bytes good_model_file();
Bytes good_quantized_file();
Bytes good_snapshot_file();

/// A safetensors file from a header.
Bytes safetensors_file(const std::string& header, std::size_t data_bytes);

}  // namespace cairn::test
