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

// The same bound for what the C library has: half ulps of the result besides what the operand brings along.
inline Real moved(double v, double slope, Real a, double half_ulps = 4) {
  return {v, std::fabs(slope) * a.error + half_ulps * std::fabs(v)};
}
inline Real expm1(Real a) { return moved(std::expm1(a.value), std::exp(a.value), a); }
inline Real log1p(Real a) { return moved(std::log1p(a.value), 1 / (1 + a.value), a); }
inline Real tanh(Real a) { return moved(std::tanh(a.value), 1 / std::pow(std::cosh(a.value), 2), a, 6); }
inline Real erf(Real a) { return moved(std::erf(a.value), 1.128379167 * std::exp(-a.value * a.value), a); }
inline Real fabs(Real a) { return {std::fabs(a.value), a.error}; }
inline Real pow(Real a, Real b) {
  const double v = std::pow(a.value, b.value);
  const double of_a = a.error == 0 ? 0 : std::fabs(b.value * std::pow(a.value, b.value - 1)) * a.error;
  const double of_b = b.error == 0 ? 0 : std::fabs(v * std::log(a.value)) * b.error;
  return {v, of_a + of_b + 16 * std::fabs(v)};
}
inline Real fmin(Real a, Real b) { return {std::fmin(a.value, b.value), std::max(a.error, b.error)}; }
inline Real fmax(Real a, Real b) { return {std::fmax(a.value, b.value), std::max(a.error, b.error)}; }

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
