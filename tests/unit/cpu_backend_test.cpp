// What the conformance tests do not cover: threads, instruction sets, checks, determinism, the random generator.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "kernels/math/philox.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

// Arrays of one test, filled with the same numbers in each.
class Arrays {
 public:
  View zeros(DType dtype, std::initializer_list<int64_t> dims) {
    View view(nullptr, dtype, dims);
    memory_.emplace_back(view.bytes() + 64);
    view.data = memory_.back().data();
    return view;
  }
  View random(DType dtype, std::initializer_list<int64_t> dims, float spread = 1) {
    const View view = zeros(dtype, dims);
    std::normal_distribution<float> normal(0, spread);
    for (int64_t i = 0; i < view.elements(); ++i)
      if (dtype == DType::f32)
        view.as<float>()[i] = normal(engine_);
      else
        view.as<bf16>()[i] = to_bf16(normal(engine_));
    return view;
  }
  template <class T>
  View of(DType dtype, std::vector<T> values) {
    const View view = zeros(dtype, {static_cast<int64_t>(values.size())});
    std::memcpy(view.data, values.data(), view.bytes());
    return view;
  }

 private:
  std::vector<std::vector<char>> memory_;
  std::mt19937 engine_{7};
};

std::vector<float> floats(const View& view) {
  std::vector<float> values(static_cast<size_t>(view.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = view.dtype == DType::f32 ? view.as<float>()[i] : to_f32(view.as<bf16>()[i]);
  return values;
}

// A bit of everything, at sizes that are multiples of nothing; returns the outputs one after another.
std::vector<float> run_everything(Backend& backend, DType dtype) {
  Arrays arrays;
  std::vector<float> results;
  const auto keep = [&](const View& view) {
    for (const float value : floats(view)) results.push_back(value);
  };
  const int64_t rows = 301, dim = 77, n = 131, vocab = 1003;
  const View x = arrays.random(dtype, {rows, dim}), w = arrays.random(dtype, {dim}),
             y = arrays.zeros(dtype, {rows, dim});
  const View rstd = arrays.zeros(DType::f32, {rows}), dy = arrays.random(dtype, {rows, dim}),
             dx = arrays.zeros(dtype, {rows, dim});
  const View dw = arrays.zeros(DType::f32, {dim});
  backend.run(RmsNorm{x, w, y, rstd});
  backend.run(RmsNormGrad{x, w, rstd, dy, {}, dx, dw});
  keep(y), keep(dx), keep(dw);

  const View gate = arrays.random(dtype, {rows, dim}, 4), dgate = arrays.zeros(dtype, {rows, dim}),
             dup = arrays.zeros(dtype, {rows, dim});
  backend.run(SwiGlu{gate, x, y});
  backend.run(SwiGluGrad{gate, x, dy, dgate, dup});
  keep(y), keep(dgate), keep(dup);

  const View b = arrays.random(dtype, {n, dim}), c = arrays.random(dtype, {rows, n}), bias = arrays.random(dtype, {n});
  backend.run(Matmul{x, b, bias, c, false, true, true, 0.5f});
  keep(c);
  const View db = arrays.zeros(DType::f32, {n});
  backend.run(BiasGrad{c, db});
  keep(db);

  const View head = arrays.random(dtype, {vocab, dim}, 0.3f), nll = arrays.zeros(DType::f32, {rows}),
             loss = arrays.zeros(DType::f32, {1});
  std::vector<int32_t> targets(rows);
  for (int64_t t = 0; t < rows; ++t)
    targets[static_cast<size_t>(t)] = t % 5 ? static_cast<int32_t>(t * 37 % vocab) : -1;
  LmHeadLoss lm;
  lm.h = x, lm.w = head, lm.nll = nll, lm.loss = loss, lm.dh = dx;
  lm.targets = arrays.of(DType::i32, targets), lm.loss_scale = arrays.of<float>(DType::f32, {1.0f / 64});
  lm.chunk = 96;
  lm.dw = arrays.zeros(DType::f32, {vocab, dim});
  lm.workspace = arrays.zeros(DType::u8, {lm_head_workspace(rows, dim, vocab, lm.chunk, dtype)});
  backend.run(lm);
  keep(nll), keep(loss), keep(dx), keep(lm.dw);

  const View rng = arrays.of<int64_t>(DType::i64, {123456789012345, 42});
  backend.run(Dropout{x, y, rng, 0.3f, 9});
  keep(y);
  return results;
}

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - b[i]) / (1 + std::abs(static_cast<double>(b[i])));
    if (!(difference <= worst)) worst = difference;  // a NaN wins, and stays
    if (std::isnan(difference)) return difference;
  }
  return worst;
}

}  // namespace

