// one_bit weights by tables (sign_tables.h): four bits of a weight at a time are looked up, of 32 rows of w at once, a
// lane of bytes each. 16 bytes of each row are transposed for that, for all rows of x together.
#pragma once
#include "kernels/cpu/isa/blocks/bytes.h"
#include "kernels/cpu/isa/signs/sign_tables.h"

namespace qeng::isa::QENG_ISA {

// What a code adds by two bits of which it has the lower or the upper: four 16-bit numbers in a word.
struct Quartets {
  uint64_t lower[256] = {}, upper[256] = {};  // by the code as a byte
};
constexpr Quartets quartets() {
  Quartets all;
  for (int byte = 0; byte < 256; ++byte) {
    const int code = byte < 128 ? byte : byte - 256, size = code < 0 ? -code : code;
    for (int v = 0; v < 4; ++v) {
      all.lower[byte] |= static_cast<uint64_t>((size + (v & 1 ? code : -code)) / 2) << (16 * v);
      all.upper[byte] |= static_cast<uint64_t>((size + (v & 2 ? code : -code)) / 2) << (16 * v);
    }
  }
  return all;
}
inline uint64_t quartet(const int8_t* codes) {
  static constexpr Quartets kQuartets = quartets();
  return kQuartets.lower[static_cast<uint8_t>(codes[0])] + kQuartets.upper[static_cast<uint8_t>(codes[1])];
}

// The two tables of a run from the quartets of its lower and its upper two bits.
inline void join(uint64_t lower, uint64_t upper, uint8_t* tables) {
#if defined(QENG_ISA_avx2) || defined(QENG_ISA_avx512)
  const auto splat = [](uint64_t word) { return _mm256_set1_epi64x(static_cast<long long>(word)); };
  const __m256i each_four_times =
      _mm256_setr_epi64x(0x0100010001000100, 0x0302030203020302, 0x0504050405040504, 0x0706070607060706);
  const __m256i sums = _mm256_add_epi16(splat(lower), _mm256_shuffle_epi8(splat(upper), each_four_times));
  const __m256i both = _mm256_packus_epi16(_mm256_and_si256(sums, _mm256_set1_epi16(31)), _mm256_srli_epi16(sums, 5));
  _mm256_store_si256(reinterpret_cast<__m256i*>(tables), _mm256_permute4x64_epi64(both, 0xd8));
#elif defined(QENG_ISA_neon)
  const uint16x4_t first = vcreate_u16(lower), second = vcreate_u16(upper);
  const uint16x8_t each = vcombine_u16(first, first);
  const uint16x8_t sums[2] = {vaddq_u16(each, vcombine_u16(vdup_lane_u16(second, 0), vdup_lane_u16(second, 1))),
                              vaddq_u16(each, vcombine_u16(vdup_lane_u16(second, 2), vdup_lane_u16(second, 3)))};
  vst1q_u8(tables, vandq_u8(vcombine_u8(vmovn_u16(sums[0]), vmovn_u16(sums[1])), vdupq_n_u8(31)));
  vst1q_u8(tables + 16, vcombine_u8(vshrn_n_u16(sums[0], 5), vshrn_n_u16(sums[1], 5)));
#else
  for (int v = 0; v < 16; ++v) {
    const auto sum = static_cast<unsigned>((lower >> (v % 4 * 16) & 0xffff) + (upper >> (v / 4 * 16) & 0xffff));
    tables[v] = static_cast<uint8_t>(sum & 31), tables[16 + v] = static_cast<uint8_t>(sum >> 5);
  }
#endif
}

// A group's part of a row of tables; the sum that SignTables::less wants.
inline int one_bit_tables(const int8_t* codes, int64_t k, int64_t group, uint8_t* row) {
  constexpr int64_t kRuns = blocks::kSignGroup / 4;
  int less = 0;
  for (int i = 0; i < blocks::kSignGroup; ++i) less += codes[i] < 0 ? -codes[i] : codes[i];
  const int64_t first = group * kRuns, last = sign_runs(k) - first, runs = last < kRuns ? last : kRuns;
  for (int64_t r = 0; r < runs; ++r) join(quartet(codes + 4 * r), quartet(codes + 4 * r + 2), row + (first + r) * 32);
  return less;
}

#if defined(QENG_ISA_avx2) || defined(QENG_ISA_avx512) || defined(QENG_ISA_neon)

// Bytes of four vectors after one another: of out, vector i has those that quarter i of each 16 of a, b, c and d held.
inline void shuffle(Bytes a, Bytes b, Bytes c, Bytes d, uint8_t (*out)[kSignRows]) {
  const Bytes low = mix_low(a, c), high = mix_high(a, c), other_low = mix_low(b, d), other_high = mix_high(b, d);
  store_bytes(out[0], mix_low(low, other_low)), store_bytes(out[1], mix_high(low, other_low));
  store_bytes(out[2], mix_low(high, other_high)), store_bytes(out[3], mix_high(high, other_high));
}
// Byte i of each row at `at` to vector i of `columns`: row r in lane r. In two passes over few vectors at a time, as
// all of them are more than there are registers.
inline void transpose(const uint8_t* const (&rows)[kSignRows], int64_t at, uint8_t (*columns)[kSignRows]) {
  alignas(32) uint8_t middle[kSignUnit][kSignRows];
  const auto row = [&](int r) { return load_halves(rows[r] + at, rows[r + 16] + at); };
  for (int i = 0; i < 4; ++i) shuffle(row(i), row(i + 4), row(i + 8), row(i + 12), middle + 4 * i);
  const auto half = [&](int i) { return load_bytes(middle[i]); };
  for (int i = 0; i < 4; ++i) shuffle(half(i), half(i + 4), half(i + 8), half(i + 12), columns + 4 * i);
}

#if !defined(QENG_ISA_neon)

// Sums of a group's table entries in 16 bits, of even lanes and of odd ones.
struct GroupSums {
  __m256i even, odd;
};
inline GroupSums sums_of_entries(const uint8_t (*columns)[kSignRows], int64_t units, const uint8_t* tables) {
  const __m256i nibble = splat_byte(15), byte = _mm256_set1_epi16(255);
  __m256i low_even = splat_byte(0), low_odd = low_even, high_even = low_even, high_odd = low_even;
  for (int64_t half = 0; half < 2 * units; ++half) {
    __m256i high = splat_byte(0);  // entries of 15 and less: 16 add in a byte
    for (int quarter = 0; quarter < 2; ++quarter) {
      __m256i low = splat_byte(0);  // of 31 and less: 8
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, ++columns, tables += 64) {
        const __m256i both = load_bytes(columns), first = _mm256_and_si256(both, nibble),
                      second = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
        low = _mm256_add_epi8(low, _mm256_shuffle_epi8(load_twice(tables), first));
        high = _mm256_add_epi8(high, _mm256_shuffle_epi8(load_twice(tables + 16), first));
        low = _mm256_add_epi8(low, _mm256_shuffle_epi8(load_twice(tables + 32), second));
        high = _mm256_add_epi8(high, _mm256_shuffle_epi8(load_twice(tables + 48), second));
      }
      low_even = _mm256_add_epi16(low_even, _mm256_and_si256(low, byte));
      low_odd = _mm256_add_epi16(low_odd, _mm256_srli_epi16(low, 8));
    }
    high_even = _mm256_add_epi16(high_even, _mm256_and_si256(high, byte));
    high_odd = _mm256_add_epi16(high_odd, _mm256_srli_epi16(high, 8));
  }
  return {_mm256_add_epi16(low_even, _mm256_slli_epi16(high_even, 5)),
          _mm256_add_epi16(low_odd, _mm256_slli_epi16(high_odd, 5))};
}

