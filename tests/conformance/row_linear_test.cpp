// What RowLinear promises beyond its equation: the bits of a row of y depend on that row of x alone.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

// The bytes that the backend computes for rows first .. first + count of x.
std::vector<char> result(Backend& backend, Draw& draw, const View& x, const View& w, int64_t first, int64_t count) {
  RowLinear op;
  const int64_t k = x.columns(), n = w.shape[0];
  op.x = draw.empty(x.dtype, {count, k});
  const size_t row = static_cast<size_t>(k) * dtype_size(x.dtype);
  std::memcpy(op.x.data, x.as<char>() + static_cast<size_t>(first) * row, static_cast<size_t>(count) * row);
  op.w = {w}, op.y = {draw.empty(DType::f32, {count, n})};
  const Outcome outcome = run_on(backend, op, draw.buffers());
  const View& y = std::get<RowLinear>(outcome.rebased).y[0];
  const std::vector<char> bytes(y.as<char>(), y.as<char>() + y.bytes());
  draw.buffers().pop_back(), draw.buffers().pop_back();
  return bytes;
}

}  // namespace

TEST_CASE("a row of a linear layer's output has the same bits alone and in any batch") {
  constexpr int64_t kMost = 517, kOut = 37;  // more rows than a backend may take at a time
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!is_block(dtype) && dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) continue;
    Draw draw(base_seed() + static_cast<uint64_t>(i));
    // Not whole spans of 256, and more than the codes that a GPU's warp reads at once.
    const int64_t most = dtype == DType::one_bit || dtype == DType::ternary ? 4128 : 1312;
    const int64_t k = is_block(dtype) ? most / dtype_info(dtype).elements * dtype_info(dtype).elements : 203;
    const View x = draw.tensor(i % 2 ? DType::f32 : DType::bf16, {kMost, k}), w = draw.tensor(dtype, {kOut, k});
    std::vector<char> first;
    for (size_t b = 0; b < backends().size(); ++b) {
      Named& target = backends()[b];
      INFO(dtype_name(dtype) << " on " << target.name);
      const int64_t rows = target.name == "cuda" ? 131 : kMost;  // it may be the emulator, which takes its time
      const std::vector<char> all = result(*target.backend, draw, x, w, 0, rows);
      if (target.name.find("threads 2") != std::string::npos) CHECK(all == first);
      first = all;
      constexpr size_t kRowBytes = kOut * sizeof(float);
      for (const auto& [from, count] : std::vector<std::pair<int64_t, int64_t>>{
               {0, 1}, {39, 1}, {130, 1}, {516, 1}, {5, 2}, {9, 3}, {3, 8}, {20, 9}, {7, 33}, {30, 71}, {510, 7}}) {
        if (from + count > rows) continue;
        const std::vector<char> few = result(*target.backend, draw, x, w, from, count);
        CHECK(std::memcmp(few.data(), all.data() + static_cast<size_t>(from) * kRowBytes, few.size()) == 0);
      }
    }
  }
}

TEST_CASE("many outputs of a linear layer, of which a thread takes several panels, have the bits of a row alone") {
  constexpr int64_t kRows = 53, kOut = 603, kColumns = 1280;  // no whole tiles, no whole panels
  for (DType dtype : {DType::bf16, DType::q8_0, DType::q4_k, DType::q6_k, DType::tq2_0, DType::q2_0, DType::q1_0}) {
    Draw draw(base_seed());
    const View x = draw.tensor(DType::f32, {kRows, kColumns}), w = draw.tensor(dtype, {kOut, kColumns});
    for (Named& target : backends()) {
      if (target.name == "cuda") continue;
      INFO(dtype_name(dtype) << " on " << target.name);
      const std::vector<char> all = result(*target.backend, draw, x, w, 0, kRows);
      for (const int64_t row : {0, 31, 47, 52}) {
        const std::vector<char> one = result(*target.backend, draw, x, w, row, 1);
        CHECK(std::memcmp(one.data(), all.data() + static_cast<size_t>(row) * one.size(), one.size()) == 0);
      }
    }
  }
}

TEST_CASE("a row of a linear layer of dense weights has the same bits in any batch where rows are whole vectors") {
  constexpr int64_t kRows = 400, kOut = 141, k = 328;  // more than a GPU's tiles, and no whole ones
  const std::vector<std::pair<int64_t, int64_t>> parts{{0, 1},   {399, 1}, {3, 2},   {5, 9},   {5, 17},
                                                       {40, 64}, {40, 65}, {9, 200}, {80, 257}};
  for (Named& target : backends())
    for (const DType stored : {DType::f32, DType::bf16, DType::f16})
      for (const DType dtype : {DType::f32, DType::bf16}) {
        Draw draw(base_seed());
        const View x = draw.tensor(dtype, {kRows, k}), w = draw.tensor(stored, {kOut, k});
        // Of many rows; then x and y may lie anywhere.
        const bool tiles = stored != DType::f32;
        const int64_t rows = tiles ? kRows : 20;
        const std::vector<char> all = result(*target.backend, draw, x, w, 0, rows);
        for (const bool anywhere : {false, true}) {
          if (anywhere && !tiles) continue;
          if (anywhere) draw.misalign();
          INFO(target.name << ", " << dtype_name(stored) << " and x " << dtype_name(dtype) << anywhere);
          for (const auto& [from, count] : parts) {
            if (from + count > rows) continue;
            const std::vector<char> few = result(*target.backend, draw, x, w, from, count);
            INFO("rows " << from << " to " << from + count);
            CHECK(std::memcmp(few.data(), all.data() + static_cast<size_t>(from) * kOut * sizeof(float), few.size()) ==
                  0);
          }
        }
      }
}

