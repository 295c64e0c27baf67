// Products of bf16 matrices by BFMMLA, which multiplies two rows of four elements with two others and adds to 2 x 2
// sums of f32. Both factors are packed alike, in groups of kSide rows whose depth runs down in fours. An element is one
// chain in the order of k, four after four, and so the same whatever other rows and columns there are.
#include "kernels/cpu/isa/simd/simd.h"
#include "kernels/cpu/isa/table.h"

namespace qeng::isa::QENG_ISA {
namespace {

constexpr int kSide = static_cast<int>(kBf16Side), kPairs = kSide / 2, kDeep = 4;
constexpr int64_t kGroupStep = kSide * kDeep;  // elements of a group for four of its depth
// A block of a factor stays in the first-level cache, 32 KB, while the other passes from the second.
constexpr int64_t kBlockRows = 32, kBlockDepth = 512;

int64_t steps_of(int64_t depth) { return (depth + kDeep - 1) / kDeep; }
int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

inline bfloat16x8_t load_eight(const bf16* p) { return vld1q_bf16(reinterpret_cast<const bfloat16_t*>(p)); }
inline bfloat16x8_t load_eight(const bf16* p, int64_t count) {  // zeros after `count`
  if (count >= 8) return load_eight(p);
  bf16 some[8] = {};
  if (count > 0) __builtin_memcpy(some, p, static_cast<size_t>(2 * count));
  return load_eight(some);
}
inline void store_eight(bf16* p, bfloat16x8_t x) { vst1q_bf16(reinterpret_cast<bfloat16_t*>(p), x); }
inline bfloat16x8_t lower_halves(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u64(vzip1q_u64(vreinterpretq_u64_bf16(a), vreinterpretq_u64_bf16(b)));
}
inline bfloat16x8_t upper_halves(bfloat16x8_t a, bfloat16x8_t b) {
  return vreinterpretq_bf16_u64(vzip2q_u64(vreinterpretq_u64_bf16(a), vreinterpretq_u64_bf16(b)));
}

// ---- sums of pairs of rows of a with pairs of rows of b: {a0 b0, a0 b1, a1 b0, a1 b1}
template <int kAs, int kBs>
inline void load_sums(const float* c, int64_t stride, float32x4_t (&sums)[kAs][kBs]) {
  for (int i = 0; i < kAs; ++i)
    for (int j = 0; j < kBs; ++j) {
      const float* from = c + 2 * i * stride + 2 * j;
      sums[i][j] = vcombine_f32(vld1_f32(from), vld1_f32(from + stride));
    }
}
template <int kAs, int kBs>
inline void store_sums(const float32x4_t (&sums)[kAs][kBs], float* c, int64_t stride) {
  for (int i = 0; i < kAs; ++i)
    for (int j = 0; j < kBs; ++j) {
      float* to = c + 2 * i * stride + 2 * j;
      vst1_f32(to, vget_low_f32(sums[i][j])), vst1_f32(to + stride, vget_high_f32(sums[i][j]));
    }
}

// c (+)= a b of a group each, over some steps; c has `rows` and `columns` of their kSide.
void multiply_groups(const bf16* a, const bf16* b, int64_t steps, float* c, int64_t stride, int64_t rows,
                     int64_t columns, bool add) {
  float edge[kSide * kSide] = {};
  const bool whole = rows >= kSide && columns >= kSide;
  float* to = whole ? c : edge;
  const int64_t to_stride = whole ? stride : kSide;
  if (add && !whole)
    for (int64_t i = 0; i < rows; ++i)
      __builtin_memcpy(edge + i * kSide, c + i * stride, static_cast<size_t>(columns) * sizeof(float));
  float32x4_t sums[kPairs][kPairs] = {};
  if (add) load_sums(to, to_stride, sums);
  for (int64_t s = 0; s < steps; ++s, a += kGroupStep, b += kGroupStep) {
    bfloat16x8_t of_a[kPairs], of_b[kPairs];
    for (int i = 0; i < kPairs; ++i) of_a[i] = load_eight(a + 8 * i), of_b[i] = load_eight(b + 8 * i);
    for (int i = 0; i < kPairs; ++i)
      for (int j = 0; j < kPairs; ++j) sums[i][j] = vbfmmlaq_f32(sums[i][j], of_a[i], of_b[j]);
  }
  store_sums(sums, to, to_stride);
  for (int64_t i = 0; i < rows && !whole; ++i)
    __builtin_memcpy(c + i * stride, edge + i * kSide, static_cast<size_t>(columns) * sizeof(float));
}

// c (+)= a b over `steps` of groups that lie a_group and b_group elements apart.
void multiply_block(const bf16* a, int64_t a_group, const bf16* b, int64_t b_group, int64_t m, int64_t n, int64_t steps,
                    float* c, int64_t stride, bool add) {
  for (int64_t j = 0; j < n; j += kSide)
    for (int64_t i = 0; i < m; i += kSide)
      multiply_groups(a + i / kSide * a_group, b + j / kSide * b_group, steps, c + i * stride + j, stride,
                      smaller(m - i, kSide), smaller(n - j, kSide), add);
}

// ---- Matmul
void pack_group(const bf16* from, int64_t stride, int64_t sides, int64_t depth, bf16* to) {
  for (int64_t l = 0; l < depth; l += 2 * kDeep, to += 2 * kGroupStep)
    for (int p = 0; p < kPairs; ++p) {
      const auto row = [&](int64_t r) { return load_eight(from + r * stride + l, r < sides ? depth - l : 0); };
      const bfloat16x8_t even = row(2 * p), odd = row(2 * p + 1);
      store_eight(to + 8 * p, lower_halves(even, odd));
      if (depth - l > kDeep) store_eight(to + kGroupStep + 8 * p, upper_halves(even, odd));
    }
}
void pack_group_across(const bf16* from, int64_t stride, int64_t sides, int64_t depth, bf16* to) {
  for (int64_t l = 0; l < depth; l += kDeep, to += kGroupStep) {
    const auto row = [&](int64_t r) {
      return vreinterpretq_u16_bf16(load_eight(from + (l + r) * stride, l + r < depth ? sides : 0));
    };
    const uint16x8_t even[2] = {vzip1q_u16(row(0), row(2)), vzip2q_u16(row(0), row(2))};
    const uint16x8_t odd[2] = {vzip1q_u16(row(1), row(3)), vzip2q_u16(row(1), row(3))};
    for (int half = 0; half < 2; ++half) {
      vst1q_u16(&to[16 * half].bits, vzip1q_u16(even[half], odd[half]));
      vst1q_u16(&to[16 * half + 8].bits, vzip2q_u16(even[half], odd[half]));
    }
  }
}
void bf16_pack(const bf16* from, int64_t stride, bool across, int64_t sides, int64_t depth, bf16* to) {
  for (int64_t side = 0; side < sides; side += kSide, to += steps_of(depth) * kGroupStep) {
    const int64_t count = smaller(sides - side, kSide);
    if (across)
      pack_group_across(from + side, stride, count, depth, to);
    else
      pack_group(from + side * stride, stride, count, depth, to);
  }
}

void bf16_multiply(const bf16* a, const bf16* b, int64_t m, int64_t n, int64_t k, float* c, int64_t stride, bool add) {
  const int64_t steps = steps_of(k), group = steps * kGroupStep;
  for (int64_t s = 0; s < steps; s += kBlockDepth / kDeep)
    for (int64_t i = 0; i < m; i += kBlockRows)
      multiply_block(a + i / kSide * group + s * kGroupStep, group, b + s * kGroupStep, group,
                     smaller(m - i, kBlockRows), n, smaller(steps - s, kBlockDepth / kDeep), c + i * stride, stride,
                     add || s > 0);
}

// ---- RowLinear: x in groups of kSide rows, or for no more rows than that in one of whole pairs
int64_t whole_depth(int64_t k) { return (k + kBf16Step - 1) / kBf16Step * kBf16Step; }
int64_t rows_of_group(int64_t columns) { return columns >= kSide ? kSide : (columns + 1) / 2 * 2; }

void bf16_group(Float type, const void* x, int64_t rows, int64_t columns, int64_t k, bf16* to) {
  const int64_t of_group = rows_of_group(columns), depth = whole_depth(k);
  for_type(type, [&](auto tag) {
    const auto* from = static_cast<const decltype(tag)*>(x);
    for (int64_t r = 0; r < (columns + of_group - 1) / of_group * of_group; ++r)
      for (int64_t i = 0; i < depth; i += kWidth) {
        bf16 some[kWidth] = {};
        if (r < rows && i < k) {
          const int64_t lanes = smaller(k - i, kWidth);
          store(some, load(from + r * k + i, lanes), lanes);
        }
        bf16* at = to + r / of_group * of_group * depth + (i * of_group + r % of_group * kDeep);
        __builtin_memcpy(at, some, 2 * kDeep);
        __builtin_memcpy(at + of_group * kDeep, some + kDeep, 2 * kDeep);
      }
  });
}

// At most 2 kXs rows of x, with w as it lies: of its rows some of each part of w together, streams far apart, of which the
// memory gives more than of one.
template <int kXs>
void few_rows(const bf16* x, int64_t rows, const bf16* w, float* out, int64_t stride, int64_t n, int64_t k) {
  constexpr int kWs = kXs == 1 ? 8 : 4, kRows = 2 * kWs;
  constexpr int64_t kAhead = 512;  // elements of each row to ask for early
  const int64_t apart = (n + kRows - 1) / kRows;
  for (int64_t j = 0; j < apart; ++j) {
    const bf16* from[kRows];  // the last again where there are fewer
    for (int64_t r = 0; r < kRows; ++r) from[r] = w + smaller(j + r * apart, n - 1) * k;
    float32x4_t sums[kXs][kWs] = {};
    const auto step = [&](int64_t l, auto load_row) __attribute__((always_inline)) {
      const bf16* of_x = x + l * 2 * kXs;
      bfloat16x8_t low[kXs], high[kXs];
      for (int i = 0; i < kXs; ++i) low[i] = load_eight(of_x + 8 * i), high[i] = load_eight(of_x + 8 * (kXs + i));
      for (int p = 0; p < kWs; ++p) {
        const bfloat16x8_t even = load_row(from[2 * p] + l), odd = load_row(from[2 * p + 1] + l);
        const bfloat16x8_t lower = lower_halves(even, odd), upper = upper_halves(even, odd);
        for (int i = 0; i < kXs; ++i) {
          sums[i][p] = vbfmmlaq_f32(sums[i][p], low[i], lower);
          sums[i][p] = vbfmmlaq_f32(sums[i][p], high[i], upper);
        }
      }
    };
    int64_t l = 0;
    for (; l + 32 <= k; l += 32) {
      for (const bf16* each : from) __builtin_prefetch(each + l + kAhead);
      for (int64_t i = 0; i < 32; i += 8) step(l + i, [](const bf16* p) { return load_eight(p); });
    }
    for (; l < k; l += 8) step(l, [&](const bf16* p) { return load_eight(p, k - l); });
    float all[2 * kXs][kRows];
    store_sums(sums, all[0], kRows);
    for (int64_t q = 0; q < rows; ++q)
      for (int64_t r = 0; r < kRows && j + r * apart < n; ++r) out[q * stride + j + r * apart] = all[q][r];
  }
}

void bf16_tiles(const bf16* x, int64_t rows, const void* weights, float*, float* out, int64_t stride, int64_t n,
                int64_t k) {
  const auto* w = static_cast<const bf16*>(weights);
  if (rows <= 2) return few_rows<1>(x, rows, w, out, stride, n, k);
  if (rows <= 4) return few_rows<2>(x, rows, w, out, stride, n, k);
  if (rows <= 6) return few_rows<3>(x, rows, w, out, stride, n, k);
  if (rows <= 8) return few_rows<4>(x, rows, w, out, stride, n, k);
  alignas(64) bf16 packed[kBlockRows * kBlockDepth];
  for (int64_t l = 0; l < k; l += kBlockDepth)
    for (int64_t j = 0; j < n; j += kBlockRows) {
      const int64_t columns = smaller(n - j, kBlockRows), depth = smaller(k - l, kBlockDepth), steps = steps_of(depth);
      bf16_pack(w + j * k + l, k, false, columns, depth, packed);
      for (int64_t r = 0; r < rows; r += kSide)
        multiply_block(x + r * whole_depth(k) + l * kSide, 0, packed, steps * kGroupStep, smaller(rows - r, kSide),
                       columns, steps, out + r * stride + j, stride, l > 0);
    }
}

}  // namespace

void fill_bf16_tiles(Table& table) {
  table.bf16_group = bf16_group;
  table.bf16_tiles = bf16_tiles;
  table.bf16_pack = bf16_pack;
  table.bf16_multiply = bf16_multiply;
}

}  // namespace qeng::isa::QENG_ISA