TEST_CASE("Philox4x32-10 gives the known answers of its authors") {
  const auto words = [](Philox counter, uint32_t key0, uint32_t key1) {
    const Philox out = philox4x32(counter, key0, key1);
    return std::vector<uint32_t>(out.word, out.word + 4);
  };
  CHECK(words({{0, 0, 0, 0}}, 0, 0) == std::vector<uint32_t>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(words({{~0u, ~0u, ~0u, ~0u}}, ~0u, ~0u) ==
        std::vector<uint32_t>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(words({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0) ==
        std::vector<uint32_t>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("dropout draws the numbers that philox_uniform names, on every instruction set") {
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    std::unique_ptr<Backend> backend;
    try {
      backend = make_cpu_backend(2, isa);
    } catch (const Error&) {
      WARN("SKIPPED: this machine does not run " << isa);
      continue;
    }
    Arrays arrays;
    const int64_t n = 40003;
    const View x = arrays.random(DType::f32, {n}), y = arrays.zeros(DType::f32, {n});
    backend->run(Dropout{x, y, arrays.of<int64_t>(DType::i64, {-5, 77}), 0.25f, 3});
    int64_t wrong = 0, kept = 0;
    for (int64_t i = 0; i < n; ++i) {
      const bool keep = philox_uniform(static_cast<uint64_t>(-5), 77, 3, static_cast<uint64_t>(i)) >= 0.25f;
      kept += keep;
      wrong += y.as<float>()[i] != (keep ? x.as<float>()[i] * (1.0f / 0.75f) : 0.0f);
    }
    CHECK(wrong == 0);
    CHECK(std::abs(static_cast<double>(kept) / n - 0.75) < 0.01);  // 4.6 standard deviations
  }
}

TEST_CASE("bf16 and f16 round to nearest even and keep NaN, infinity and subnormals") {
  CHECK(to_bf16(float_of(0x3f808000u)).bits == 0x3f80);  // a tie goes to the even neighbour
  CHECK(to_bf16(float_of(0x3f818000u)).bits == 0x3f82);
  CHECK(to_bf16(float_of(0x3f808001u)).bits == 0x3f81);
  CHECK(std::isnan(to_f32(to_bf16(float_of(0x7f800001u)))));
  CHECK(to_bf16(float_of(0x7f7fffffu)).bits == 0x7f80);  // rounds up to infinity
  for (uint32_t bits = 0; bits < 65536; ++bits) {        // every half is itself again
    const f16 half{static_cast<uint16_t>(bits)};
    const float value = to_f32(half);
    if (std::isnan(value))
      CHECK(std::isnan(to_f32(to_f16(value))));
    else if (to_f16(value).bits != half.bits)
      FAIL("f16 " << bits);
  }
  CHECK(to_f16(65519.0f).bits == 0x7bff);
  CHECK(to_f16(65520.0f).bits == 0x7c00);
  CHECK(to_f16(2.98023224e-8f).bits == 0);  // half the smallest subnormal: a tie, to even
  CHECK(to_f16(2.98023259e-8f).bits == 1);
}

TEST_CASE("vectorized conversions are those of kernels/math, bit for bit") {
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    std::unique_ptr<Backend> backend;
    try {
      backend = make_cpu_backend(1, isa);
    } catch (const Error&) {
      WARN("SKIPPED: this machine does not run " << isa);
      continue;
    }
    Arrays arrays;
    std::vector<float> values;
    for (uint32_t i = 0; i < 100003; ++i) values.push_back(float_of(i * 42949u * 2654435761u + i));
    const View x = arrays.of(DType::f32, values);
    const View b = arrays.zeros(DType::bf16, {x.elements()}), h = arrays.zeros(DType::f16, {x.elements()});
    backend->run(Cast{x, b});
    backend->run(Cast{x, h});
    int64_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      wrong += b.as<bf16>()[i].bits != to_bf16(values[i]).bits;
      if (!std::isnan(values[i])) wrong += h.as<f16>()[i].bits != to_f16(values[i]).bits;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("every instruction set gives the same results within rounding") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto expected = run_everything(*make_cpu_backend(1, "baseline"), dtype);
    for (const char* isa : {"avx2", "avx512"}) {
      std::unique_ptr<Backend> backend;
      try {
        backend = make_cpu_backend(1, isa);
      } catch (const Error&) {
        WARN("SKIPPED: this machine does not run " << isa);
        continue;
      }
      CHECK(worst_difference(run_everything(*backend, dtype), expected) <
            (dtype == DType::f32 ? 2e-5 : 8e-3));  // 1 ulp of bf16
    }
  }
}

TEST_CASE("two runs are bit-identical, and so are two thread counts outside of oneDNN") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto backend = make_cpu_backend(2);
    const auto first = run_everything(*backend, dtype), second = run_everything(*backend, dtype);
    CHECK(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)) == 0);
    const auto fresh = run_everything(*make_cpu_backend(2), dtype);
    CHECK(std::memcmp(first.data(), fresh.data(), first.size() * sizeof(float)) == 0);
    const auto one = run_everything(*make_cpu_backend(1), dtype), three = run_everything(*make_cpu_backend(3), dtype);
    const size_t before_matmul = 301 * 77 * 5 + 77;  // norm and activation, with their gradients
    CHECK(std::memcmp(one.data(), three.data(), before_matmul * sizeof(float)) == 0);
    CHECK(worst_difference(one, three) < (dtype == DType::f32 ? 2e-5 : 8e-3));
  }
}

