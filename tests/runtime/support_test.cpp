#include <doctest/doctest.h>

#include <cstring>

#include "runtime/support/allocator.h"
#include "runtime/support/byte_source.h"
#include "runtime/support/checked_math.h"
#include "runtime/support/checksum.h"
#include "runtime/support/log.h"
#include "tests/runtime/file_fixture.h"

namespace cairn::test {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (std::uint8_t byte : digest) {
    char pair[3];
    std::snprintf(pair, sizeof pair, "%02x", byte);
    text += pair;
  }
  return text;
}

}  // namespace

TEST_CASE("checked arithmetic tells overflow") {
  CHECK(checked_add<std::uint64_t>(~0ULL - 1, 1) == ~0ULL);
  CHECK_FALSE(checked_add<std::uint64_t>(~0ULL, 1));
  CHECK_FALSE(checked_mul<std::uint64_t>(1ULL << 32, 1ULL << 32));
  CHECK_FALSE(checked_mul<std::int64_t>(INT64_MIN, -1));
  CHECK_FALSE(checked_cast<std::int32_t>(std::uint64_t{1} << 31));
  CHECK_FALSE(checked_cast<std::uint32_t>(-1));
  CHECK_FALSE(checked_align_up(~0ULL - 10, 64));
  CHECK(checked_align_up(65, 64) == 128);
  CHECK(range_fits(10, 0, 10));
  CHECK_FALSE(range_fits(11, 0, 10));
  CHECK_FALSE(range_fits(1, ~0ULL, 10));
}

TEST_CASE("checksums are those of the public definitions") {
  CHECK(xxh3_64("", 0) == 0x2d06800538d394c2ULL);
  CHECK(hex(blake2b_256("", 0)) == "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  CHECK(hex(blake2b_256("abc", 3)) == "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

TEST_CASE("checksums of pieces are those of the whole") {
  const std::string bytes(3000000, 'q');
  Xxh3Stream stream;
  stream.update(bytes.data(), 1);
  stream.update(bytes.data() + 1, bytes.size() - 1);

  CHECK(stream.value() == xxh3_64(bytes.data(), bytes.size()));
  const auto blocks = block_checksums(bytes.data(), bytes.size());
  REQUIRE(blocks.size() == 3);
  CHECK(blocks[2] == xxh3_64(bytes.data() + 2 * kChecksumBlockBytes, bytes.size() - 2 * kChecksumBlockBytes));
}

TEST_CASE("host memory comes from the allocator that is set, aligned and counted") {
  struct Counts {
    int taken = 0, given = 0;
    bool refuse = false;
  } counts;
  cairn_allocator table = {sizeof table, &counts,
                           [](void* user, std::size_t size, std::size_t alignment) -> void* {
                             auto& c = *static_cast<Counts*>(user);
                             if (c.refuse) return nullptr;
                             ++c.taken;
                             return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
                           },
                           [](void* user, void* memory, std::size_t) {
                             ++static_cast<Counts*>(user)->given;
                             std::free(memory);
                           }};
  const AllocatorCounters before = allocator_counters();
  REQUIRE(set_allocator(&table).ok());
  {
    Result<HostBuffer> buffer = HostBuffer::allocate(100, "test");
    REQUIRE(buffer.ok());
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.value().data()) % 64 == 0);
    CHECK(allocator_counters().live_bytes == before.live_bytes + 100);
    counts.refuse = true;
    const Status refused = HostBuffer::allocate(5, "thing").status();
    CHECK(refused.code() == CAIRN_STATUS_OUT_OF_MEMORY);
    CHECK(refused.message() == "thing: no host memory for 5 bytes");
  }
  CHECK(counts.taken == 1);
  CHECK(counts.given == 1);
  CHECK(set_allocator(nullptr).ok());
  CHECK(allocator_counters().live_bytes == before.live_bytes);
  table.release = nullptr;
  CHECK(set_allocator(&table).code() == CAIRN_STATUS_INVALID_ARGUMENT);
}

TEST_CASE("the log is silent until a callback is set, and levels are kept") {
  std::string seen;
  log_message(CAIRN_LOG_ERROR, "test", "nobody hears");
  set_log_callback([](void* user, cairn_log_level level, const char* component, const char* message) {
    *static_cast<std::string*>(user) += std::to_string(level) + component + message;
  }, &seen, CAIRN_LOG_WARNING);

  log_message(CAIRN_LOG_WARNING, "io", " %d", 7);
  log_message(CAIRN_LOG_INFO, "io", "too fine");
  set_log_callback(nullptr, nullptr, CAIRN_LOG_DEBUG);
  log_message(CAIRN_LOG_ERROR, "io", "off");

  CHECK(seen == "2io 7");
}

TEST_CASE("a source never reads past its end, whatever it is made of") {
  const TemporaryFolder folder;
  put_file(folder / "file", std::string(1000, 'x'));
  for (const FileAccess access : {FileAccess::kMap, FileAccess::kReadAll, FileAccess::kPositional}) {
    auto source = file_source(folder / "file", access);
    REQUIRE(source.ok());
    char byte = 0;
    CHECK(source.value()->read(999, &byte, 1).ok());
    CHECK(source.value()->read(1000, &byte, 0).ok());
    CHECK(source.value()->read(1000, &byte, 1).code() == CAIRN_STATUS_IO);
    CHECK(source.value()->read(~0ULL, &byte, 1).code() == CAIRN_STATUS_IO);
  }
}

TEST_CASE("a file that shrinks while it is read is an error, not a short answer") {
  const TemporaryFolder folder;
  put_file(folder / "file", std::string(1000, 'x'));
  auto source = file_source(folder / "file", FileAccess::kPositional);
  REQUIRE(source.ok());
  std::filesystem::resize_file(folder / "file", 500);
  std::string buffer(1000, '\0');

  const Status status = source.value()->read(0, buffer.data(), buffer.size());

  CHECK(status.code() == CAIRN_STATUS_IO);
  CHECK(status.message().find("ends at byte 500") != std::string::npos);
}

TEST_CASE("messages are one line, whatever a file's names hold") {
  CHECK(Status::format_error("name '%s'", "a\nb\x1b[31m").message() == "name 'a?b?[31m'");
}

}  // namespace cairn::test
