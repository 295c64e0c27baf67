// What random draws of Matmul do not meet: rows and columns of very different sizes, and numbers that are none.
#include <cmath>
#include <limits>

#include "tests/catch.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/table.h"

namespace qeng::conformance {

TEST_CASE(
    "products of bf16 are as exact for large rows and small columns, and keep infinities and NaN where they are") {
  constexpr int64_t m = 72, n = 136, k = 200;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (Named& target : backends())
    for (const bool trans_a : {false, true})
      for (const bool trans_b : {false, true}) {
        Draw draw(base_seed());
        Matmul op;
        op.trans_a = trans_a, op.trans_b = trans_b;
        op.a = trans_a ? draw.tensor(DType::bf16, {k, m}) : draw.tensor(DType::bf16, {m, k});
        op.b = trans_b ? draw.tensor(DType::bf16, {n, k}) : draw.tensor(DType::bf16, {k, n});
        op.c = draw.empty(DType::f32, {m, n});
        const auto at_a = [&](int64_t i, int64_t l) { return trans_a ? l * m + i : i * k + l; };
        const auto at_b = [&](int64_t j, int64_t l) { return trans_b ? j * k + l : l * n + j; };
        for (int64_t l = 0; l < k; ++l) {
          for (int64_t i = 0; i < m; ++i)  // from 2^-60 to 2^60; the first row is nothing
            encode(op.a, at_a(i, l),
                   i == 0 ? 0 : decode(op.a, at_a(i, l)) * std::ldexp(1, static_cast<int>(i % 31 * 4) - 60));
          for (int64_t j = 0; j < n; ++j)
            encode(op.b, at_b(j, l), decode(op.b, at_b(j, l)) * std::ldexp(1, static_cast<int>(j % 21 * 4) - 40));
        }
        encode(op.a, at_a(5, 3), kInfinity);
        encode(op.b, at_b(7, 4), std::numeric_limits<double>::quiet_NaN());
        const Outcome outcome = run_on(*target.backend, op, draw.buffers());
        const float* const c = std::get<Matmul>(outcome.rebased).c.as<float>();
        INFO(target.name << (trans_a ? ", a^T" : "") << (trans_b ? ", b^T" : ""));
        double worst = 0;
        bool kept = true;
        for (int64_t i = 0; i < m; ++i)
          for (int64_t j = 0; j < n; ++j) {
            double sum = 0, size = 0;
            for (int64_t l = 0; l < k; ++l) {
              const double product = decode(op.a, at_a(i, l)) * decode(op.b, at_b(j, l));
              sum += product, size += std::fabs(product);
            }
            if (std::isfinite(sum))
              worst = std::max(worst, size > 0 ? std::fabs(c[i * n + j] - sum) / size : std::fabs(c[i * n + j]));
            else
              kept = kept && (std::isnan(sum) ? std::isnan(c[i * n + j]) : c[i * n + j] == sum);
          }
        CHECK(worst < 32 * 0x1p-24);
        CHECK(kept);
      }
}

}  // namespace qeng::conformance