TEST_CASE("one row times a matrix is that row of many rows times it") {
  Arrays arrays;
  const auto backend = make_cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const int64_t n = 1031, k = 203;
    const View a = arrays.random(dtype, {5, k}), b = arrays.random(dtype, {n, k}),
               bias = arrays.random(DType::f32, {n});
    const View many = arrays.random(DType::f32, {5, n}), one = arrays.zeros(DType::f32, {1, n});
    std::memcpy(one.data, many.as<float>() + 3 * n, one.bytes());
    View row = a;
    row.shape[0] = 1;
    row.data = static_cast<char*>(a.data) + 3 * k * static_cast<int64_t>(dtype_size(dtype));
    backend->run(Matmul{a, b, bias, many, false, true, true, 0.25f});
    backend->run(Matmul{row, b, bias, one, false, true, true, 0.25f});
    const auto all = floats(many);
    const std::vector<float> expected(all.begin() + 3 * n, all.begin() + 4 * n);
    CHECK(worst_difference(floats(one), expected) < 1e-5);  // f32 sums of 203 terms in another order
  }
}

// Of oneDNN's kernels for AMX some fail where k is no multiple of 32; k = 63 and 1375 were the worst of them.
TEST_CASE("bf16 products of any k are right, and a NaN stays in its row") {
  const auto backend = make_cpu_backend(2);
  for (const int64_t k : {31, 32, 63, 64, 65, 96, 100, 1375})
    for (const int64_t m : {5, 33, 47, 200})
      for (const int64_t n : {65, 80, 200}) {
        Arrays arrays;
        const View a = arrays.random(DType::bf16, {m, k}), b = arrays.random(DType::bf16, {n, k});
        const View c = arrays.zeros(DType::f32, {m, n});
        for (int64_t j = 0; j < k; ++j) a.as<bf16>()[j] = to_bf16(NAN);
        backend->run(Matmul{a, b, {}, c, false, true});
        const std::vector<float> x = floats(a), y = floats(b), got = floats(c);
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int64_t l = 0; l < k; ++l) {
              const double product = double{x[static_cast<size_t>(i * k + l)]} * y[static_cast<size_t>(j * k + l)];
              sum += product, size += std::abs(product);
            }
            const float value = got[static_cast<size_t>(i * n + j)];
            if (i == 0 ? !std::isnan(value) : !(std::abs(value - sum) <= 1e-5 * size))
              FAIL(m << " x " << n << ", k " << k << ": [" << i << ", " << j << "] is " << value << ", not " << sum);
          }
      }
}

