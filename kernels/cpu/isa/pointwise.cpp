// Programs of elementwise functions, step after step over registers in the cache.
#include "kernels/cpu/isa/simd/simd.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();

// log(x) = e ln 2 + f - f^2 / 2 + f^3 p(f) with x = 2^e (1 + f), f in [1 / sqrt(2) - 1, sqrt(2) - 1] and p minimax of
// degree 7 (error 6e-9).
Vec log(Vec x) {
  const Vec subnormal = less(x, splat(1.17549435e-38f));
  Vec e;
  Vec m = split_exponent(select(subnormal, x * splat(8388608.0f), x), e);
  const Vec large = less(splat(1.41421356f), m);
  m = select(large, m * splat(0.5f), m);
  e = e + large - subnormal * splat(23.0f);
  const Vec f = m - splat(1.0f);
  Vec p = fma(splat(-0.0763220862f), f, splat(0.1276082993f));
  p = fma(p, f, splat(-0.1316064745f));
  p = fma(p, f, splat(0.1420188695f));
  p = fma(p, f, splat(-0.1662332565f));
  p = fma(p, f, splat(0.2000122070f));
  p = fma(p, f, splat(-0.2500082254f));
  p = fma(p, f, splat(0.3333333135f));
  // ln 2 in two parts, the first with 10 bits
  const Vec tail = fma(e, splat(-2.12194440e-4f), fma(p * f, f * f, splat(-0.5f) * f * f));
  const Vec found = fma(e, splat(0.693359375f), f + tail);
  const Vec finite = select(less(x, splat(kInfinity)), found, x);  // infinity and NaN stay
  return select(less_equal(x, splat(0.0f)), select(equal(x, splat(0.0f)), splat(-kInfinity), splat(0.0f) / (x - x)),
                finite);
}

// Near 0 by a polynomial in x^2 (error 3e-9), elsewhere 1 - 2 / (1 + e^2x).
Vec tanh(Vec x) {
  const Vec size = max(splat(0.0f) - x, x), z = x * x;
  Vec p = fma(splat(-0.0058951504f), z, splat(0.0207959637f));
  p = fma(p, z, splat(-0.0537838265f));
  p = fma(p, z, splat(0.1333192437f));
  p = fma(p, z, splat(-0.3333329856f));
  const Vec close = fma(p * z, x, x);
  const Vec t = max(splat(-10.0f), splat(0.0f) - size);  // -|x|; 1 to the last bit beyond 10; a NaN stays
  const Vec e = exp(t + t);
  const Vec far = (splat(1.0f) - e) / (splat(1.0f) + e);
  return select(less(size, splat(0.6f)), close, select(less(x, splat(0.0f)), splat(0.0f) - far, far));
}

// The C library's function, element by element.
template <class F>
Vec each(Vec a, F f) {
  float lanes[kWidth];
  store(lanes, a);
  for (float& lane : lanes) lane = f(lane);
  return load(lanes);
}

Vec power(Vec a, Vec b) {
  float bases[kWidth], exponents[kWidth];
  store(bases, a), store(exponents, b);
  for (int i = 0; i < kWidth; ++i) bases[i] = __builtin_powf(bases[i], exponents[i]);
  return load(bases);
}

Vec with_nan(Vec a, Vec chosen) { return select(equal(a, a), chosen, a); }  // where a is none, `chosen`

template <class F>
void unary(const float* a, float* to, int64_t n, F f) {
  for_lanes(n, [=](int64_t i, int64_t lanes) { store(to + i, f(load(a + i, lanes)), lanes); });
}
template <class F>
void binary(const float* a, const float* b, float* to, int64_t n, F f) {
  for_lanes(n, [=](int64_t i, int64_t lanes) { store(to + i, f(load(a + i, lanes), load(b + i, lanes)), lanes); });
}

constexpr int64_t kBlock = 512;  // columns of a partial sum

float row_sum(const float* a, int64_t n) {
  double total = 0;
  for (int64_t first = 0; first < n; first += kBlock) {
    Vec sums = splat(0.0f);
    const int64_t count = n - first < kBlock ? n - first : kBlock;
    for_lanes(count, [&](int64_t i, int64_t lanes) { sums = sums + load(a + first + i, lanes); });
    total += static_cast<double>(sum(sums));
  }
  return static_cast<float>(total);
}

// The largest, or NaN where one is.
float row_max(const float* a, int64_t n, float sign) {
  float best = -kInfinity;
  bool ordered = true;
  int64_t i = 0;
  if (n >= kWidth) {
    Vec most = splat(-kInfinity), same = splat(1.0f);
    for (; i + kWidth <= n; i += kWidth) {
      const Vec x = load(a + i) * splat(sign);
      most = max(x, most), same = same * equal(x, x);
    }
    best = largest(most), ordered = sum(same) == static_cast<float>(kWidth);
  }
  for (; i < n; ++i) {
    const float x = sign * a[i];
    if (x > best) best = x;
    ordered = ordered && x == x;
  }
  return ordered ? sign * best : __builtin_nanf("");
}

