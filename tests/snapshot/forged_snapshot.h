// A snapshot taken apart, so that a test can change it and put it together with right checksums.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "tests/support/agent_bench.h"

namespace cairn::test {

struct ForgedSnapshot {
  struct Array {
    DType dtype;
    std::vector<std::int64_t> shape;
    Bytes bytes;
  };
  SnapshotContents contents;
  std::map<std::string, Array> sections;

  /// Of a good snapshot.
  static ForgedSnapshot of(const Bytes& bytes);
  /// Header and sections as they are now, whatever they say; sizes of sections follow their shapes.
  Bytes build() const;

  SnapshotSlot& slot(const std::string& end_of_name);
  Array& section(const std::string& end_of_name);
  std::int32_t* integers(const std::string& end_of_name) { return reinterpret_cast<std::int32_t*>(section(end_of_name).bytes.data()); }
  float* floats(const std::string& end_of_name) { return reinterpret_cast<float*>(section(end_of_name).bytes.data()); }
};

}  // namespace cairn::test
