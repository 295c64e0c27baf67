// Real: a float64 value that carries how far an f32 evaluation of the same formula may be from it. `error` is a running
// first-order bound in units of 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 3.3): each operation
// adds half an ulp of its result to what its operands bring along. So every tolerance of the conformance test comes
// from the formula and the numbers at hand. With double instead of Real the same templates give the plain float64
// reference.
#pragma once
#include <algorithm>
#include <cmath>

namespace qeng::conformance {

struct Real {
  double value = 0, error = 0;
  Real() = default;
  Real(double v) : value(v) {}  // NOLINT: numbers convert, exactly
  Real(double v, double e) : value(v), error(e) {}
};

inline Real rounded(double v, double e) { return {v, e + std::fabs(v)}; }
inline Real operator+(Real a, Real b) { return rounded(a.value + b.value, a.error + b.error); }
inline Real operator-(Real a, Real b) { return rounded(a.value - b.value, a.error + b.error); }
inline Real operator-(Real a) { return {-a.value, a.error}; }
inline Real operator*(Real a, Real b) {
  return rounded(a.value * b.value, std::fabs(a.value) * b.error + std::fabs(b.value) * a.error);
}
inline Real operator/(Real a, Real b) {
  const double q = a.value / b.value;
  return rounded(q, (a.error + std::fabs(q) * b.error) / std::fabs(b.value));
}
inline Real& operator+=(Real& a, Real b) { return a = a + b; }

// Library functions may be off by a few ulps: 4 half ulps for exp and log, 2 for sin and cos (absolute: their range is
// 1).
inline Real exp(Real a) {
  const double v = std::exp(a.value);
  return {v, v * (a.error + 4)};
}
inline Real log(Real a) {
  const double v = std::log(a.value);
  return {v, a.error / std::fabs(a.value) + 4 * std::fabs(v)};
}
inline Real sqrt(Real a) {
  const double v = std::sqrt(a.value);
  return rounded(v, v > 0 ? a.error / (2 * v) : 0);
}
inline Real cos(Real a) { return {std::cos(a.value), std::fabs(std::sin(a.value)) * a.error + 2}; }
inline Real sin(Real a) { return {std::sin(a.value), std::fabs(std::cos(a.value)) * a.error + 2}; }

inline double value_of(double a) { return a; }
inline double value_of(Real a) { return a.value; }
inline double error_of(double) { return 0; }
inline double error_of(Real a) { return a.error; }

// A value that a backend may be off by `bound`.
inline double within(double a, double) { return a; }
inline Real within(Real a, double bound) { return {a.value, a.error + bound * 0x1p24}; }

// A value that a backend may keep with less precision before it goes on: half_ulp is relative, as unit_roundoff(dtype)
// gives.
inline double kept(double a, double) { return a; }
inline Real kept(Real a, double half_ulp) { return {a.value, a.error + std::fabs(a.value) * half_ulp * 0x1p24}; }

}  // namespace qeng::conformance