// y: of even rows, lower and upper halves of each 16, and of odd ones.
inline void add_group(const GroupSums& sums, int less, float scale, Floats (&y)[4]) {
  const __m256i zero = splat_byte(0);
  const __m256i wide[4] = {_mm256_unpacklo_epi16(sums.even, zero), _mm256_unpackhi_epi16(sums.even, zero),
                           _mm256_unpacklo_epi16(sums.odd, zero), _mm256_unpackhi_epi16(sums.odd, zero)};
  for (int i = 0; i < 4; ++i)
    y[i] = multiply_add(to_floats(subtract(shift_left<1>(wide[i]), splat_int(less))), splat_float(scale), y[i]);
}

inline void store_rows(const Floats (&y)[4], float* out) {
  const Floats a = _mm256_unpacklo_ps(y[0], y[2]), b = _mm256_unpackhi_ps(y[0], y[2]);  // rows 0 - 3, 16 - 19; 4 - 7 ..
  const Floats c = _mm256_unpacklo_ps(y[1], y[3]), d = _mm256_unpackhi_ps(y[1], y[3]);  // rows 8 - 11 ..
  store_floats(out, _mm256_permute2f128_ps(a, b, 0x20)), store_floats(out + 8, _mm256_permute2f128_ps(c, d, 0x20));
  store_floats(out + 16, _mm256_permute2f128_ps(a, b, 0x31)),
      store_floats(out + 24, _mm256_permute2f128_ps(c, d, 0x31));
}