TEST_CASE("sums of f16 weights by an x in f32 are as good as sums in f32, of few rows and of many") {
  constexpr int64_t kOut = 3, k = 4096;
  for (Named& target : backends())
    for (const int64_t rows : {1, 70}) {
      Draw draw(base_seed());
      // Of one sign, so that what tensor cores cut off adds up. A chain of k sums of theirs is off by 300 units.
      const View x = draw.tensor(DType::f32, {rows, k}, 0.25, 1), w = draw.tensor(DType::f16, {kOut, k}, 0.25, 1);
      const std::vector<char> bytes = result(*target.backend, draw, x, w, 0, rows);
      const auto* const y = reinterpret_cast<const float*>(bytes.data());
      double worst = 0;
      for (int64_t r = 0; r < rows; r += 23)
        for (int64_t j = 0; j < kOut; ++j) {
          double sum = 0;
          for (int64_t l = 0; l < k; ++l) sum += decode(x, r * k + l) * decode(w, j * k + l);
          worst = std::max(worst, std::fabs(y[r * kOut + j] - sum) / sum);
        }
      INFO(target.name << ", " << rows << " rows: off by " << worst / 0x1p-24 << " units");
      CHECK(worst < 32 * 0x1p-24);
    }
}

TEST_CASE("a row of an expert has the bits of a linear layer of that row alone, however many rows experts have") {
  constexpr int64_t kExperts = 3, kOut = 41;
  const std::vector<std::vector<double>> boundaries{{0, 1, 1, 31}, {0, 40, 40, 130}, {0, 170, 171, 410}};
  for (Named& target : backends())
    for (const DType stored :
         {DType::f32, DType::bf16, DType::f16, DType::q8_0, DType::q4_1, DType::q4_k, DType::mxfp4})
      for (const DType dtype : {DType::f32, DType::bf16})
        for (const std::vector<double>& first : boundaries) {
          if (stored == DType::f32 && (dtype != stored || first.back() > 100)) continue;
          if (is_block(stored) && (dtype != DType::f32 || first.back() < 100)) continue;
          const int64_t k = is_block(stored) ? 512 : 200;
          Draw draw(base_seed());
          GroupedMatmul op;
          const auto rows = static_cast<int64_t>(first.back()) + 2;  // the last are of no expert
          op.x = draw.tensor(dtype, {rows, k}), op.w = draw.tensor(stored, {kExperts, kOut, k});
          op.first = draw.values(DType::i32, first), op.y = draw.empty(DType::f32, {rows, kOut}), op.apart = true;
          const Outcome outcome = run_on(*target.backend, op, draw.buffers());
          const View& y = std::get<GroupedMatmul>(outcome.rebased).y;
          INFO(target.name << ", " << dtype_name(stored) << " and x " << dtype_name(dtype) << ", " << rows << " rows");
          for (int64_t e = 0; e < kExperts; ++e) {
            View own = draw.empty(stored, {kOut, k});
            std::memcpy(own.data, op.w.as<char>() + static_cast<size_t>(e) * own.bytes(), own.bytes());
            const auto begin = static_cast<int64_t>(first[static_cast<size_t>(e)]);
            const auto end = static_cast<int64_t>(first[static_cast<size_t>(e) + 1]);
            for (const int64_t row : {begin, (begin + end) / 2, end - 1}) {
              if (row < begin || row >= end) continue;
              const std::vector<char> alone = result(*target.backend, draw, op.x, own, row, 1);
              CHECK(std::memcmp(alone.data(), y.as<float>() + row * kOut, alone.size()) == 0);
            }
            draw.buffers().pop_back();
          }
          const float* const last = y.as<float>() + (rows - 1) * kOut;
          CHECK(std::all_of(last, last + kOut, [](float each) { return each == 0; }));
        }
}

TEST_CASE("one-bit and ternary weights give the same bits with every instruction set that has fused products") {
  constexpr int64_t kRows = 11, kOut = 37;
  for (const DType dtype : {DType::one_bit, DType::ternary})
    for (const int64_t k : {32, 256, 288, 512, 1312, 4128}) {
      Draw draw(base_seed());
      const View x = draw.tensor(DType::f32, {kRows, k}), w = draw.tensor(dtype, {kOut, k});
      std::vector<char> avx2;
      for (Named& target : backends()) {
        if (target.name == "cuda" || target.name.find("baseline") != std::string::npos) continue;
        INFO(dtype_name(dtype) << " of " << k << " columns on " << target.name);
        const std::vector<char> y = result(*target.backend, draw, x, w, 0, kRows);
        if (avx2.empty()) avx2 = y;
        CHECK(y == avx2);
      }
    }
}
