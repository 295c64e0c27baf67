// What belongs to adapters and to fine-tuning alone: DoRA's scales, and NEFTune's noise.
#pragma once
#include <cmath>

#include "tests/conformance/reference_dropout.h"
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const EmbeddingNoise& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> x = sheet.in(op.x);
  const auto rng = sheet.integers(op.rng), cu = sheet.integers(op.cu);
  Array<T>& y = sheet.out(op.y);
  const int64_t n = op.x.columns(), rows = op.x.rows();
  for (int64_t t = 0; t < rows; ++t) {
    int64_t length = rows;
    for (size_t d = 1; d < cu.size(); ++d)
      if (cu[d - 1] <= t && t < cu[d]) length = cu[d] - cu[d - 1];
    const T strength = T(op.strength) / sqrt(T(static_cast<double>(length * n)));
    for (int64_t i = 0; i < n; ++i) {
      const double u = philox_uniform(static_cast<uint64_t>(rng[0]), static_cast<uint64_t>(rng[1]), op.stream,
                                      static_cast<uint64_t>(t * n + i));
      y(t, i) = x(t, i) + strength * T(2 * u - 1);
    }
  }
}

template <class T>
void reference(const DoraScale& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> squares = sheet.in(op.squares), magnitude = sheet.in(op.magnitude), b = sheet.in(op.b),
                 cross = sheet.in(op.cross);
  Array<T>&inverse = sheet.out(op.inverse), &scale = sheet.out(op.scale);
  for (int64_t i = 0; i < squares.size(); ++i) {
    T sum = T(0);
    for (int64_t k = 0; k < b.shape[1]; ++k) sum += b(i, k) * cross(k, i);
    inverse[i] = T(1) / sqrt(squares[i] + sum);
    scale[i] = magnitude[i] * inverse[i];
  }
}

}  // namespace qeng::conformance
