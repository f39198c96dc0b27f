// Deterministic random inputs for operator tests.
#pragma once

#include <cstdint>
#include <vector>

namespace cairn::test {

/// SplitMix64; the same seed gives the same numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits();
  double uniform();  ///< [0, 1)
  double uniform(double low, double high);
  double normal();

  std::vector<float> normals(std::size_t count, double scale = 1, double shift = 0);
  std::vector<float> uniforms(std::size_t count, double low, double high);
  /// Rows of `dim` normals, each divided by its length: keys and queries after l2.
  std::vector<float> unit_rows(std::size_t rows, std::size_t dim);
  /// Log-decays as models have them: most mild, a few strong; with `harsh` also runs of 0, -200 and -1e4.
  std::vector<float> log_decays(std::size_t count, bool harsh);

 private:
  std::uint64_t state_;
};

}  // namespace cairn::test
