#include <doctest/doctest.h>

#include <numeric>

#include "runtime/model/container_header.h"
#include "runtime/model/container_reader.h"
#include "runtime/model/container_writer.h"
#include "schema/cairn_snapshot_generated.h"
#include "tests/runtime/file_fixture.h"

namespace cairn::test {
namespace {

struct Piece {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
};

std::vector<std::byte> counting_bytes(std::uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (std::uint64_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

/// A snapshot container with these sections, filled with counting bytes and written in pieces of `piece_bytes`.
Result<std::vector<std::byte>> write_sections(const std::vector<Piece>& pieces, std::uint64_t piece_bytes,
                                              ByteProgress progress = nullptr) {
  ContainerPlan plan(ContainerKind::kSnapshot);
  for (const Piece& piece : pieces) CAIRN_TRY(plan.add(piece.name, piece.dtype, piece.shape));
  CAIRN_TRY(plan.finish());
  flatbuffers::FlatBufferBuilder builder;
  const auto sections = build_sections(builder, plan);
  const schema::Digest digest;
  const auto header = schema::CreateSnapshotHeader(builder, sections, builder.CreateString("test"), &digest,
                                                   builder.CreateString("model"), 0, 0, 5, 0, false, false,
                                                   builder.CreateVector(std::vector<flatbuffers::Offset<schema::Slot>>()));
  schema::FinishSnapshotHeaderBuffer(builder, header);
  VectorSink sink;
  ContainerWriter writer(plan, sink, progress);
  CAIRN_TRY(writer.begin(builder.GetBufferPointer(), builder.GetSize()));
  for (const Section& section : plan.sections()) {
    const auto bytes = counting_bytes(section.size_bytes);
    for (std::uint64_t done = 0; done < bytes.size(); done += piece_bytes) {
      CAIRN_TRY(writer.write(bytes.data() + done, std::min<std::uint64_t>(piece_bytes, bytes.size() - done)));
    }
  }
  CAIRN_TRY(writer.finish());
  if (sink.bytes().size() != plan.total_bytes(builder.GetSize())) return Status::error(CAIRN_STATUS_INTERNAL, "other size than planned");
  return sink.bytes();
}

const std::vector<Piece> kPieces = {{"z.last", DType::kF32, {3, 5}},          {"a.first", DType::kU8, {1}},
                                    {"empty.rows", DType::kF32, {0, 7}},      {"big", DType::kBF16, {2, 1 << 20}},
                                    {"exact", DType::kU8, {1 << 20}},         {"nibbles", DType::kI4, {3, 3}},
                                    {"zz.none", DType::kI64, {2, 0}}};

}  // namespace

TEST_CASE("a container gives back what was written, however it was cut into pieces") {
  const auto whole = write_sections(kPieces, ~std::uint64_t{0});
  const auto cut = write_sections(kPieces, 4097);
  REQUIRE_MESSAGE(whole.ok(), whole.status().message());
  REQUIRE(cut.ok());

  CHECK(whole.value() == cut.value());
  auto opened = ContainerReader::open(memory_source(whole.value().data(), whole.value().size()), ContainerKind::kSnapshot);
  REQUIRE_MESSAGE(opened.ok(), opened.status().message());
  const ContainerReader& reader = opened.value();
  CHECK(reader.snapshot_header().position() == 5);
  CHECK(reader.sections().size() == kPieces.size());
  CHECK(reader.verify_payload().ok());
  for (const Piece& piece : kPieces) {
    const auto section = reader.require(piece.name, piece.dtype, piece.shape);
    REQUIRE(section.ok());
    std::vector<std::byte> bytes(section.value()->size_bytes);
    CHECK(section.value()->offset_bytes % 64 == 0);
    CHECK(reader.read(*section.value(), bytes.data()).ok());
    CHECK(bytes == counting_bytes(bytes.size()));
  }
  CHECK(reader.find("absent") == nullptr);
  CHECK(reader.require("big", DType::kF16, {2, 1 << 20}).status().code() == CAIRN_STATUS_FORMAT);
  CHECK(reader.require("big", DType::kBF16, {1 << 20, 2}).status().code() == CAIRN_STATUS_FORMAT);
}

TEST_CASE("a container of no sections is whole") {
  const auto bytes = write_sections({}, 1);
  REQUIRE(bytes.ok());
  auto reader = ContainerReader::open(memory_source(bytes.value().data(), bytes.value().size()), ContainerKind::kSnapshot);
  REQUIRE_MESSAGE(reader.ok(), reader.status().message());
  CHECK(reader.value().verify_payload().ok());
}

TEST_CASE("memory, mapped, read and positional sources give the same") {
  const TemporaryFolder folder;
  const auto bytes = write_sections(kPieces, 1 << 20);
  REQUIRE(bytes.ok());
  put_file(folder / "file", std::string(reinterpret_cast<const char*>(bytes.value().data()), bytes.value().size()));
  for (const FileAccess access : {FileAccess::kMap, FileAccess::kReadAll, FileAccess::kPositional}) {
    auto source = file_source(folder / "file", access);
    REQUIRE(source.ok());
    auto reader = ContainerReader::open(source.value(), ContainerKind::kSnapshot);
    REQUIRE(reader.ok());
    CHECK(reader.value().verify_payload().ok());
    std::vector<std::byte> block(1 << 20);
    const Section& big = *reader.value().find("big");
    CHECK(reader.value().read_blocks(big, 1 << 20, block.data(), block.size()).ok());
    const auto expected = counting_bytes(big.size_bytes);
    CHECK(std::equal(block.begin(), block.end(), expected.begin() + (1 << 20)));
    CHECK(reader.value().read_blocks(big, 5, block.data(), 5).code() == CAIRN_STATUS_INTERNAL);
  }
}

TEST_CASE("writing and verifying can be cancelled") {
  int calls = 0;
  const auto cancelled = write_sections(kPieces, 1 << 20, [&](std::uint64_t done, std::uint64_t total) {
    CHECK(done <= total);
    return ++calls < 2;
  });
  CHECK(cancelled.status().code() == CAIRN_STATUS_CANCELLED);
  const auto bytes = write_sections(kPieces, 1 << 20);
  REQUIRE(bytes.ok());
  auto reader = ContainerReader::open(memory_source(bytes.value().data(), bytes.value().size()), ContainerKind::kSnapshot);
  REQUIRE(reader.ok());
  CHECK(reader.value().verify_payload([](std::uint64_t, std::uint64_t) { return false; }).code() == CAIRN_STATUS_CANCELLED);
}

TEST_CASE("a plan refuses what a reader would refuse") {
  ContainerPlan plan(ContainerKind::kModel);
  CHECK(plan.add("", DType::kF32, {1}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("A", DType::kF32, {1}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add(std::string(257, 'a'), DType::kF32, {1}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("a", DType::kF32, {}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("a", DType::kF32, {1, 1, 1, 1, 1, 1, 1}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("a", DType::kF32, {0}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("a", DType::kF32, {-1}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("a", DType::kF32, {INT32_MAX, INT32_MAX, INT32_MAX}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("a", DType::kF32, {INT32_MAX, 1 << 14}).code() == CAIRN_STATUS_LIMIT_EXCEEDED);
  CHECK(plan.add("a", static_cast<DType>(77), {1}).code() == CAIRN_STATUS_INVALID_ARGUMENT);
  CHECK(plan.add("a", DType::kF32, {1}).ok());
  CHECK(plan.add("a", DType::kF32, {2}).ok());
  CHECK(plan.finish().code() == CAIRN_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("a container may hold sections of more than 4 GiB and 2^31 elements") {
  const TemporaryFolder folder;
  const std::vector<std::byte> zeros(64 << 20);
  std::uint64_t total_bytes = 0;
  {
    ContainerPlan plan(ContainerKind::kSnapshot);
    REQUIRE(plan.add("huge", DType::kBF16, {2, 17, 1 << 26}).ok());  // 4.25 GiB, 2.3 * 10^9 elements
    REQUIRE(plan.add("later", DType::kU8, {3}).ok());
    REQUIRE(plan.finish().ok());
    flatbuffers::FlatBufferBuilder builder;
    const auto sections = build_sections(builder, plan);
    const schema::Digest digest;
    schema::FinishSnapshotHeaderBuffer(
        builder, schema::CreateSnapshotHeader(builder, sections, builder.CreateString("test"), &digest,
                                              builder.CreateString("model"), 0, 0, 0, 0, false, false,
                                              builder.CreateVector(std::vector<flatbuffers::Offset<schema::Slot>>())));
    auto file = AtomicFile::create(folder / "huge");
    REQUIRE(file.ok());
    FileSink sink(file.value());
    ContainerWriter writer(plan, sink);
    REQUIRE(writer.begin(builder.GetBufferPointer(), builder.GetSize()).ok());
    for (int i = 0; i < 68; ++i) REQUIRE(writer.write(zeros.data(), zeros.size()).ok());
    REQUIRE(writer.write("abc", 3).ok());
    REQUIRE(writer.finish().ok());
    REQUIRE(file.value().commit({AtomicFile::Verify::kNever}).ok());
    total_bytes = plan.total_bytes(builder.GetSize());
  }
  CHECK(std::filesystem::file_size(folder / "huge") == total_bytes);
  for (const FileAccess access : {FileAccess::kMap, FileAccess::kPositional}) {
    auto source = file_source(folder / "huge", access);
    REQUIRE(source.ok());
    auto reader = ContainerReader::open(source.value(), ContainerKind::kSnapshot);
    REQUIRE_MESSAGE(reader.ok(), reader.status().message());
    CHECK(reader.value().find("huge")->size_bytes == 68ULL << 26);
    char tail[3];
    CHECK(reader.value().read(*reader.value().find("later"), tail).ok());
    CHECK(std::string(tail, 3) == "abc");
    std::vector<std::byte> block(1 << 20, std::byte{1});
    CHECK(reader.value().read_blocks(*reader.value().find("huge"), (68ULL << 26) - (1 << 20), block.data(), block.size()).ok());
    CHECK(block.back() == std::byte{0});
  }
}

}  // namespace cairn::test
