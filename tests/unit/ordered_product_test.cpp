// isa/ordered_product.cpp: products whose bits depend on nothing but their own row, column and order of k.
#include <algorithm>
#include <cstring>
#include <random>

#include "kernels/cpu/cpu.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

std::vector<float> numbers(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::vector<float> list(static_cast<size_t>(count));
  for (float& each : list) each = static_cast<float>(engine() >> 8) * 0x1p-23f - 1;
  return list;
}

void multiply_in_order(const isa::Table& isa, const Tile& tile) {
  std::vector<float> memory(static_cast<size_t>(isa::kOrderedMemory));
  isa.ordered_product(tile, memory.data());
}

template <class Check>
void on_every_set(Check check) {
  for (const char* name : isa::kNames)
    if (const isa::Table* isa = isa::find(name)) {
      INFO(name);
      check(*isa);
    }
}

}  // namespace

TEST_CASE("an ordered product agrees with float64") {
  on_every_set([](const isa::Table& isa) {
    std::mt19937 draw(1);
    const auto size = [&](uint32_t most) { return static_cast<int64_t>(1 + draw() % most); };
    for (uint32_t round = 0; round < 60; ++round) {
      Tile t;
      t.m = round % 10 == 0 ? isa::kOrderedRows : size(70), t.n = size(200), t.k = size(400);
      t.trans_a = draw() % 2, t.trans_b = draw() % 2, t.acc = draw() % 2;
      t.lda = (t.trans_a ? t.m : t.k) + size(5), t.ldb = (t.trans_b ? t.k : t.n) + size(5), t.ldc = t.n + size(5);
      const auto a = numbers((t.trans_a ? t.k : t.m) * t.lda, round),
                 b = numbers((t.trans_b ? t.n : t.k) * t.ldb, round);
      const auto before = numbers(t.m * t.ldc, round + 7);
      auto c = before;
      t.a = a.data(), t.b = b.data(), t.c = c.data();
      multiply_in_order(isa, t);
      double worst = 0;  // of the bound of a sum of k + 1 numbers, each partial sum rounded to 24 bits
      for (int64_t i = 0; i < t.m; ++i)
        for (int64_t j = 0; j < t.ldc; ++j) {
          const auto at = static_cast<size_t>(i * t.ldc + j);
          double wanted = t.acc || j >= t.n ? before[at] : 0, sizes = std::abs(wanted);
          for (int64_t l = 0; l < t.k && j < t.n; ++l) {
            const double product = static_cast<double>(t.a[t.trans_a ? l * t.lda + i : i * t.lda + l]) *
                                   static_cast<double>(t.b[t.trans_b ? j * t.ldb + l : l * t.ldb + j]);
            wanted += product, sizes += std::abs(product);
          }
          const double bound = j < t.n ? static_cast<double>(t.k + 1) * 0x1p-24 * sizes : 0;
          const double off = std::abs(static_cast<double>(c[at]) - wanted);
          worst = std::max(worst, off == 0 ? 0 : bound == 0 ? 2 : off / bound);
        }
      CHECK(worst <= 1);
    }
  });
}

TEST_CASE("a row of an ordered product has the same bits whatever other rows and columns there are") {
  constexpr int64_t m = 100, n = 100, k = 300;
  const auto a = numbers(m * k, 1), b = numbers(n * k, 2);
  on_every_set([&](const isa::Table& isa) {
    for (const bool trans_b : {false, true}) {
      std::vector<float> whole(m * n), part(m * n);
      Tile t;
      t.a = a.data(), t.b = b.data(), t.c = whole.data(), t.m = m, t.n = n, t.k = k;
      t.lda = k, t.ldb = trans_b ? k : n, t.ldc = n, t.trans_b = trans_b;
      multiply_in_order(isa, t);
      for (const int64_t rows : {1, 2, 5, 6, 15, 16, 17, 63, 99})
        for (const int64_t columns : {1, 15, 16, 33, 64, 65, 99}) {
          t.m = rows, t.n = columns, t.c = part.data();
          t.a = a.data() + (m - rows) * k, t.b = b.data() + (n - columns) * (trans_b ? k : 1);
          multiply_in_order(isa, t);
          bool same = true;
          for (int64_t i = 0; i < rows; ++i)
            same = same && std::memcmp(part.data() + i * n, whole.data() + (m - rows + i) * n + n - columns,
                                       static_cast<size_t>(columns) * sizeof(float)) == 0;
          INFO("rows " << rows << " columns " << columns << " trans_b " << trans_b);
          CHECK(same);
        }
    }
  });
}

TEST_CASE("zeros among the products of an ordered sum change no bit") {
  constexpr int64_t m = 40, n = 70, rows = 90, others = 200;
  const auto a = numbers(rows * m, 1), b = numbers(rows * n, 2), beside = numbers((rows + others) * n, 3);
  on_every_set([&](const isa::Table& isa) {
    std::vector<float> alone(m * n), among(m * n), wide_a((rows + others) * m), wide_b = beside;
    for (int64_t r = 0; r < rows; ++r) {  // a row of ours after two or three of others, whose a is zero
      const int64_t at = r + r * others / rows;
      std::copy_n(a.data() + r * m, m, wide_a.data() + at * m);
      std::copy_n(b.data() + r * n, n, wide_b.data() + at * n);
    }
    Tile t;
    t.m = m, t.n = n, t.lda = m, t.ldb = n, t.ldc = n, t.trans_a = true;
    t.a = a.data(), t.b = b.data(), t.c = alone.data(), t.k = rows;
    multiply_in_order(isa, t);
    t.a = wide_a.data(), t.b = wide_b.data(), t.c = among.data(), t.k = rows + others;
    multiply_in_order(isa, t);
    CHECK(alone == among);
  });
}
