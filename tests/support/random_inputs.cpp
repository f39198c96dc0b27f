#include "tests/support/random_inputs.h"

#include <cmath>

namespace cairn::test {

std::uint64_t Random::bits() {
  std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
  z = (z ^ z >> 27) * 0x94D049BB133111EBU;
  return z ^ z >> 31;
}

double Random::uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
double Random::uniform(double low, double high) { return low + (high - low) * uniform(); }

double Random::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));
  return radius * std::cos(6.283185307179586 * uniform());
}

std::vector<float> Random::normals(std::size_t count, double scale, double shift) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(shift + scale * normal());
  return values;
}

std::vector<float> Random::uniforms(std::size_t count, double low, double high) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(uniform(low, high));
  return values;
}

std::vector<float> Random::unit_rows(std::size_t rows, std::size_t dim) {
  std::vector<float> values = normals(rows * dim);
  for (std::size_t r = 0; r < rows; ++r) {
    double square = 1e-6;
    for (std::size_t d = 0; d < dim; ++d) square += static_cast<double>(values[r * dim + d]) * values[r * dim + d];
    for (std::size_t d = 0; d < dim; ++d)
      values[r * dim + d] = static_cast<float>(values[r * dim + d] / std::sqrt(square));
  }
  return values;
}

std::vector<float> Random::log_decays(std::size_t count, bool harsh) {
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(-std::exp(uniform(-7, 1)));
    const double kind = harsh ? uniform() : 1;
    if (kind < 0.08)
      value = -1e4F;
    else if (kind < 0.12)
      value = -200;
    else if (kind < 0.22)
      value = 0;
  }
  return values;
}

}  // namespace cairn::test
