// Writes the good files of this room into a folder, for readers in other languages. Usage: write_good_files FOLDER
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/fuzz/sealed_file.h"

int main(int argc, char** argv) {
  using namespace cairn::test;
  if (argc != 2) return 2;
  const std::pair<const char*, Bytes> files[] = {
      {"model.cairn", good_model_file()}, {"quantized.cairn", good_quantized_file()}, {"snapshot.cairnstate", good_snapshot_file()}};
  for (const auto& [name, bytes] : files) {
    std::ofstream file(std::string(argv[1]) + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) return 1;
  }
  return 0;
}
