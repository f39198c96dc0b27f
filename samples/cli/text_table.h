// A table in the terminal: the first columns to the left, the others to the right.
#pragma once

#include <string>
#include <vector>

namespace cairn_cli {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header, size_t left_columns = 1)
      : rows_{std::move(header)}, left_columns_(left_columns) {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  size_t left_columns_;
};

}  // namespace cairn_cli
