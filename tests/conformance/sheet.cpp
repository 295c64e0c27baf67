#include "tests/conformance/sheet.h"

#include <cstring>

#include "kernels/blocks.h"

namespace qeng::conformance {
namespace {

struct Format {
  int digits, min_exponent,
      max_exponent;  // significant bits; 2^min_exponent is the least normal; finite below 2^max_exponent
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return {24, -126, 128};
    case DType::bf16: return {8, -126, 128};
    case DType::f16: return {11, -14, 16};
    default: throw std::logic_error("not a float dtype");
  }
}

template <class T>
T load(const View& view, int64_t i) {
  T x;
  std::memcpy(&x, static_cast<const char*>(view.data) + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return x;
}
template <class T>
void put(const View& view, int64_t i, T x) {
  std::memcpy(static_cast<char*>(view.data) + static_cast<size_t>(i) * sizeof(T), &x, sizeof(T));
}

// IEEE binary layouts by arithmetic: sign, exponent field, fraction.
double from_bits(uint32_t bits, Format format, int exponent_bits) {
  const int fraction_bits = format.digits - 1;
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1),
                 field = (bits >> fraction_bits) & ((1u << exponent_bits) - 1);
  const double sign = (bits >> (fraction_bits + exponent_bits)) & 1 ? -1 : 1;
  if (field == (1u << exponent_bits) - 1) return fraction ? std::nan("") : sign * INFINITY;
  const double significand = field ? 1 + std::ldexp(fraction, -fraction_bits) : std::ldexp(fraction, -fraction_bits);
  return sign *
         std::ldexp(significand, field ? static_cast<int>(field) - 1 + format.min_exponent : format.min_exponent);
}

uint16_t to_bits(double value, Format format, int exponent_bits) {
  const int fraction_bits = format.digits - 1;
  const uint32_t sign = std::signbit(value) ? 1u << (fraction_bits + exponent_bits) : 0;
  const uint32_t infinity = ((1u << exponent_bits) - 1) << fraction_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(infinity | 1u << (fraction_bits - 1));
  const double magnitude = std::fabs(value);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | infinity);
  if (magnitude < std::ldexp(1, format.min_exponent))
    return static_cast<uint16_t>(sign |
                                 static_cast<uint32_t>(std::ldexp(magnitude, fraction_bits - format.min_exponent)));
  const int exponent = std::ilogb(magnitude);
  const auto fraction = static_cast<uint32_t>(std::ldexp(magnitude, fraction_bits - exponent)) - (1u << fraction_bits);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent - format.min_exponent + 1) << fraction_bits |
                               fraction);
}

}  // namespace

double decode(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::f32: return load<float>(view, i);
    case DType::bf16: return from_bits(load<uint16_t>(view, i), format_of(DType::bf16), 8);
    case DType::f16: return from_bits(load<uint16_t>(view, i), format_of(DType::f16), 5);
    case DType::i32: return load<int32_t>(view, i);
    case DType::i64: return static_cast<double>(load<int64_t>(view, i));
    case DType::u8: return load<uint8_t>(view, i);
    default: break;
  }
  // A block format: by the scalar decoder, which tests/unit/blocks_test.cpp compares with other programs'.
  const int64_t columns = view.columns();
  float value;
  decode_row(view.dtype,
             static_cast<const char*>(view.data) + static_cast<size_t>(i / columns) * dtype_bytes(view.dtype, columns),
             i % columns, 1, &value);
  return value;
}

double round_to(DType dtype, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const Format format = format_of(dtype);
  const int step = std::max(std::ilogb(value), format.min_exponent) - format.digits + 1;
  const double result = std::ldexp(std::nearbyint(std::ldexp(value, -step)), step);
  return std::fabs(result) < std::ldexp(1, format.max_exponent) ? result : std::copysign(INFINITY, value);
}

void encode(const View& view, int64_t i, double value) {
  switch (view.dtype) {
    case DType::f32: return put(view, i, static_cast<float>(value));
    case DType::bf16: return put(view, i, to_bits(round_to(DType::bf16, value), format_of(DType::bf16), 8));
    case DType::f16: return put(view, i, to_bits(round_to(DType::f16, value), format_of(DType::f16), 5));
    case DType::i32: return put(view, i, static_cast<int32_t>(value));
    case DType::i64: return put(view, i, static_cast<int64_t>(value));
    case DType::u8: return put(view, i, static_cast<uint8_t>(value));
    default: throw std::logic_error("a block format has no single elements");
  }
}

double unit_roundoff(DType dtype) { return is_block(dtype) ? 0 : std::ldexp(1, -format_of(dtype).digits); }

}  // namespace qeng::conformance
