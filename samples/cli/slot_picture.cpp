#include "slot_picture.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "png_writer.h"

namespace cairn_cli {

static constexpr int kMaxSide = 64;
static constexpr int kCellPixels = 6;
static constexpr int kGapPixels = 12;

static SlotTile tile_of(const uint8_t* written, int64_t slots, int layer, int head) {
  SlotTile tile;
  tile.layer = layer;
  tile.head = head;
  tile.slots_total = static_cast<uint64_t>(slots);
  const auto table_side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(slots))));
  tile.side = static_cast<int>(std::min<int64_t>(table_side, kMaxSide));
  std::vector<int> used(static_cast<size_t>(tile.side * tile.side)), all(used.size());
  for (int64_t slot = 0; slot < slots; ++slot) {
    const int64_t row = slot / table_side * tile.side / table_side;
    const int64_t column = slot % table_side * tile.side / table_side;
    const auto cell = static_cast<size_t>(row * tile.side + column);
    ++all[cell];
    used[cell] += written[slot];
    tile.slots_written += written[slot];
  }
  for (size_t cell = 0; cell < used.size(); ++cell) {
    tile.cells.push_back(all[cell] == 0 ? 0.f : static_cast<float>(used[cell]) / static_cast<float>(all[cell]));
  }
  return tile;
}

std::vector<SlotTile> slot_tiles(const Session& session, cairn_state* state) {
  std::vector<SlotTile> tiles;
  for (int layer = 0; layer < session.info().layer_count; ++layer) {
    cairn_layer_info info = CAIRN_LAYER_INFO_INIT;
    check(cairn_model_get_layer_info(session.model(), layer, &info), "layer");
    if (info.slots == 0) continue;
    size_t count = 0;
    const cairn_status sized = cairn_state_get_written_slots(state, layer, nullptr, &count);
    if (sized != CAIRN_STATUS_BUFFER_TOO_SMALL) check(sized, "slots");
    std::vector<uint8_t> written(count);
    check(cairn_state_get_written_slots(state, layer, written.data(), &count), "slots");
    const int64_t heads = static_cast<int64_t>(count) / info.slots;
    for (int64_t head = 0; head < heads; ++head) {
      tiles.push_back(tile_of(written.data() + head * info.slots, info.slots, layer, static_cast<int>(head)));
    }
  }
  return tiles;
}

/// Index one past the tiles of the same layer.
static size_t end_of_layer(const std::vector<SlotTile>& tiles, size_t begin) {
  size_t end = begin;
  while (end < tiles.size() && tiles[end].layer == tiles[begin].layer) ++end;
  return end;
}

static const char* half_block(float upper, float lower) {
  const bool up = upper > 0, down = lower > 0;
  if (up && down) return "█";
  if (up) return "▀";
  return down ? "▄" : "·";
}

std::string terminal_picture(const std::vector<SlotTile>& tiles) {
  std::ostringstream out;
  for (size_t begin = 0; begin < tiles.size();) {
    const size_t end = end_of_layer(tiles, begin);
    out << "layer " << tiles[begin].layer << ":";
    for (size_t i = begin; i < end; ++i) {
      out << "  head " << tiles[i].head << ": " << with_commas(tiles[i].slots_written) << " of "
          << with_commas(tiles[i].slots_total) << " slots written";
    }
    out << "\n";
    const int side = tiles[begin].side;
    for (int row = 0; row < side; row += 2) {
      for (size_t i = begin; i < end; ++i) {
        out << "  ";
        for (int column = 0; column < side; ++column) {
          const float lower = row + 1 < side ? tiles[i].cells[static_cast<size_t>((row + 1) * side + column)] : 0.f;
          out << half_block(tiles[i].cells[static_cast<size_t>(row * side + column)], lower);
        }
      }
      out << "\n";
    }
    begin = end;
  }
  return out.str();
}