#else

// Sums of a group's table entries in 16 bits, eight rows each.
struct GroupSums {
  uint16x8_t of[4];
};
inline void add_wide(uint16x8_t (&sums)[4], Bytes entries) {
  sums[0] = vaddw_u8(sums[0], vget_low_u8(entries.low)), sums[1] = vaddw_high_u8(sums[1], entries.low);
  sums[2] = vaddw_u8(sums[2], vget_low_u8(entries.high)), sums[3] = vaddw_high_u8(sums[3], entries.high);
}
inline Bytes entries_of(const uint8_t* table, Bytes index) {
  const uint8x16_t entries = vld1q_u8(table);
  return {vqtbl1q_u8(entries, index.low), vqtbl1q_u8(entries, index.high)};
}
inline GroupSums sums_of_entries(const uint8_t (*columns)[kSignRows], int64_t units, const uint8_t* tables) {
  uint16x8_t low_sums[4] = {}, high_sums[4] = {};
  for (int64_t half = 0; half < 2 * units; ++half) {
    Bytes high = splat_byte(0);  // entries of 15 and less: 16 add in a byte
    for (int quarter = 0; quarter < 2; ++quarter) {
      Bytes low = splat_byte(0);  // of 31 and less: 8
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i, ++columns, tables += 64) {
        const Bytes both = load_bytes(columns), first = bits<0, 15>(both), second = bits<4, 15>(both);
        low = add_bytes(low, entries_of(tables, first)), high = add_bytes(high, entries_of(tables + 16, first));
        low = add_bytes(low, entries_of(tables + 32, second)), high = add_bytes(high, entries_of(tables + 48, second));
      }
      add_wide(low_sums, low);
    }
    add_wide(high_sums, high);
  }
  GroupSums sums;
  for (int i = 0; i < 4; ++i) sums.of[i] = vaddq_u16(low_sums[i], vshlq_n_u16(high_sums[i], 5));
  return sums;
}

inline void add_group(const GroupSums& sums, int less, float scale, Floats (&y)[4]) {
  for (int i = 0; i < 4; ++i) {
    const Ints wide = {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(sums.of[i]))),
                       vreinterpretq_s32_u32(vmovl_high_u16(sums.of[i]))};
    y[i] = multiply_add(to_floats(subtract(shift_left<1>(wide), splat_int(less))), splat_float(scale), y[i]);
  }
}

inline void store_rows(const Floats (&y)[4], float* out) {
  for (int i = 0; i < 4; ++i) store_floats(out + 8 * i, y[i]);
}

