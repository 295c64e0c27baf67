// A row of a causal convolution: each channel's taps, which come from as many rows.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

// The usual row: four taps of y's own type.
template <class T>
void conv_four(const ConvTap* taps, const float* bias, T* y, int64_t n) {
  const T* rows[4];
  const float* w[4];
  for (int j = 0; j < 4; ++j) rows[j] = static_cast<const T*>(taps[j].row), w[j] = taps[j].w;
  for_lanes(n, [=](int64_t i, int64_t lanes) {
    Vec total = bias ? load(bias + i, lanes) : splat(0.0f);
    for (int j = 0; j < 4; ++j) total = fma(load(w[j] + i, lanes), load(rows[j] + i, lanes), total);
    store(y + i, total, lanes);
  });
}

// In the order of the taps, so that a row has the same bits wherever its taps lie.
void conv_row(Float type, const ConvTap* taps, int64_t count, const float* bias, void* y, int64_t n) {
  bool own = count == 4;
  for (int64_t j = 0; j < count; ++j) own = own && taps[j].type == type;
  for_type(type, [=](auto tag) {
    if (own) return conv_four(taps, bias, static_cast<decltype(tag)*>(y), n);
    auto* out = static_cast<decltype(tag)*>(y);
    for_lanes(n, [=](int64_t i, int64_t lanes) {
      Vec total = bias ? load(bias + i, lanes) : splat(0.0f);
      for (int64_t j = 0; j < count; ++j) {
        const Vec value = taps[j].type == Float::f32 ? load(static_cast<const float*>(taps[j].row) + i, lanes)
                                                     : load(static_cast<const bf16*>(taps[j].row) + i, lanes);
        total = fma(load(taps[j].w + i, lanes), value, total);
      }
      store(out + i, total, lanes);
    });
  });
}

void multiply_add(Float type, const void* a, const void* b, float* sum, int64_t n) {
  for_type(type, [=](auto tag) {
    const auto *left = static_cast<const decltype(tag)*>(a), *right = static_cast<const decltype(tag)*>(b);
    for_lanes(n, [=](int64_t i, int64_t lanes) {
      store(sum + i, fma(load(left + i, lanes), load(right + i, lanes), load(sum + i, lanes)), lanes);
    });
  });
}

}  // namespace

void fill_causal_conv(Table& table) {
  table.conv_row = conv_row;
  table.multiply_add = multiply_add;
}

}  // namespace qeng::isa::QENG_ISA
