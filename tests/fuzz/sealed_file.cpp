#include "tests/fuzz/sealed_file.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "runtime/model/cairn_file_writer.h"
#include "runtime/model/container_header.h"
#include "runtime/model/quantize.h"
#include "runtime/support/allocator.h"
#include "runtime/support/checksum.h"
#include "schema/cairn_snapshot_generated.h"
#include "tests/support/model_builder.h"

namespace cairn::test {
namespace {

std::size_t aligned(std::size_t value) { return (value + 63) / 64 * 64; }

Bytes to_bytes(const std::vector<std::byte>& bytes) {
  Bytes result(bytes.size());
  if (!bytes.empty()) std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

Bytes write_model(const ModelDescription& model) {
  VectorSink sink;
  if (!write_cairn(model, sink).ok()) std::abort();  // the test's own mistake
  return to_bytes(sink.bytes());
}

}  // namespace

std::uint64_t load_number(const Bytes& bytes, std::size_t offset, int size) {
  std::uint64_t value = 0;
  for (int i = size - 1; i >= 0; --i) value = value << 8 | bytes[offset + static_cast<std::size_t>(i)];
  return value;
}

void store_number(Bytes& bytes, std::size_t offset, int size, std::uint64_t value) {
  for (int i = 0; i < size; ++i) bytes[offset + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(value >> (8 * i));
}

void reseal(Bytes& file) {
  if (file.size() < 128) return;
  const std::uint64_t header_bytes = load_number(file, 24, 4);
  if (header_bytes > file.size() - 128) return;
  Xxh3Stream checksum;
  checksum.update(file.data(), 56);
  checksum.update(file.data() + 64, header_bytes);
  store_number(file, 56, 8, checksum.value());
  const std::size_t trailer = file.size() - 64;
  const std::uint64_t table = load_number(file, trailer + 40, 8), blocks = load_number(file, trailer + 32, 8);
  if (table > trailer || blocks > (trailer - table) / 8) return;
  Blake2bStream digest;
  digest.update(file.data(), 64 + header_bytes);
  digest.update(file.data() + table, blocks * 8);
  const Digest value = digest.finish();
  std::copy(value.begin(), value.end(), file.begin() + static_cast<std::ptrdiff_t>(trailer));
}

Bytes seal_file(ContainerKind kind, const Bytes& header, const std::vector<RawSection>& sections, const Bytes& payload) {
  const std::size_t payload_offset = aligned(64 + header.size());
  const std::size_t table = aligned(payload_offset + payload.size());
  std::vector<std::uint64_t> checksums;
  for (const RawSection& section : sections) {
    for (std::uint64_t done = 0; done < section.size && checksums.size() < 1000; done += kChecksumBlockBytes) {
      const std::uint64_t begin = section.offset + done;
      const std::uint64_t wanted = std::min<std::uint64_t>(kChecksumBlockBytes, section.size - done);
      const bool is_there = begin <= payload.size() && wanted <= payload.size() - begin;
      checksums.push_back(is_there ? xxh3_64(payload.data() + begin, wanted) : 0);
    }
  }
  Bytes file(aligned(table + checksums.size() * 8) + 64);
  std::copy(kContainerMagic.begin(), kContainerMagic.end(), file.begin());
  store_number(file, 8, 4, static_cast<std::uint32_t>(kind));
  store_number(file, 12, 2, kContainerMajor);
  store_number(file, 16, 4, kByteOrderMark);
  store_number(file, 24, 4, header.size());
  store_number(file, 28, 4, sections.size());
  store_number(file, 32, 8, payload_offset);
  store_number(file, 40, 8, payload.size());
  store_number(file, 48, 8, file.size());
  std::copy(header.begin(), header.end(), file.begin() + 64);
  std::copy(payload.begin(), payload.end(), file.begin() + static_cast<std::ptrdiff_t>(payload_offset));
  for (std::size_t i = 0; i < checksums.size(); ++i) store_number(file, table + i * 8, 8, checksums[i]);
  const std::size_t trailer = file.size() - 64;
  store_number(file, trailer + 32, 8, checksums.size());
  store_number(file, trailer + 40, 8, table);
  std::copy(kContainerEndMagic.begin(), kContainerEndMagic.end(), file.begin() + static_cast<std::ptrdiff_t>(trailer + 56));
  reseal(file);
  return file;
}

Bytes raw_snapshot_header(const std::vector<RawSection>& sections) {
  flatbuffers::FlatBufferBuilder builder;
  std::vector<flatbuffers::Offset<schema::Section>> entries;
  for (const RawSection& section : sections) {
    const auto name = builder.CreateString(section.name);
    const auto shape = builder.CreateVector(section.shape);
    entries.push_back(schema::CreateSection(builder, name, static_cast<schema::DType>(section.dtype), shape, section.offset, section.size));
  }
  const schema::Digest digest;
  const auto header = schema::CreateSnapshotHeader(builder, builder.CreateVector(entries), builder.CreateString("test"), &digest,
                                                   builder.CreateString("model"), 1, 1, 0, 0, false, false,
                                                   builder.CreateVector(std::vector<flatbuffers::Offset<schema::Slot>>()));
  schema::FinishSnapshotHeaderBuffer(builder, header);
  return Bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
}

Bytes good_model_file() { return write_model(*every_mechanism_model(1)); }

Bytes good_quantized_file() {
  ModelDescription model = *random_model({delta_layer(Mechanism::kGdn)}, 2);
  model.tokenizer.kind = TokenizerKind::kBpe;
  model.tokenizer.data = "{}";
  model.tokenizer.chat_template = "{{ messages }}";
  std::vector<QuantizedMatrix> kept;
  kept.reserve(model.tensors.size());
  const std::vector<TensorSpec> specs = expected_tensors(model);
  for (std::size_t i = 0; i < model.tensors.size(); ++i) {
    TensorEntry& tensor = model.tensors[i];
    if (!specs[i].is_matrix) continue;
    kept.push_back(quantize_i8(static_cast<const float*>(tensor.data), tensor.shape[0], tensor.shape[1]));
    tensor.dtype = DType::kI8;
    tensor.data = kept.back().data.data();
    tensor.size_bytes = kept.back().data.size();
    tensor.scales = kept.back().scales.data();
    tensor.scales_bytes = kept.back().scales.size() * 4;
  }
  return write_model(model);
}

Bytes good_snapshot_file() {
  const std::vector<RawSection> sections = {{"last_logits", 0, {5}, 0, 20}, {"layers.0.state", 0, {2, 3, 4}, 64, 96}};
  Bytes payload(160);
  for (std::size_t i = 0; i < 20; ++i) payload[i] = static_cast<std::uint8_t>(i);
  for (std::size_t i = 64; i < 160; ++i) payload[i] = static_cast<std::uint8_t>(i);
  return seal_file(ContainerKind::kSnapshot, raw_snapshot_header(sections), sections, payload);
}

Bytes safetensors_file(const std::string& header, std::size_t data_bytes) {
  Bytes file(8);
  store_number(file, 0, 8, header.size());
  file.insert(file.end(), header.begin(), header.end());
  file.resize(file.size() + data_bytes);
  return file;
}

}  // namespace cairn::test
