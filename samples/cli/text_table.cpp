#include "text_table.h"

#include <algorithm>

namespace cairn_cli {

std::string TextTable::text() const {
  std::vector<size_t> widths(rows_[0].size());
  for (const auto& row : rows_) {
    for (size_t column = 0; column < row.size(); ++column) widths[column] = std::max(widths[column], row[column].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line = "  ";
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - row[column].size(), ' ');
      line += (column == 0 ? "" : "  ") + (column < left_columns_ ? row[column] + padding : padding + row[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace cairn_cli
