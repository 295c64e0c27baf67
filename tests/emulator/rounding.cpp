#include "tests/emulator/rounding.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/emulator/runtime.h"

namespace emulator {

namespace {

constexpr int kDepth = 16, kNone = -1000;

int exponent(float x) {
  const auto bits = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23 & 255u);
  return std::max(bits, 1) - 127;  // of subnormal numbers, the least
}

// Of `count` products at once; extra: bits below the last of f32 that an addend keeps.
float block_sum(float c, const float* a, const float* b, int stride, int count, int extra) {
  int top = c == 0 ? kNone : exponent(c);
  double plain = c;
  for (int k = 0; k < count; ++k) {
    const double product = static_cast<double>(a[k]) * b[k * stride];
    plain += product;
    if (product != 0) top = std::max(top, exponent(a[k]) + exponent(b[k * stride]));
  }
  if (top == kNone || !std::isfinite(plain)) return static_cast<float>(plain);
  const double scale = std::ldexp(1.0, 23 + extra - top);
  auto sum = static_cast<int64_t>(static_cast<double>(c) * scale);  // which cuts off
  for (int k = 0; k < count; ++k) sum += static_cast<int64_t>(static_cast<double>(a[k]) * b[k * stride] * scale);
  const double exact = static_cast<double>(sum) / scale;
  const auto nearest = static_cast<float>(exact);
  return std::fabs(nearest) > std::fabs(exact) ? std::nextafterf(nearest, 0.0f) : nearest;
}

}  // namespace

bool device_rounding() {
  static const bool asked = [] {
    const char* text = std::getenv("QENG_EMULATOR_ROUNDING");
    return text && std::string(text) != "0";
  }();
  return asked;
}

float tensor_sum(float c, const float* a, const float* b, int stride) {
  static const bool hopper = capability() >= 90;
  const int count = hopper ? 16 : 8;
  for (int k = 0; k < kDepth; k += count) c = block_sum(c, a + k, b + k * stride, stride, count, hopper ? 2 : 1);
  return c;
}

float off_by(float x, float y, float units) {
  if (!device_rounding() || !std::isfinite(y) || y == 0 || y == 1) return y;
  const uint32_t mixed = std::bit_cast<uint32_t>(x) * 0x9e3779b1u;
  const float share = static_cast<float>(mixed >> 8) * 0x1p-23f - 1.0f;  // -1 .. 1
  return y + std::round(units * share) * (std::nextafterf(std::fabs(y), INFINITY) - std::fabs(y));
}

}  // namespace emulator
