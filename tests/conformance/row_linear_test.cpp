// What the random draws of RowLinear do not compare: a row in different company.
#include <cstring>

#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

TEST_CASE("a linear layer for inference gives a row the same bits alone and among others") {
  constexpr int64_t kRows = 40, kOutputs = 37;
  for (Named& target : backends())
    for (int format = 0; format < 2 * (static_cast<int>(DType::int4) + 1); ++format) {
      const DType stored = static_cast<DType>(format / 2), dtype = format % 2 ? DType::bf16 : DType::f32;
      if (stored == DType::i32 || stored == DType::i64 || stored == DType::u8) continue;
      if (is_block(stored) && dtype == DType::bf16) continue;  // x is rounded to int8, whatever it was
      INFO(target.name << ", " << dtype_name(stored) << " and x " << dtype_name(dtype));
      Draw draw(base_seed());
      const int64_t elements = dtype_info(stored).elements, k = 1312 / elements * elements;
      const View x = draw.tensor(dtype, {kRows, k}), w = draw.tensor(stored, {kOutputs, k});
      // y of rows first .. first + count
      const auto part = [&](int64_t first, int64_t count) {
        RowLinear op;
        op.x = draw.empty(dtype, {count, k}), op.w = {w}, op.y = {draw.empty(DType::f32, {count, kOutputs})};
        std::memcpy(op.x.data, x.as<char>() + static_cast<size_t>(first * k) * dtype_size(dtype), op.x.bytes());
        const Outcome outcome = run_on(*target.backend, op, draw.buffers());
        const View y = std::get<RowLinear>(outcome.rebased).y[0];
        return std::vector<float>(y.as<float>(), y.as<float>() + y.elements());
      };
      const std::vector<float> all = part(0, kRows);
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {39, 1}, {3, 8}, {20, 9}, {7, 33}}) {
        const std::vector<float> some = part(first, count);
        CHECK(std::memcmp(some.data(), all.data() + first * kOutputs, some.size() * sizeof(float)) == 0);
      }
    }
}
