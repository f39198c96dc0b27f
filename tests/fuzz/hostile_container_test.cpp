// Cases 1-13 of the bad-input list, for both kinds of files: each is refused with a status, one line of text, and no growth.
#include <doctest/doctest.h>

#include <set>

#include "runtime/model/cairn_file_reader.h"
#include "runtime/model/container_reader.h"
#include "runtime/support/allocator.h"
#include "tests/fuzz/sealed_file.h"

namespace cairn::test {
namespace {

struct Kind {
  ContainerKind kind;
  Bytes good;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll = {{ContainerKind::kModel, good_quantized_file()}, {ContainerKind::kSnapshot, good_snapshot_file()}};
  return kAll;
}

/// Opens and verifies everything; checks that memory is given back and the message is one line.
Status open_all(ContainerKind kind, const Bytes& bytes) {
  const std::uint64_t live = allocator_counters().live_bytes;
  Status status;
  if (kind == ContainerKind::kModel) {
    status = read_cairn_memory(bytes.data(), bytes.size()).status();
  } else {
    const auto reader = ContainerReader::open(memory_source(bytes.data(), bytes.size()), kind);
    status = reader.ok() ? reader.value().verify_payload() : reader.status();
  }
  CHECK(allocator_counters().live_bytes == live);
  if (!status.ok()) {
    CHECK_FALSE(status.message().empty());
    CHECK(status.message().find('\n') == std::string::npos);
    const std::set<cairn_status> allowed = {CAIRN_STATUS_FORMAT, CAIRN_STATUS_CHECKSUM, CAIRN_STATUS_VERSION, CAIRN_STATUS_LIMIT_EXCEEDED};
    CHECK_MESSAGE(allowed.contains(status.code()), status.message());
  }
  return status;
}

std::string refusal(ContainerKind kind, const Bytes& bytes, cairn_status code) {
  const Status status = open_all(kind, bytes);
  CHECK_MESSAGE(status.code() == code, status.message());
  return status.message();
}

bool contains(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  CHECK_MESSAGE(found, text);
  return found;
}

Bytes truncated(const Bytes& bytes, std::size_t size) { return Bytes(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)); }

}  // namespace

TEST_CASE("the good files are good, and opening the wrong kind says so") {
  for (const Kind& k : kinds()) CHECK_MESSAGE(open_all(k.kind, k.good).ok(), open_all(k.kind, k.good).message());
  contains(refusal(ContainerKind::kModel, kinds()[1].good, CAIRN_STATUS_FORMAT), "this is a snapshot, not a model");
  contains(refusal(ContainerKind::kSnapshot, kinds()[0].good, CAIRN_STATUS_FORMAT), "this is a model, not a snapshot");
}

TEST_CASE("every truncation is refused, also when the length is mended (cases 1-4)") {
  for (const Kind& k : kinds()) {
    for (std::size_t size = 0; size < std::min<std::size_t>(k.good.size(), 65536); ++size) {
      REQUIRE(open_all(k.kind, truncated(k.good, size)).code() == CAIRN_STATUS_FORMAT);
    }
    for (std::size_t size = 128; size < k.good.size(); size += 37) {
      Bytes mended = truncated(k.good, size);
      store_number(mended, 48, 8, size);
      reseal(mended);
      REQUIRE_FALSE(open_all(k.kind, mended).ok());
    }
  }
}

TEST_CASE("truncation at every section border is refused, also when the length is mended") {
  for (const Kind& k : kinds()) {
    const auto reader = ContainerReader::open(memory_source(k.good.data(), k.good.size()), k.kind);
    REQUIRE(reader.ok());
    for (const Section& section : reader.value().sections()) {
      for (const std::uint64_t border : {section.offset_bytes, section.offset_bytes + section.size_bytes}) {
        for (const int shift : {-1, 0, 1}) {
          Bytes cut = truncated(k.good, static_cast<std::size_t>(border) + static_cast<std::size_t>(shift));
          REQUIRE_FALSE(open_all(k.kind, cut).ok());
          store_number(cut, 48, 8, cut.size());
          reseal(cut);
          REQUIRE_FALSE(open_all(k.kind, cut).ok());
        }
      }
    }
  }
}

TEST_CASE("other formats are recognised by name (case 5)") {
  const auto named = [](const std::string& start) {
    Bytes bytes(start.begin(), start.end());
    bytes.resize(200);
    return refusal(ContainerKind::kModel, bytes, CAIRN_STATUS_FORMAT);
  };
  contains(named("GGUF"), "GGUF");
  contains(named("PK\x03\x04"), "ZIP");
  contains(named("\x7f" "ELF"), "ELF");
  contains(named("%PDF-1.4"), "PDF");
  contains(named(std::string("\x40\0\0\0\0\0\0\0{\"a\"", 12)), "safetensors");
  contains(named("hello, world"), "first bytes are 68 65 6c 6c");
  contains(named(std::string(64, '\xff')), "ff ff ff ff");
  contains(named(std::string(64, '\0')), "00 00 00 00");
}

