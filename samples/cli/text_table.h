// A table in the terminal: the first column to the left, the others to the right.
#pragma once

#include <string>
#include <vector>

namespace cairn_cli {

class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace cairn_cli
