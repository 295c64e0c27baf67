// What the conformance test of Pointwise does not draw: functions over all of f32, on every instruction set; long rows,
// and operations on more memory than caches hold.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/math/bf16.h"
#include "kernels/ops.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

std::vector<float> run(Backend& backend, Fn fn, std::vector<float> a, std::vector<float> b = {}) {
  const auto n = static_cast<int64_t>(a.size());
  std::vector<float> y(a.size());
  Pointwise op;
  op.space = View(nullptr, DType::f32, {n});
  op.in = {View(a.data(), DType::f32, {n})};
  op.nodes = {{Fn::input, 0}};
  if (!b.empty()) op.in.push_back(View(b.data(), DType::f32, {n})), op.nodes.push_back({Fn::input, 1});
  op.nodes.push_back({fn, 0, 1});
  op.out = {{View(y.data(), DType::f32, {n}), static_cast<uint16_t>(op.nodes.size() - 1)}};
  backend.run(op);
  return y;
}

// Numbers of every size and sign, and those that are special.
std::vector<float> numbers(unsigned seed, size_t count) {
  const float infinity = HUGE_VALF;
  std::vector<float> list = {0.0f,
                             -0.0f,
                             1,
                             -1,
                             infinity,
                             -infinity,
                             NAN,
                             1e-45f,
                             -1e-45f,
                             1.1754943e-38f,
                             3.4028235e38f,
                             -3.4028235e38f,
                             0.5f,
                             2,
                             3,
                             -3,
                             88.7f,
                             88.73f,
                             -87.4f,
                             -103.9f,
                             -104.1f,
                             1e-8f,
                             -1e-8f,
                             0.99999994f,
                             1.0000001f,
                             -0.99999994f,
                             3.1415927f,
                             1.5707964f,
                             131072,
                             131073,
                             1e6f,
                             1e10f};
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  for (size_t i = 0; list.size() < count; ++i) {
    const float of_any_size = float_of(static_cast<uint32_t>(engine()));
    const float scales[] = {1, 10, 100, 1e-3f};
    list.push_back(i % 2 ? of_any_size : normal(engine) * scales[i / 2 % 4]);
  }
  return list;
}

// In units of the last place of an f32 of the size of `want`; 0 where both are infinite alike or no number.
double off_by(float got, double want) {
  if (std::isnan(want) || std::isnan(got)) return std::isnan(want) && std::isnan(got) ? 0 : HUGE_VAL;
  const auto rounded = static_cast<float>(want);
  if (got == rounded) return rounded == 0 && std::signbit(got) != std::signbit(rounded) ? HUGE_VAL : 0;
  if (std::isinf(rounded) || std::isinf(got)) return std::fabs(want) < 3.4028e38 || std::isinf(want) ? HUGE_VAL : 0;
  const double unit = std::fmax(std::ldexp(1.0, std::ilogb(want) - 23), 0x1p-149);
  return std::fabs(got - want) / unit;
}

struct Case {
  Fn fn;
  double (*value)(double);
  double most;  // units of the last place
};

}  // namespace

TEST_CASE("functions of Pointwise are those of the C library on every instruction set for every f32") {
  const Case cases[] = {
      {Fn::exp, [](double x) { return std::exp(x); }, 2},      {Fn::expm1, [](double x) { return std::expm1(x); }, 2.5},
      {Fn::log, [](double x) { return std::log(x); }, 2},      {Fn::log1p, [](double x) { return std::log1p(x); }, 2.5},
      {Fn::sqrt, [](double x) { return std::sqrt(x); }, 0.51}, {Fn::sin, [](double x) { return std::sin(x); }, 2},
      {Fn::cos, [](double x) { return std::cos(x); }, 2},      {Fn::tanh, [](double x) { return std::tanh(x); }, 2.5},
      {Fn::erf, [](double x) { return std::erf(x); }, 2},      {Fn::neg, [](double x) { return -x; }, 0},
      {Fn::abs, [](double x) { return std::fabs(x); }, 0},
  };
  const std::vector<float> x = numbers(1, 40001);
  for (const char* isa : isa::kNames) {
    if (!isa::find(isa)) continue;
    const auto backend = make_cpu_backend(2, isa);
    for (const Case& each : cases) {
      const std::vector<float> y = run(*backend, each.fn, x);
      double worst = 0;
      size_t where = 0;
      for (size_t i = 0; i < x.size(); ++i)
        if (const double off = off_by(y[i], each.value(static_cast<double>(x[i]))); off > worst) worst = off, where = i;
      INFO(isa << ", " << fn_name(each.fn) << "(" << x[where] << ") = " << y[where]);
      CHECK(worst <= each.most);
    }
    const std::vector<float> base = numbers(2, 200001), power = numbers(3, 200001);
    std::vector<float> a, b;
    for (size_t i = 0; i < 32; ++i)
      for (size_t j = 0; j < 32; ++j) a.push_back(base[i]), b.push_back(base[j]);
    a.insert(a.end(), base.begin(), base.end()), b.insert(b.end(), power.begin(), power.end());
    const std::vector<float> y = run(*backend, Fn::pow, a, b);
    double worst = 0;
    size_t where = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const double want = std::pow(static_cast<double>(a[i]), static_cast<double>(b[i]));
      if (const double off = off_by(y[i], want); off > worst) worst = off, where = i;
    }
    INFO(isa << ", " << a[where] << " ^ " << b[where] << " = " << y[where]);
    CHECK(worst <= 2.5);
  }
}