TEST_CASE("versions, flags and byte order are told apart (cases 6-8)") {
  for (const Kind& k : kinds()) {
    const auto changed = [&](std::size_t offset, int size, std::uint64_t value) {
      Bytes bytes = k.good;
      store_number(bytes, offset, size, value);
      reseal(bytes);
      return bytes;
    };
    contains(refusal(k.kind, changed(12, 2, 2), CAIRN_STATUS_VERSION), "format version 2.0 (this library reads 1.x)");
    contains(refusal(k.kind, changed(12, 2, 0), CAIRN_STATUS_VERSION), "format version 0.0");
    contains(refusal(k.kind, changed(20, 4, 0x00010000), CAIRN_STATUS_VERSION), "flags 0x00010000");
    CHECK(open_all(k.kind, changed(14, 2, 7)).ok());          // a newer minor version is read
    CHECK(open_all(k.kind, changed(20, 4, 0x00000001)).ok());  // and a flag that is not critical
    contains(refusal(k.kind, changed(16, 4, 0x04030201), CAIRN_STATUS_FORMAT), "big-endian");
    contains(refusal(k.kind, changed(16, 4, 77), CAIRN_STATUS_FORMAT), "byte order mark");
    contains(refusal(k.kind, changed(8, 4, 77), CAIRN_STATUS_FORMAT), "unknown kind");
  }
}

TEST_CASE("lengths must agree with the file (cases 9, 10)") {
  for (const Kind& k : kinds()) {
    const std::uint64_t header = load_number(k.good, 24, 4), payload = load_number(k.good, 32, 8);
    const auto changed = [&](std::size_t offset, int size, std::uint64_t value) {
      Bytes bytes = k.good;
      store_number(bytes, offset, size, value);
      reseal(bytes);
      return bytes;
    };
    for (const std::uint64_t value : {std::uint64_t{0}, std::uint64_t{0xffffffff}, header + 64, (std::uint64_t{16} << 20) + 1, k.good.size() + 0}) {
      CHECK(refusal(k.kind, changed(24, 4, value), CAIRN_STATUS_FORMAT).size() > 0);
    }
    for (const std::uint64_t value : {std::uint64_t{0}, payload - 64, payload + 1, payload + 64, ~std::uint64_t{0}, ~std::uint64_t{63}}) {
      CHECK(refusal(k.kind, changed(32, 8, value), CAIRN_STATUS_FORMAT).size() > 0);
    }
    for (const std::uint64_t value : {std::uint64_t{0}, load_number(k.good, 40, 8) + 1, load_number(k.good, 40, 8) - 1, ~std::uint64_t{0}}) {
      CHECK(refusal(k.kind, changed(40, 8, value), CAIRN_STATUS_FORMAT).size() > 0);
    }
    for (const std::uint64_t value : {k.good.size() + 1, k.good.size() - 1, std::uint64_t{0}, ~std::uint64_t{0}}) {
      contains(refusal(k.kind, changed(48, 8, value), CAIRN_STATUS_FORMAT), "its preamble says");
    }
    CHECK(refusal(k.kind, changed(28, 4, load_number(k.good, 28, 4) + 1), CAIRN_STATUS_FORMAT).size() > 0);
    Bytes longer = k.good;
    longer.push_back(0);
    CHECK(refusal(k.kind, longer, CAIRN_STATUS_FORMAT).size() > 0);
    store_number(longer, 48, 8, longer.size());
    reseal(longer);
    CHECK(refusal(k.kind, longer, CAIRN_STATUS_FORMAT).size() > 0);
  }
}

TEST_CASE("every flipped bit of preamble, header, checksums and trailer is refused (cases 11, 13)") {
  for (const Kind& k : kinds()) {
    const std::uint64_t payload_begin = load_number(k.good, 32, 8), payload_end = payload_begin + load_number(k.good, 40, 8);
    Bytes bytes = k.good;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      if (i >= payload_begin && i < payload_end) continue;
      for (int bit = 0; bit < 8; ++bit) {
        bytes[i] ^= static_cast<std::uint8_t>(1 << bit);
        const bool refused = !ContainerReader::open(memory_source(bytes.data(), bytes.size()), k.kind).ok();
        // The padding between payload and checksums is read with the payload.
        const bool is_late = !refused && !open_all(k.kind, bytes).ok();
        const bool is_refused = refused || is_late;
        REQUIRE_MESSAGE(is_refused, "byte ", i, " bit ", bit);
        bytes[i] ^= static_cast<std::uint8_t>(1 << bit);
      }
    }
  }
}

TEST_CASE("a flipped bit anywhere in the payload is found, and the message tells where (case 12)") {
  for (const Kind& k : kinds()) {
    const std::uint64_t begin = load_number(k.good, 32, 8), end = begin + load_number(k.good, 40, 8);
    const std::uint64_t step = k.kind == ContainerKind::kModel ? 29 : 1;
    Bytes bytes = k.good;
    for (std::size_t i = begin; i < end; i += step) {
      bytes[i] ^= static_cast<std::uint8_t>(1 << i % 8);
      const Status status = open_all(k.kind, bytes);
      REQUIRE_MESSAGE((status.code() == CAIRN_STATUS_CHECKSUM || status.code() == CAIRN_STATUS_FORMAT), "byte ", i);
      bytes[i] ^= static_cast<std::uint8_t>(1 << i % 8);
    }
  }
}

TEST_CASE("a header that claims much costs little") {
  // 64 MiB of header in a file of 200 bytes, and sections of terabytes: refused before anything is allocated.
  Bytes claims = kinds()[1].good;
  store_number(claims, 24, 4, 64 << 20);
  reseal(claims);
  const AllocatorCounters before = allocator_counters();
  CHECK_FALSE(open_all(ContainerKind::kSnapshot, claims).ok());
  CHECK(allocator_counters().peak_bytes <= std::max<std::uint64_t>(before.peak_bytes, before.live_bytes + (64 << 20)));
}

}  // namespace cairn::test
