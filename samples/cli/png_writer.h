// Writes an RGB picture as a PNG file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cairn_cli {

/// @param pixels  width * height * 3 bytes, rows from the top
/// @return false when the file could not be written
bool write_png(const std::string& path, int width, int height, const std::vector<uint8_t>& pixels);

}  // namespace cairn_cli