namespace {

// y = softmax(x) w; w: one row
Pointwise weighted_softmax(const View& x, const View& w, const View& y) {
  Pointwise op;
  op.space = x, op.space.data = nullptr;
  op.in = {x, w};
  op.nodes = {{Fn::input, 0},   {Fn::row_max, 0}, {Fn::sub, 0, 1}, {Fn::exp, 2},
              {Fn::row_sum, 3}, {Fn::div, 3, 4},  {Fn::input, 1},  {Fn::mul, 5, 6}};
  op.out = {{y, 7}};
  return op;
}

View rows_of(const View& view, int64_t first, int64_t count) {
  View part = view;
  part.data = view.as<char>() + first * view.columns() * static_cast<int64_t>(dtype_size(view.dtype));
  part.shape[0] = count;
  return part;
}

}  // namespace

TEST_CASE("Pointwise gives a row the same bits alone and among any others and with any number of threads") {
  const struct {
    int64_t rows, columns;
    DType dtype;
  } sizes[] = {{4200, 1024, DType::f32}, {8300, 1024, DType::bf16}, {161, 50257, DType::f32}, {3, 70001, DType::bf16},
               {1, 300001, DType::f32},  {300, 64, DType::f32},     {300, 65, DType::bf16}};
  for (const auto& [rows, columns, dtype] : sizes) {
    const size_t bytes = static_cast<size_t>(rows * columns) * dtype_size(dtype);
    const auto block = [&](size_t size) {
      return std::unique_ptr<void, void (*)(void*)>(std::aligned_alloc(64, (size + 127) / 64 * 64), std::free);
    };
    const auto x_memory = block(bytes), w_memory = block(bytes), y_memory = block(bytes), z_memory = block(bytes);
    const View x(x_memory.get(), dtype, {rows, columns}), w(w_memory.get(), dtype, {1, columns});
    const View y(y_memory.get(), dtype, {rows, columns}), z(z_memory.get(), dtype, {rows, columns});
    std::mt19937 engine(3);
    const auto fill = [&](const View& view) {
      for (int64_t i = 0; i < view.elements(); ++i) {
        const float value = static_cast<float>(engine() % 4096) / 512 - 4;
        dtype == DType::f32 ? void(view.as<float>()[i] = value) : void(view.as<bf16>()[i] = to_bf16(value));
      }
    };
    fill(x), fill(w);
    const auto one = make_cpu_backend(1), two = make_cpu_backend(2), three = make_cpu_backend(3);
    one->run(weighted_softmax(x, w, y));
    INFO(rows << " rows of " << columns);
    double worst = 0;
    const auto at = [&](const View& view, int64_t i) {
      return static_cast<double>(dtype == DType::f32 ? view.as<float>()[i] : to_f32(view.as<bf16>()[i]));
    };
    for (const int64_t row : {int64_t{0}, rows - 1}) {
      double sum = 0;
      for (int64_t j = 0; j < columns; ++j) sum += std::exp(at(x, row * columns + j));
      for (int64_t j = 0; j < columns; ++j) {
        const double want = std::exp(at(x, row * columns + j)) / sum * at(w, j);
        worst = std::fmax(worst, std::fabs(at(y, row * columns + j) - want) / (std::fabs(want) + 1e-30));
      }
    }
    CHECK(worst < (dtype == DType::f32 ? 1e-6 : 4e-3));  // a few units of the last place of the dtype
    for (Backend* each : {two.get(), three.get()}) {
      std::memset(z.data, 0, bytes);
      each->run(weighted_softmax(x, w, z));
      CHECK(std::memcmp(y.data, z.data, bytes) == 0);
    }
    std::memset(z.data, 0, bytes);
    for (int64_t first = 0; first < rows; first += 37)
      two->run(weighted_softmax(rows_of(x, first, std::min<int64_t>(37, rows - first)), w,
                                rows_of(z, first, std::min<int64_t>(37, rows - first))));
    CHECK(std::memcmp(y.data, z.data, bytes) == 0);
  }
}