TEST_CASE("swiglu and geglu keep their limits at huge gates, and NaN stays NaN") {
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    std::unique_ptr<Backend> backend;
    try {
      backend = make_cpu_backend(1, isa);
    } catch (const Error&) {
      WARN("SKIPPED: this machine does not run " << isa);
      continue;
    }
    Arrays arrays;
    const View gate = arrays.of<float>(DType::f32, {-1e4f, -200, -90, -30, -1, 0, 1, 90, 200, 1e4f, NAN});
    const View up = arrays.zeros(DType::f32, {11}), y = arrays.zeros(DType::f32, {11});
    backend->run(Fill{up, 1});
    backend->run(SwiGlu{gate, up, y});
    for (int i = 0; i < 10; ++i) {
      const double z = gate.as<float>()[i], expected = z / (1 + std::exp(-z));
      CHECK(y.as<float>()[i] == Approx(expected).epsilon(1e-6).margin(1e-33));  // e^88 stands in for infinity
    }
    CHECK(std::isnan(y.as<float>()[10]));

    // GELU as its authors write it; 1 + tanh keeps 16 digits of the sum.
    const View dgate = arrays.zeros(DType::f32, {11}), dup = arrays.zeros(DType::f32, {11});
    gate.as<float>()[0] = -1e30f, gate.as<float>()[9] = 1e30f;
    backend->run(SwiGlu{gate, up, y, true});
    backend->run(SwiGluGrad{gate, up, up, dgate, dup, true});
    for (int i = 1; i < 9; ++i) {
      const double z = gate.as<float>()[i], u = std::sqrt(2 / 3.14159265358979) * (z + 0.044715 * z * z * z);
      const double slope = std::sqrt(2 / 3.14159265358979) * (1 + 3 * 0.044715 * z * z), flat = 1 / std::cosh(u);
      CHECK(y.as<float>()[i] == Approx(z / 2 * (1 + std::tanh(u))).epsilon(1e-6).margin(1e-15));
      CHECK(dgate.as<float>()[i] ==
            Approx((1 + std::tanh(u)) / 2 + z / 2 * flat * flat * slope).epsilon(1e-6).margin(1e-15));
    }
    CHECK(std::fabs(y.as<float>()[0]) < 1e-6f);  // -1e30 e^-87
    CHECK(y.as<float>()[9] == 1e30f);
    CHECK(dgate.as<float>()[0] == Approx(0).margin(1e-30));
    CHECK(dgate.as<float>()[9] == 1);
    CHECK(std::isnan(y.as<float>()[10]));
    CHECK(std::isnan(dgate.as<float>()[10]));
  }
}

TEST_CASE("sums of squares do not depend on threads or instruction set") {
  Arrays arrays;
  const View x = arrays.random(DType::f32, {100001}), out = arrays.zeros(DType::f32, {1}),
             again = arrays.zeros(DType::f32, {1}), threads = arrays.zeros(DType::f32, {1});
  double expected = 0;
  for (const float value : floats(x)) expected += static_cast<double>(value) * value;
  make_cpu_backend(1, "baseline")->run(SumSquares{{x}, out});
  make_cpu_backend(1)->run(SumSquares{{x}, again});
  make_cpu_backend(4)->run(SumSquares{{x}, threads});
  CHECK(out.as<float>()[0] == Approx(expected).epsilon(1e-7));
  CHECK(out.as<float>()[0] == again.as<float>()[0]);
  CHECK(out.as<float>()[0] == threads.as<float>()[0]);
}

