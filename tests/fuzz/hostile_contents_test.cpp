// Cases 14, 15 and 21-33: every checksum is right, and what the header says is not.
#include <doctest/doctest.h>

#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/container_header.h"
#include "runtime/model/container_reader.h"
#include "schema/cairn_model_generated.h"
#include "schema/cairn_snapshot_generated.h"
#include "tests/fuzz/sealed_file.h"

namespace cairn::test {
namespace {

constexpr std::uint8_t kF32 = 0, kU8 = 6;

Status open_snapshot(const Bytes& file) {
  const auto reader = ContainerReader::open(memory_source(file.data(), file.size()), ContainerKind::kSnapshot);
  return reader.ok() ? reader.value().verify_payload() : reader.status();
}

Status open_sections(const std::vector<RawSection>& sections, std::size_t payload_bytes) {
  return open_snapshot(seal_file(ContainerKind::kSnapshot, raw_snapshot_header(sections), sections, Bytes(payload_bytes)));
}

std::string refusal(const std::vector<RawSection>& sections, std::size_t payload_bytes) {
  const Status status = open_sections(sections, payload_bytes);
  CHECK_MESSAGE(status.code() == CAIRN_STATUS_FORMAT, status.message());
  return status.message();
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, text);
  return found;
}

Bytes finished(flatbuffers::FlatBufferBuilder& builder) {
  return Bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
}

/// Replaces the header of a good model file: same payload.
Bytes with_header_changed(const Bytes& good, std::size_t offset, std::uint32_t value) {
  Bytes file = good;
  store_number(file, 64 + offset, 4, value);
  reseal(file);
  return file;
}

}  // namespace

TEST_CASE("the sealer makes files that are accepted") {
  CHECK_MESSAGE(open_sections({{"a", kF32, {2}, 0, 8}, {"b", kU8, {3}, 64, 3}}, 67).ok(), open_sections({{"a", kF32, {2}, 0, 8}, {"b", kU8, {3}, 64, 3}}, 67).message());
  CHECK(open_sections({}, 0).ok());
}

TEST_CASE("sections whose shape, size and place disagree are refused (cases 21-29)") {
  const std::int64_t big = INT32_MAX;
  contains(refusal({{"a", kF32, {big, big, big}, 0, 8}}, 8), "overflows");
  contains(refusal({{"a", kF32, {std::int64_t{1} << 31}, 0, 8}}, 8), "dimension 2147483648");
  contains(refusal({{"a", kF32, {}, 0, 4}}, 4), "rank 0");
  contains(refusal({{"a", kF32, {1, 1, 1, 1, 1, 1, 1}, 0, 4}}, 4), "rank 7");
  contains(refusal({{"a", kF32, {-1}, 0, 4}}, 4), "dimension -1");
  contains(refusal({{"a", kF32, {INT64_MIN}, 0, 4}}, 4), "dimension -9223372036854775808");
  contains(refusal({{"a", kF32, {2}, 0, 4}}, 4), "4 bytes, but [2] of f32 take 8");
  contains(refusal({{"a", kF32, {2}, 0, 8}}, 4), "past the payload's end");
  contains(refusal({{"a", kF32, {2}, ~std::uint64_t{63}, 8}}, 8), "begins at byte 18446744073709551552");
  contains(refusal({{"a", kF32, {2}, 4, 8}}, 12), "begins at byte 4");
  contains(refusal({{"a", kF32, {2}, 64, 8}}, 72), "begins at byte 64 of the payload (expected 0)");              // a hole
  contains(refusal({{"a", kF32, {2}, 0, 8}, {"b", kF32, {2}, 0, 8}}, 8), "section 'b' begins at byte 0");         // overlap
  contains(refusal({{"a", kF32, {2}, 0, 8}, {"b", kF32, {2}, 128, 8}}, 136), "section 'b' begins at byte 128");  // a hole
  contains(refusal({{"a", kF32, {2}, 0, 8}}, 9), "end at byte 8 of a payload of 9");
  contains(refusal({{"a", kF32, {1 << 20, 1 << 20}, 0, std::uint64_t{1} << 42}}, 8), "past the payload's end");
}

TEST_CASE("the sum of sections of many terabytes does not wrap (case 22)") {
  std::vector<RawSection> sections;
  for (int i = 0; i < 40; ++i) {
    const std::uint64_t size = std::uint64_t{1} << 44;
    sections.push_back({"s" + std::to_string(10 + i), kF32, {1 << 20, 1 << 20, 4}, static_cast<std::uint64_t>(i) * size, size});
  }
  const Bytes header = raw_snapshot_header(sections);
  contains(open_snapshot(seal_file(ContainerKind::kSnapshot, header, sections, Bytes(64))).message(), "past the payload's end");
}

TEST_CASE("section names are checked byte by byte, sorted and unique (cases 15, 30)") {
  contains(refusal({{"", kU8, {1}, 0, 1}}, 1), "0 bytes");
  contains(refusal({{"A", kU8, {1}, 0, 1}}, 1), "0x41");
  contains(refusal({{"a/b", kU8, {1}, 0, 1}}, 1), "0x2f");
  contains(refusal({{"a\xff", kU8, {1}, 0, 1}}, 1), "UTF-8");
  contains(refusal({{std::string("a\0b", 3), kU8, {1}, 0, 1}}, 1), "byte 1 (0x00)");
  const Status long_name = open_sections({{std::string(257, 'a'), kU8, {1}, 0, 1}}, 1);
  CHECK_FALSE(long_name.ok());
  contains(refusal({{"a", kU8, {1}, 0, 1}, {"a", kU8, {1}, 64, 1}}, 65), "there twice");
  contains(refusal({{"b", kU8, {1}, 0, 1}, {"a", kU8, {1}, 64, 1}}, 65), "not sorted");
  contains(refusal({{"a", 9, {1}, 0, 1}}, 1), "unknown element type 9");
  contains(refusal({{"a", 255, {1}, 0, 1}}, 1), "unknown element type 255");
}

