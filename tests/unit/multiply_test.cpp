// Products of several panels, which the conformance test's small shapes never are.
#include <cmath>
#include <cstring>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

struct Matrix {
  DType dtype;
  std::vector<float> memory;
  Matrix(DType type, int64_t elements, uint32_t seed) : dtype(type), memory(static_cast<size_t>(elements)) {
    std::mt19937 engine(seed);
    for (int64_t i = 0; i < elements; ++i) {
      const float value = static_cast<float>(engine() >> 8) * 0x1p-23f - 1;
      if (dtype == DType::f32)
        memory[static_cast<size_t>(i)] = value;
      else
        reinterpret_cast<bf16*>(memory.data())[i] = to_bf16(value);
    }
  }
  double at(int64_t i) const {
    return dtype == DType::f32 ? memory[static_cast<size_t>(i)]
                               : to_f32(reinterpret_cast<const bf16*>(memory.data())[i]);
  }
};

// m and n leave a last panel of few rows and columns, and odd ones; k too.
GemmShape several_panels() {
  GemmShape s;
  s.m = 1031, s.n = 1093, s.k = 2077;
  return s;
}

}  // namespace

TEST_CASE("a product of several panels agrees with float64") {
  CpuContext context{2, &isa::best(), {}, {}};
  uint32_t seed = 1;
  for (const auto& [in, out, bias_type] :
       {std::tuple{DType::bf16, DType::bf16, DType::bf16}, std::tuple{DType::bf16, DType::f32, DType::bf16},
        std::tuple{DType::bf16, DType::bf16, DType::f32}, std::tuple{DType::f32, DType::f32, DType::f32}})
    for (int flags = 0; flags < 4; ++flags, ++seed) {
      GemmShape s = several_panels();
      s.in = in, s.out = out, s.bias = bias_type;
      s.trans_a = flags & 1, s.trans_b = flags & 2;
      s.acc = seed % 2, s.has_bias = seed % 3 != 0, s.alpha = seed % 4 < 2 ? 1.0f : -0.75f;
      s.lda = (s.trans_a ? s.m : s.k) + 19;
      INFO("in " << dtype_name(in) << " out " << dtype_name(out) << " trans_a " << s.trans_a << " trans_b " << s.trans_b
                 << " acc " << s.acc << " bias " << s.has_bias << " alpha " << s.alpha);
      const Matrix a(in, (s.trans_a ? s.k : s.m) * s.lda, seed), b(in, s.k * s.n, seed + 100),
          bias(bias_type, s.n, seed + 200), before(out, s.m * s.n, seed + 300);
      Matrix c = before;
      multiply_tiles(s, a.memory.data(), b.memory.data(), bias.memory.data(), c.memory.data(), context);
      int64_t wrong = 0;
      for (int64_t sample = 0; sample < 1000; ++sample) {  // a step that is prime to m and n meets every tile
        const int64_t i = sample * 389 % s.m, j = sample * 277 % s.n;
        double sum = 0;
        for (int64_t l = 0; l < s.k; ++l)
          sum += a.at(s.trans_a ? l * s.lda + i : i * s.lda + l) * b.at(s.trans_b ? j * s.k + l : l * s.n + j);
        const double expected = s.alpha * sum + (s.has_bias ? bias.at(j) : 0) + (s.acc ? before.at(i * s.n + j) : 0);
        // The sums are of 2077 terms of variance 1/9: f32 keeps them to some 1e-5. bf16 rounds once, by 2^-8 at most.
        const double bound = 3e-5 + (out == DType::bf16 ? std::abs(expected) / 256 : 0);
        wrong += !(std::abs(c.at(i * s.n + j) - expected) <= bound);
      }
      CHECK(wrong == 0);
    }
}

TEST_CASE("a product by tiles gives the same bits with any number of threads") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    GemmShape s = several_panels();
    s.in = s.out = dtype, s.trans_b = true;
    const Matrix a(dtype, s.m * s.k, 1), b(dtype, s.k * s.n, 2);
    std::vector<Matrix> results;
    for (const int threads : {1, 2, 5}) {
      CpuContext context{threads, &isa::best(), {}, {}};
      Matrix& c = results.emplace_back(dtype, s.m * s.n, 3);
      multiply_tiles(s, a.memory.data(), b.memory.data(), nullptr, c.memory.data(), context);
    }
    CHECK(std::memcmp(results[0].memory.data(), results[1].memory.data(), results[0].memory.size() * 4) == 0);
    CHECK(std::memcmp(results[0].memory.data(), results[2].memory.data(), results[0].memory.size() * 4) == 0);
  }
}
