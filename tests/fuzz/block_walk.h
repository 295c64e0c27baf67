// Blocks of any bytes: every instruction set decodes them to the bits of decode_row, and a product with them gives a
// row the same bits alone and among others. Aborts where that is not so; what reads past the blocks is the sanitizer's
// to see.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/formats/nvfp4.h"
#include "kernels/backend.h"
#include "kernels/blocks.h"
#include "kernels/cpu/isa/table.h"

namespace qeng::fuzz {

inline void require_same(const float* a, const float* b, size_t n) {  // one NaN is as good as another
  for (size_t i = 0; i < n; ++i)
    if (std::isnan(a[i]) ? !std::isnan(b[i]) : std::memcmp(a + i, b + i, sizeof *a) != 0) std::abort();
}

// bytes: [rows, columns] of a block format, in memory of exactly that size.
inline void walk_blocks(DType dtype, std::vector<std::byte>& bytes, int64_t rows, int64_t columns) {
  static const std::vector<std::unique_ptr<Backend>> backends = [] {
    std::vector<std::unique_ptr<Backend>> list;
    for (const char* isa : {"baseline", "avx2", "avx512"})
      if (isa::find(isa)) list.push_back(make_cpu_backend(1, isa));
    list.push_back(make_cpu_backend(1));  // with the instructions that are no set of their own
    return list;
  }();
  const int64_t count = rows * columns;
  std::vector<float> want(static_cast<size_t>(count)), got(want.size());
  decode_row(dtype, bytes.data(), 0, count, want.data());
  for (const char* isa : {"baseline", "avx2", "avx512"}) {
    const isa::Table* table = isa::find(isa);
    for (int64_t first : {int64_t{0}, int64_t{5}}) {
      if (!table) continue;
      table->decode(dtype, bytes.data(), first, count - first, got.data());
      require_same(want.data() + first, got.data(), static_cast<size_t>(count - first));
    }
  }
  constexpr int64_t kRows = 19;  // more than are multiplied one by one, and no whole tile
  std::vector<float> x(static_cast<size_t>(kRows * columns)), one(static_cast<size_t>(rows)),
      all(static_cast<size_t>(kRows * rows));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(static_cast<int>(i * 37 % 255) - 127) / 64;
  for (const auto& backend : backends) {
    RowLinear op;
    op.w = {View(bytes.data(), dtype, {rows, columns})};
    op.x = View(x.data(), DType::f32, {1, columns}), op.y = {View(one.data(), DType::f32, {1, rows})};
    backend->run(op);
    op.x = View(x.data(), DType::f32, {kRows, columns}), op.y = {View(all.data(), DType::f32, {kRows, rows})};
    backend->run(op);
    require_same(one.data(), all.data(), one.size());
  }
}

// Each block alone has the values that it has among others, and all are finite.
inline void walk_nvfp4(const std::vector<std::byte>& bytes) {
  const int64_t blocks = static_cast<int64_t>(bytes.size()) / kNvfp4Bytes;
  std::vector<f16> all(static_cast<size_t>(blocks * kNvfp4Elements)), one(kNvfp4Elements);
  decode_nvfp4(bytes.data(), blocks, all.data());
  for (int64_t b = 0; b < blocks; ++b) {
    decode_nvfp4(bytes.data() + b * kNvfp4Bytes, 1, one.data());
    if (std::memcmp(one.data(), all.data() + b * kNvfp4Elements, sizeof(f16) * one.size()) != 0) std::abort();
    for (f16 value : one)
      if (!std::isfinite(to_f32(value))) std::abort();
  }
}

}  // namespace qeng::fuzz