#endif

inline void one_bit_dots(const SignTables& x, int64_t row, int64_t rows, const uint8_t* w, int64_t n, float* out,
                         int64_t stride) {
  constexpr int64_t kBytes = blocks::kSignGroup / 8;  // of a group
  const int64_t row_bytes = x.k / 8, groups = sign_groups(x.k), runs = sign_runs(x.k);
  for (int64_t j = 0; j < n; j += kSignRows) {
    const uint8_t* from[kSignRows];  // the last again where there are fewer
    for (int64_t r = 0; r < kSignRows; ++r) from[r] = w + (j + r < n ? j + r : n - 1) * row_bytes;
    Floats y[kMostSignRows][4];
    for (int64_t q = 0; q < rows; ++q)
      for (Floats& each : y[q]) each = splat_float(0.0f);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * kBytes, bytes = row_bytes - first < kBytes ? row_bytes - first : kBytes;
      // As much of the next 32 rows, which lie one after the other.
      for (int64_t line = 0; line < kSignRows * kBytes; line += 64)
        prefetch(from[0] + kSignRows * (row_bytes + first) + line);
      alignas(32) uint8_t columns[kBytes][kSignRows];
      const int64_t whole = bytes / kSignUnit, units = (bytes + kSignUnit - 1) / kSignUnit;
      for (int64_t u = 0; u < whole; ++u) transpose(from, first + u * kSignUnit, columns + u * kSignUnit);
      if (whole < units) {  // the end of a row, with zeros after it
        uint8_t ends[kSignRows][kSignUnit] = {};
        const uint8_t* of_ends[kSignRows];
        for (int64_t r = 0; r < kSignRows; ++r) {
          __builtin_memcpy(ends[r], from[r] + first + whole * kSignUnit,
                           static_cast<size_t>(bytes - whole * kSignUnit));
          of_ends[r] = ends[r];
        }
        transpose(of_ends, 0, columns + whole * kSignUnit);
      }
      for (int64_t q = 0; q < rows; ++q) {
        const GroupSums sums = sums_of_entries(columns, units, x.tables + ((row + q) * runs + 2 * first) * 32);
        add_group(sums, x.less[(row + q) * groups + g], x.scales[(row + q) * groups + g], y[q]);
      }
    }
    const int64_t count = n - j < kSignRows ? n - j : kSignRows;
    for (int64_t q = 0; q < rows; ++q) {
      float some[kSignRows], *to = out + q * stride + j;
      store_rows(y[q], count == kSignRows ? to : some);
      if (count < kSignRows) __builtin_memcpy(to, some, static_cast<size_t>(count) * sizeof(float));
    }
  }
}

#else

inline void one_bit_dots(const SignTables& x, int64_t row, int64_t rows, const uint8_t* w, int64_t n, float* out,
                         int64_t stride) {
  constexpr int64_t kBytes = blocks::kSignGroup / 8;  // of a group
  const int64_t row_bytes = x.k / 8, groups = sign_groups(x.k), runs = sign_runs(x.k);
  for (int64_t q = row; q < row + rows; ++q)
    for (int64_t j = 0; j < n; ++j) {
      float y = 0;
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t end = (g + 1) * kBytes < row_bytes ? (g + 1) * kBytes : row_bytes;
        int sum = 0;
        for (int64_t i = g * kBytes; i < end; ++i) {
          const uint8_t both = w[j * row_bytes + i], *t = x.tables + (q * runs + 2 * i) * 32;
          sum += t[both & 15] + 32 * t[16 + (both & 15)] + t[32 + (both >> 4)] + 32 * t[48 + (both >> 4)];
        }
        y += static_cast<float>(2 * sum - x.less[q * groups + g]) * x.scales[q * groups + g];
      }
      out[(q - row) * stride + j] = y;
    }
}

#endif

}  // namespace qeng::isa::QENG_ISA