/// Calls draw(tile, x, y) with the place of each tile; returns the size of the whole.
template <typename Draw>
static std::pair<int, int> place_tiles(const std::vector<SlotTile>& tiles, const Draw& draw) {
  int width = 0, y = kGapPixels;
  for (size_t begin = 0; begin < tiles.size();) {
    const size_t end = end_of_layer(tiles, begin);
    int x = kGapPixels;
    for (size_t i = begin; i < end; ++i) {
      draw(tiles[i], x, y);
      x += tiles[i].side * kCellPixels + kGapPixels;
    }
    width = std::max(width, x);
    y += tiles[begin].side * kCellPixels + kGapPixels;
    begin = end;
  }
  return {width, y};
}

struct Color {
  uint8_t red, green, blue;
};

/// Empty cells light grey, used ones blue, deeper the more of their slots were written.
static Color color_of(float share) {
  if (share <= 0) return {232, 234, 237};
  const auto mix = [share](int light, int dark) { return static_cast<uint8_t>(light + (dark - light) * share); };
  return {mix(140, 16), mix(190, 78), mix(240, 160)};
}

static void write_png_picture(const std::vector<SlotTile>& tiles, const std::string& path) {
  const auto [width, height] = place_tiles(tiles, [](const SlotTile&, int, int) {});
  std::vector<uint8_t> pixels(static_cast<size_t>(width) * static_cast<size_t>(height) * 3, 255);
  const int row_pixels = width;
  place_tiles(tiles, [&](const SlotTile& tile, int x, int y) {
    const int size = tile.side * kCellPixels;
    for (int row = 0; row < size; ++row) {
      for (int column = 0; column < size; ++column) {
        if (row % kCellPixels == 0 || column % kCellPixels == 0) continue;  // a white line between cells
        const Color color = color_of(tile.cells[static_cast<size_t>(row / kCellPixels * tile.side + column / kCellPixels)]);
        uint8_t* pixel = &pixels[(static_cast<size_t>(y + row) * static_cast<size_t>(row_pixels) + static_cast<size_t>(x + column)) * 3];
        pixel[0] = color.red;
        pixel[1] = color.green;
        pixel[2] = color.blue;
      }
    }
  });
  if (!write_png(path, width, height, pixels)) throw Failure("cannot write '" + path + "'");
}

static void write_svg_picture(const std::vector<SlotTile>& tiles, const std::string& path) {
  std::ostringstream shapes;
  const auto [width, height] = place_tiles(tiles, [&](const SlotTile& tile, int x, int y) {
    shapes << "<g><title>layer " << tile.layer << ", head " << tile.head << ": " << tile.slots_written << " of "
           << tile.slots_total << " slots written</title>\n";
    for (int row = 0; row < tile.side; ++row) {
      for (int column = 0; column < tile.side; ++column) {
        const Color color = color_of(tile.cells[static_cast<size_t>(row * tile.side + column)]);
        shapes << "<rect x=\"" << x + column * kCellPixels << "\" y=\"" << y + row * kCellPixels << "\" width=\""
               << kCellPixels - 1 << "\" height=\"" << kCellPixels - 1 << "\" fill=\"rgb(" << int{color.red} << ","
               << int{color.green} << "," << int{color.blue} << ")\"/>\n";
      }
    }
    shapes << "</g>\n";
  });
  std::ofstream file(path);
  file << "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" << width << "\" height=\"" << height << "\">\n"
       << shapes.str() << "</svg>\n";
  if (!file.flush()) throw Failure("cannot write '" + path + "'");
}

void write_picture(const std::vector<SlotTile>& tiles, const std::string& path) {
  if (tiles.empty()) throw Failure("nothing to plot: the model has no slot tables");
  if (path.ends_with(".png")) return write_png_picture(tiles, path);
  if (path.ends_with(".svg")) return write_svg_picture(tiles, path);
  throw Failure("--plot '" + path + "': the name must end in .png or .svg", kExitUsage);
}

}  // namespace cairn_cli
