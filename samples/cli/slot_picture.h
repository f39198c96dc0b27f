// Which slots of the SDM tables were written, as a picture: for the terminal, as PNG, as SVG.
#pragma once

#include <string>
#include <vector>

#include "cli_session.h"

namespace cairn_cli {

/// One head of one layer: `side` x `side` cells, each the share of its slots that were written, 0..1, row-major.
struct SlotTile {
  int layer = 0;
  int head = 0;
  int side = 0;
  uint64_t slots_written = 0;
  uint64_t slots_total = 0;
  std::vector<float> cells;
};

/// Tiles of all SDM layers; tables with more than 64 x 64 slots are averaged down to that.
std::vector<SlotTile> slot_tiles(const Session& session, cairn_state* state);

/// Heads of a layer side by side, two rows of cells a line.
std::string terminal_picture(const std::vector<SlotTile>& tiles);

/// Writes *.png or *.svg: a row of tiles per layer.
void write_picture(const std::vector<SlotTile>& tiles, const std::string& path);

}  // namespace cairn_cli