TEST_CASE("a wrong shape or dtype is refused, with what was given and expected, before anything is written") {
  Arrays arrays;
  const auto backend = make_cpu_backend(1);
  const auto message = [&](const Op& op, const std::string& code) -> std::string {
    try {
      backend->run(op);
    } catch (const Error& error) {
      CHECK(error.code == code);
      return error.what();
    }
    return "no error";
  };
  const View x = arrays.random(DType::bf16, {4, 896}), y = arrays.zeros(DType::bf16, {4, 896}),
             rstd = arrays.zeros(DType::f32, {4});
  CHECK(message(RmsNorm{x, arrays.random(DType::bf16, {64}), y, rstd}, "shape") ==
        "rmsnorm: w is bf16 [64], expected bf16 [896]");
  CHECK(message(RmsNorm{x, arrays.random(DType::f32, {896}), y, rstd}, "dtype") ==
        "rmsnorm: w is f32 [896], expected bf16 [896]");
  CHECK(message(RmsNorm{x, {}, y, rstd}, "shape") == "rmsnorm: w is missing");
  CHECK(message(Add{x, x, arrays.zeros(DType::bf16, {896, 4})}, "shape") ==
        "add: y is bf16 [896, 4], a is bf16 [4, 896]");
  CHECK(message(Matmul{x, x, {}, y}, "shape") ==
        "matmul: a is bf16 [4, 896], b is bf16 [4, 896]: inner dimensions differ, 896 and 4");
  CHECK(message(Matmul{x, x, {}, y, false, true}, "shape") ==
        "matmul: c is bf16 [4, 896], expected [4, 4]; a is bf16 [4, 896], b is bf16 [4, 896] transposed");
  const View table = arrays.random(DType::bf16, {10, 896});
  CHECK(message(Embedding{arrays.of<int32_t>(DType::i32, {1, 2, 10, 3}), table, y}, "value") ==
        "embedding: token 10 at position 2 is outside the table of 10 rows");
  CHECK(message(Dropout{x, y, arrays.zeros(DType::i64, {2}), 1.0f}, "value") == "dropout: p is 1, expected 0 <= p < 1");
  for (const float value : floats(y)) REQUIRE(value == 0);
  CHECK_THROWS_AS(make_cpu_backend(0, "sse9"), Error);
  CHECK_THROWS_AS(make_cpu_backend(-1), Error);
  CHECK_THROWS_AS(backend->allocate(size_t{1} << 60), Error);
}

TEST_CASE("empty tensors are computed without complaint") {
  Arrays arrays;
  const auto backend = make_cpu_backend(2);
  const View none = arrays.zeros(DType::f32, {0, 8}), w = arrays.random(DType::f32, {8}),
             rstd = arrays.zeros(DType::f32, {0});
  backend->run(RmsNorm{none, w, none, rstd});
  backend->run(Add{none, none, none});
  backend->run(Matmul{none, arrays.random(DType::f32, {8, 3}), {}, arrays.zeros(DType::f32, {0, 3})});
}

TEST_CASE("a head loss with no trained row is zero, and its gradient too") {
  Arrays arrays;
  const auto backend = make_cpu_backend(2);
  LmHeadLoss op;
  op.h = arrays.random(DType::bf16, {5, 16}), op.w = arrays.random(DType::bf16, {33, 16}),
  op.dh = arrays.random(DType::bf16, {5, 16});
  op.targets = arrays.of<int32_t>(DType::i32, {-1, -1, -1, -1, -1}),
  op.loss_scale = arrays.of<float>(DType::f32, {0.2f});
  op.nll = arrays.random(DType::f32, {5}), op.loss = arrays.random(DType::f32, {1});
  op.workspace = arrays.zeros(DType::u8, {lm_head_workspace(5, 16, 33, op.chunk, DType::bf16)});
  backend->run(op);
  CHECK(op.loss.as<float>()[0] == 0);
  for (const float value : floats(op.dh)) CHECK(value == 0);
  for (const float value : floats(op.nll)) CHECK(value == 0);
}

TEST_CASE("the limits of the machine are measured once and are plausible") {
  const auto backend = make_cpu_backend();
  const Limits limits = backend->limits();
  CHECK(limits.bandwidth > 1e8);
  CHECK(limits.flops_f32 > 1e8);
  CHECK(limits.flops_bf16 > 1e7);  // emulated where the machine has no bf16 instructions
  for (const Limit each : {&Limits::bandwidth, &Limits::flops_f32, &Limits::flops_bf16}) {
    CHECK(backend->limit(each) == limits.*each);
    CHECK(backend->limit_memory(each) == 0);
  }
}

TEST_CASE("memory is aligned and usable to its last byte") {
  const auto backend = make_cpu_backend(1);
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4097}, (size_t{8} << 20) + 3, size_t{40} << 20}) {
    char* memory = static_cast<char*>(backend->allocate(bytes));
    CHECK(reinterpret_cast<uintptr_t>(memory) % 64 == 0);
    if (bytes) memory[0] = memory[bytes - 1] = 1;
    backend->release(memory, bytes);
  }
}