TEST_CASE("a structure that the verifier must refuse is refused (case 15)") {
  const Bytes good = good_model_file();
  const std::uint32_t header_bytes = static_cast<std::uint32_t>(load_number(good, 24, 4));
  for (const std::uint32_t root : {0U, 1U, 3U, header_bytes, header_bytes - 1, 0xffffffffU, 0x80000000U}) {
    CHECK_FALSE(read_cairn_memory(good.data(), 0).ok());
    const Bytes file = with_header_changed(good, 0, root);
    const Status status = read_cairn_memory(file.data(), file.size()).status();
    CHECK_MESSAGE(status.code() == CAIRN_STATUS_FORMAT, status.message());
  }
  const Bytes wrong_identifier = with_header_changed(good, 4, 0x534e5243);  // "CRNS"
  contains(read_cairn_memory(wrong_identifier.data(), wrong_identifier.size()).status().message(), "not a well-formed model header");
  // A root table whose vtable lies at itself, outside, or has an odd size.
  const auto root = static_cast<std::uint32_t>(load_number(good, 64, 4));
  for (const std::uint32_t vtable : {0U, 1U, 0x7fffffffU, 0x80000000U}) {
    const Bytes file = with_header_changed(good, root, vtable);
    CHECK(read_cairn_memory(file.data(), file.size()).status().code() == CAIRN_STATUS_FORMAT);
  }
  const auto vtable_offset = static_cast<std::int32_t>(load_number(good, 64 + root, 4));
  Bytes odd = good;
  const std::size_t vtable = 64 + root - static_cast<std::size_t>(vtable_offset);
  store_number(odd, vtable, 2, load_number(odd, vtable, 2) + 1);
  reseal(odd);
  CHECK(read_cairn_memory(odd.data(), odd.size()).status().code() == CAIRN_STATUS_FORMAT);
}

TEST_CASE("one table that is named 500,001 times is refused: a small header cannot be made large") {
  flatbuffers::FlatBufferBuilder builder;
  const auto section = schema::CreateSection(builder, builder.CreateString("a"), schema::DType::U8,
                                             builder.CreateVector(std::vector<std::int64_t>{1}), 0, 1);
  const std::vector<flatbuffers::Offset<schema::Section>> many(500001, section);
  const schema::Digest digest;
  const auto header = schema::CreateSnapshotHeader(builder, builder.CreateVector(many), builder.CreateString("t"), &digest,
                                                   builder.CreateString("m"), 0, 0, 0, 0, false, false,
                                                   builder.CreateVector(std::vector<flatbuffers::Offset<schema::Slot>>()));
  schema::FinishSnapshotHeaderBuffer(builder, header);
  const std::vector<RawSection> counted(500001);
  contains(open_snapshot(seal_file(ContainerKind::kSnapshot, finished(builder), counted, Bytes(1))).message(), "not a well-formed");
}

TEST_CASE("more sections than the limit are refused") {
  std::vector<RawSection> sections(262145);
  for (std::size_t i = 0; i < sections.size(); ++i) {
    sections[i] = {"s" + std::to_string(1000000 + i), kU8, {1}, 64 * i, 1};
  }
  const Status status = open_sections(sections, 64 * sections.size() - 63);
  CHECK(status.code() == CAIRN_STATUS_LIMIT_EXCEEDED);
}

TEST_CASE("padding must be zero, so that nothing hides in it") {
  const std::vector<RawSection> sections = {{"a", kU8, {3}, 0, 3}, {"b", kU8, {3}, 64, 3}};
  for (const std::size_t hidden : {3U, 63U}) {
    Bytes payload(67);
    payload[hidden] = 1;
    contains(open_snapshot(seal_file(ContainerKind::kSnapshot, raw_snapshot_header(sections), sections, payload)).message(),
             "padding before section 'b' is not zero");
  }
  Bytes header_padding = seal_file(ContainerKind::kSnapshot, raw_snapshot_header(sections), sections, Bytes(67));
  const std::uint64_t header_end = 64 + load_number(header_padding, 24, 4);
  if (header_end % 64 != 0) {
    header_padding[header_end] = 1;
    contains(open_snapshot(header_padding).message(), "padding after the header");
  }
}

TEST_CASE("a model file whose fingerprint, texts or quantisation lie is refused") {
  const Bytes good = good_quantized_file();
  REQUIRE(read_cairn_memory(good.data(), good.size()).ok());
  const Status fine = read_cairn_memory(good.data(), good.size()).status();
  CHECK(fine.ok());
  // The fingerprint is a 32-byte struct of the header: find it by the loaded value, and change it.
  const auto model = read_cairn_memory(good.data(), good.size());
  const auto& print = model.value().fingerprint;
  const auto at = std::search(good.begin() + 64, good.end(), print.begin(), print.end());
  REQUIRE(at != good.end());
  Bytes lying = good;
  lying[static_cast<std::size_t>(at - good.begin())] ^= 1;
  reseal(lying);
  const Status status = read_cairn_memory(lying.data(), lying.size()).status();
  CHECK(status.code() == CAIRN_STATUS_CHECKSUM);
  contains(status.message(), "fingerprint");
}

}  // namespace cairn::test
