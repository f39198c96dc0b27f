// PNG (RFC 2083) with stored deflate blocks (RFC 1951, 3.2.4): no compression, so no dependency.
#include "png_writer.h"

#include <algorithm>
#include <fstream>

namespace cairn_cli {

static void append_u32(std::string& out, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift & 0xff));
}

static uint32_t crc32(const std::string& data) {
  uint32_t crc = 0xffffffff;
  for (const char byte : data) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320 : crc >> 1;
  }
  return ~crc;
}

static uint32_t adler32(const std::string& data) {
  uint32_t low = 1, high = 0;
  for (const char byte : data) {
    low = (low + static_cast<uint8_t>(byte)) % 65521;
    high = (high + low) % 65521;
  }
  return high << 16 | low;
}

static void append_chunk(std::string& out, const std::string& type, const std::string& data) {
  append_u32(out, static_cast<uint32_t>(data.size()));
  out += type + data;
  append_u32(out, crc32(type + data));
}

static std::string zlib_stored(const std::string& data) {
  std::string out = "\x78\x01";
  constexpr size_t kMaxBlock = 65535;
  for (size_t begin = 0; begin < data.size(); begin += kMaxBlock) {
    const size_t size = std::min(kMaxBlock, data.size() - begin);
    out.push_back(begin + size == data.size() ? 1 : 0);
    for (const size_t word : {size, ~size}) {
      out.push_back(static_cast<char>(word & 0xff));
      out.push_back(static_cast<char>(word >> 8 & 0xff));
    }
    out.append(data, begin, size);
  }
  append_u32(out, adler32(data));
  return out;
}

bool write_png(const std::string& path, int width, int height, const std::vector<uint8_t>& pixels) {
  std::string header;
  append_u32(header, static_cast<uint32_t>(width));
  append_u32(header, static_cast<uint32_t>(height));
  header += std::string("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB, deflate, no filter method, not interlaced
  std::string rows;
  const size_t row_bytes = static_cast<size_t>(width) * 3;
  for (size_t row = 0; row < static_cast<size_t>(height); ++row) {
    rows.push_back(0);  // filter: none
    rows.append(reinterpret_cast<const char*>(pixels.data() + row * row_bytes), row_bytes);
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "IDAT", zlib_stored(rows));
  append_chunk(png, "IEND", "");
  std::ofstream file(path, std::ios::binary);
  file << png;
  return static_cast<bool>(file.flush());
}

}  // namespace cairn_cli
