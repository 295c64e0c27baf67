// Dot products with one_bit and ternary weights (sign_tables.h). Sums inside a group of activations are exact, and
// groups follow in order, so that rows and batches do not change a bit.
//   one_bit   bits of bytes multiplied where there is GFNI (sign_planes_gfni.h), else looked up (sign_lookups.h)
//   ternary   bytes of codes multiplied, as block_dots.cpp does: a look-up of four bits would serve two weights only
#include "kernels/cpu/isa/blocks/bytes.h"
#include "kernels/cpu/isa/blocks/round_group.h"
#include "kernels/cpu/isa/signs/sign_tables.h"
#include "kernels/cpu/isa/table.h"
#if defined(QENG_GFNI)
#include "kernels/cpu/isa/signs/sign_planes_gfni.h"
#else
#include "kernels/cpu/isa/signs/sign_lookups.h"
#endif

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kGroup = blocks::kSignGroup;

void sign_tables(DType format, const float* x, const SignTables& to, int64_t row, int64_t group) {
  const int64_t left = to.k - group * kGroup, n = left < kGroup ? left : kGroup;
  alignas(32) int8_t codes[kGroup] = {};
  float scale = 0.0f;
  int32_t sum = 0;
  round_groups(x, n, 1, blocks::kSignGroup, codes, &scale, &sum);
  uint8_t* tables = to.tables + row * sign_row_bytes(format, to.k);
  int less = 0;
  if (format == DType::one_bit) {
    less = one_bit_tables(codes, to.k, group, tables);
  } else {
    less = sum;
    for (int i = 0; i < kGroup; ++i) tables[group * kGroup + i % 4 * 64 + i / 4] = static_cast<uint8_t>(codes[i]);
  }
  to.scales[row * sign_groups(to.k) + group] = scale;
  to.less[row * sign_groups(to.k) + group] = less;
}

// By four bits, one more than the weight that the lower two say, and than that of the upper two.
constexpr uint64_t kLowerWeight[2] = {0x0100020101000201, 0x0100020101000201},
                   kUpperWeight[2] = {0x0202020201010101, 0x0101010100000000};

template <int kXs>
void ternary_dots(const SignTables& x, int64_t row, const uint8_t* w, int64_t n, float* out, int64_t stride) {
  constexpr int64_t kRows = 8, kBytes = kGroup / 4;  // of w together: a lane each, once their products are summed
  const int64_t row_bytes = x.k / 4, groups = sign_groups(x.k);
  for (int64_t j = 0; j < n; j += kRows) {
    const uint8_t* from[kRows];  // the last again where there are fewer
    for (int64_t r = 0; r < kRows; ++r) from[r] = w + (j + r < n ? j + r : n - 1) * row_bytes;
    Floats y[kXs];
    for (Floats& each : y) each = splat_float(0.0f);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * kBytes, left = row_bytes - first;
      const uint8_t* codes = x.tables + (row * groups + g) * kGroup;
      Ints dots[kXs][kRows];
      for (int64_t r = 0; r < kRows; ++r) {
        prefetch(from[0] + kRows * (row_bytes + first) + r * kBytes);  // of the next rows, as much
        uint8_t end[kBytes];
        const uint8_t* bytes = from[r] + first;
        if (left < kBytes) {
          for (uint8_t& each : end) each = 0;
          __builtin_memcpy(end, bytes, static_cast<size_t>(left));
          bytes = end;
        }
        Products products[kXs];
        for (Products& each : products) each = no_products();
        for (int half = 0; half < 2; ++half) {
          const Bytes four = load_bytes(bytes + 32 * half), low = bits<0, 15>(four), high = bits<4, 15>(four);
          const Bytes weights[4] = {look_up(kLowerWeight, low), look_up(kUpperWeight, low), look_up(kLowerWeight, high),
                                    look_up(kUpperWeight, high)};
          for (int q = 0; q < kXs; ++q)
            for (int i = 0; i < 4; ++i)
              products[q] =
                  add_products(products[q], weights[i], load_bytes(codes + q * groups * kGroup + 64 * i + 32 * half));
        }
        for (int q = 0; q < kXs; ++q) dots[q][r] = widen(products[q]);
      }
      for (int q = 0; q < kXs; ++q) {
        const int64_t at = (row + q) * groups + g;
        const Ints sums = subtract(totals(dots[q]), splat_int(x.less[at]));
        y[q] = multiply_add(to_floats(sums), splat_float(x.scales[at]), y[q]);
      }
    }
    const int64_t count = n - j < kRows ? n - j : kRows;
    for (int q = 0; q < kXs; ++q) {
      float some[kRows];
      store_floats(some, y[q]);
      __builtin_memcpy(out + q * stride + j, some, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

void sign_dots(DType format, const SignTables& x, int64_t row, int64_t rows, const void* w, int64_t n, float* out,
               int64_t stride) {
  const auto* bytes = static_cast<const uint8_t*>(w);
  if (format == DType::one_bit) return one_bit_dots(x, row, rows, bytes, n, out, stride);
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) ternary_dots<4>(x, row + r, bytes, n, out + r * stride, stride);
  for (; r < rows; ++r) ternary_dots<1>(x, row + r, bytes, n, out + r * stride, stride);
}

}  // namespace

void fill_sign_dots(Table& table) {
  table.sign_tables = sign_tables;
  table.sign_dots = sign_dots;
}

}  // namespace qeng::isa::QENG_ISA