void step(const PointwiseStep& s, float* registers, int64_t stride, int64_t rows, int64_t columns) {
  const float *a = registers + s.a * stride, *b = registers + s.b * stride, *c = registers + s.c * stride;
  float* to = registers + s.to * stride;
  const int64_t n = rows * columns;
  const auto of_rows = [=](auto f) {
    for (int64_t r = 0; r < rows; ++r) {
      const Vec value = splat(f(a + r * columns));
      float* row = to + r * columns;
      for_lanes(columns, [=](int64_t i, int64_t lanes) { store(row + i, value, lanes); });
    }
  };
  const Vec zero = splat(0.0f), one = splat(1.0f);
  switch (s.fn) {
    case Fn::input: return;
    case Fn::constant: {
      const Vec value = splat(s.value);
      return for_lanes(n, [=](int64_t i, int64_t lanes) { store(to + i, value, lanes); });
    }
    case Fn::neg: return unary(a, to, n, [=](Vec x) { return zero - x; });
    case Fn::abs: return unary(a, to, n, [=](Vec x) { return max(zero - x, x); });
    case Fn::sign: return unary(a, to, n, [=](Vec x) { return with_nan(x, less(zero, x) - less(x, zero)); });
    case Fn::exp: return unary(a, to, n, [](Vec x) { return exp(x); });
    case Fn::expm1: return unary(a, to, n, [](Vec x) { return each(x, [](float v) { return __builtin_expm1f(v); }); });
    case Fn::log: return unary(a, to, n, [](Vec x) { return log(x); });
    case Fn::log1p: return unary(a, to, n, [](Vec x) { return each(x, [](float v) { return __builtin_log1pf(v); }); });
    case Fn::sqrt: return unary(a, to, n, [](Vec x) { return sqrt(x); });
    case Fn::rsqrt: return unary(a, to, n, [=](Vec x) { return one / sqrt(x); });
    case Fn::sin: return unary(a, to, n, [](Vec x) { return each(x, [](float v) { return __builtin_sinf(v); }); });
    case Fn::cos: return unary(a, to, n, [](Vec x) { return each(x, [](float v) { return __builtin_cosf(v); }); });
    case Fn::tanh: return unary(a, to, n, [](Vec x) { return tanh(x); });
    case Fn::erf: return unary(a, to, n, [](Vec x) { return each(x, [](float v) { return __builtin_erff(v); }); });
    case Fn::sigmoid: return unary(a, to, n, [](Vec x) { return sigmoid(x); });
    case Fn::add: return binary(a, b, to, n, [](Vec x, Vec y) { return x + y; });
    case Fn::sub: return binary(a, b, to, n, [](Vec x, Vec y) { return x - y; });
    case Fn::mul: return binary(a, b, to, n, [](Vec x, Vec y) { return x * y; });
    case Fn::div: return binary(a, b, to, n, [](Vec x, Vec y) { return x / y; });
    case Fn::pow: return binary(a, b, to, n, [](Vec x, Vec y) { return power(x, y); });
    case Fn::min: return binary(a, b, to, n, [=](Vec x, Vec y) { return with_nan(x, zero - max(zero - x, zero - y)); });
    case Fn::max: return binary(a, b, to, n, [](Vec x, Vec y) { return with_nan(x, max(x, y)); });
    case Fn::less: return binary(a, b, to, n, [](Vec x, Vec y) { return less(x, y); });
    case Fn::less_equal: return binary(a, b, to, n, [](Vec x, Vec y) { return less_equal(x, y); });
    case Fn::equal: return binary(a, b, to, n, [](Vec x, Vec y) { return equal(x, y); });
    case Fn::not_equal: return binary(a, b, to, n, [=](Vec x, Vec y) { return one - equal(x, y); });
    case Fn::where:
      return for_lanes(n, [=](int64_t i, int64_t lanes) {
        store(to + i, select(load(a + i, lanes), load(b + i, lanes), load(c + i, lanes)), lanes);
      });
    case Fn::row_sum: return of_rows([=](const float* row) { return row_sum(row, columns); });
    case Fn::row_max: return of_rows([=](const float* row) { return row_max(row, columns, 1.0f); });
    case Fn::row_min: return of_rows([=](const float* row) { return row_max(row, columns, -1.0f); });
  }
}

void pointwise(const PointwiseStep* steps, int64_t count, float* registers, int64_t stride, int64_t rows,
               int64_t columns) {
  for (int64_t i = 0; i < count; ++i) step(steps[i], registers, stride, rows, columns);
}

}  // namespace

void fill_pointwise(Table& table) { table.pointwise = pointwise; }

}  // namespace qeng::isa::QENG_ISA
