// Products for the gated delta rule by bf16 tensor cores, as exact as their operands' type asks. A number is a sum of
// bf16 parts, each the rounded rest of those before it: one part is exact for what was bf16 in memory, two give 16 bits
// of what is computed, three the 24 of f32. A product is the sum of its parts' products but for those below the last
// part. kDirect parts are of x as it lies in memory, kDerived of what is computed. A GPU of 7.5 adds a number's parts, and
// multiplies in f32.
#pragma once
#include "kernels/cuda/ptx/ptx.h"

namespace qeng {

template <class T>
constexpr int kDirect = std::is_same_v<T, float> ? 3 : 1;
template <class T>
constexpr int kDerived = std::is_same_v<T, float> ? 3 : 2;

// Of each part a left operand of mma, 16 x 16, or the right operands of two neighbouring ones, 16 x 8 each: r[.][0] and
// [1] of the first, [2] and [3] of the second.
template <int kParts>
struct Parts {
  uint32_t r[kParts][4];
};

// A left operand's registers as those of a right one whose rows and columns change places, and the other way round.
template <int kParts>
__device__ inline Parts<kParts> swapped(Parts<kParts> operand) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const uint32_t other = operand.r[part][1];
    operand.r[part][1] = operand.r[part][2], operand.r[part][2] = other;
  }
  return operand;
}

// The parts of two numbers, the first in the lower halves.
template <int kParts>
__device__ inline void split(float low, float high, uint32_t (&packed)[kParts]) {
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    packed[part] = ptx::pack_bf16(low, high);
    low -= float_of(packed[part] << 16), high -= float_of(packed[part] & 0xffff0000u);
  }
}
template <int kParts>
__device__ inline void set(Parts<kParts>& operand, int i, float low, float high) {
  uint32_t packed[kParts];
  split(low, high, packed);
#pragma unroll
  for (int part = 0; part < kParts; ++part) operand.r[part][i] = packed[part];
}

// Two neighbouring products of a warp, 16 x 8 each: c[n][2 h + e] is row g + 8 h, column 8 n + 2 t + e.
using Sums16 = float[2][4];

// The numbers of an operand's registers, the lower halves first.
template <int kParts, int kRegisters>
__device__ inline void numbers_of(const uint32_t (&r)[kParts][kRegisters], float (&x)[2 * kRegisters]) {
#pragma unroll
  for (int i = 0; i < 2 * kRegisters; ++i) {
    x[i] = 0;
#pragma unroll
    for (int part = kParts - 1; part >= 0; --part)
      x[i] += float_of(i % 2 ? r[part][i / 2] & 0xffff0000u : r[part][i / 2] << 16);
  }
}
// c += a b by multiply-adds, along k in an order of its own; of operands in registers as mma's.
template <int kRights>
__device__ inline void multiply_numbers(float (&c)[kRights][4], const float (&a)[8], const float (&b)[4 * kRights]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll 1
  for (int t = 0; t < 4; ++t)  // of lanes that have k 2 t, 2 t + 1, 2 t + 8 and 2 t + 9
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float down[2], across[kRights][2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        down[i] = __shfl_sync(kAllLanes, a[k / 2 * 4 + i * 2 + k % 2], lane / 4 * 4 + t);
#pragma unroll
        for (int n = 0; n < kRights; ++n)
          across[n][i] = __shfl_sync(kAllLanes, b[n * 4 + k / 2 * 2 + k % 2], (lane % 4 * 2 + i) * 4 + t);
      }
#pragma unroll
      for (int n = 0; n < kRights; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[n][i] = fmaf(down[i / 2], across[n][i % 2], c[n][i]);
    }
}
template <int kA, int kB>
__device__ inline void multiply_numbers(Sums16& c, const Parts<kA>& a, const Parts<kB>& b) {
  float left[8], right[8];
  numbers_of(a.r, left), numbers_of(b.r, right);
  multiply_numbers(c, left, right);
}

// Calls f(i, j) for the parts of a and b whose products count, smallest products first.
template <int kA, int kB, class F>
__device__ inline void each_product(F f) {
  constexpr int kMost = kA > kB ? kA : kB;
#pragma unroll
  for (int rank = kMost - 1; rank >= 0; --rank)
#pragma unroll
    for (int i = 0; i < kA; ++i)
      if (rank >= i && rank - i < kB) f(i, rank - i);
}

// c += a b
template <int kA, int kB>
__device__ inline void multiply(Sums16& c, const Parts<kA>& a, const Parts<kB>& b) {
  if (!ptx::multiplies_bf16()) return multiply_numbers(c, a, b);
  each_product<kA, kB>([&](int i, int j) {
    ptx::mma_bf16(c[0], a.r[i], b.r[j][0], b.r[j][1]);
    ptx::mma_bf16(c[1], a.r[i], b.r[j][2], b.r[j][3]);
  });
}

// The same into sums apart for each rank of products, which need not wait for each other.
template <int kRanks, int kA, int kB>
__device__ inline void multiply(Sums16 (&c)[kRanks], const Parts<kA>& a, const Parts<kB>& b) {
  static_assert(kRanks >= kA && kRanks >= kB);
  if (!ptx::multiplies_bf16()) return multiply_numbers(c[0], a, b);
#pragma unroll
  for (int i = 0; i < kA; ++i)
#pragma unroll
    for (int j = 0; j < kB; ++j) {
      if (i + j >= kRanks) continue;
      ptx::mma_bf16(c[i + j][0], a.r[i], b.r[j][0], b.r[j][1]);
      ptx::mma_bf16(c[i + j][1], a.r[i], b.r[j][2], b.r[j][3]);
    }
}
template <int kRanks>
__device__ inline float total(const Sums16 (&c)[kRanks], int n, int i) {
  float sum = c[kRanks - 1][n][i];
#pragma unroll
  for (int rank = kRanks - 2; rank >= 0; --rank) sum += c[rank][n][i];
  return sum;
}

// Sums as the left operand of a product that runs over their columns.
template <int kParts>
__device__ inline Parts<kParts> left_of(const Sums16& c) {
  Parts<kParts> a;
#pragma unroll
  for (int i = 0; i < 4; ++i) set(a, i, c[i / 2][i % 2 * 2], c[i / 2][i % 2 * 2 + 1]);
  return a;
}

// An element as the sum of its parts, two neighbours of one part, and eight of whole 16 bytes.
template <int kParts, class Tile>
__device__ inline float value_of(const Tile& tile, int row, int column) {
  float sum = 0;
#pragma unroll
  for (int part = kParts - 1; part >= 0; --part) sum += to_f32(*tile.at(part, row, column));
  return sum;
}
__device__ inline float2 pair_of(const bf16* at) {
  const uint32_t pair = *reinterpret_cast<const uint32_t*>(at);
  return make_float2(float_of(pair << 16), float_of(pair & 0xffff0000u));
}
template <int kParts, class Tile>
__device__ inline void eight_of(const Tile& tile, int row, int column, float (&x)[8]) {
#pragma unroll
  for (int part = kParts - 1; part >= 0; --part) {
    const uint4 eight = *reinterpret_cast<const uint4*>(tile.at(part, row, column));
    const uint32_t pairs[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float each = float_of(i % 2 ? pairs[i / 2] & 0xffff0000u : pairs[i / 2] << 16);
      x[i] = part == kParts - 1 ? each : x[i] + each;
    }
  }
}

// Parts of a matrix in shared memory. Rows are 16 bytes longer than their elements, so that eight of them lie in
// different banks.
constexpr int kRowGap = 8;
template <int kParts>
struct PartsTile {
  bf16* data;
  int rows, columns;

  __device__ int pitch() const { return columns + kRowGap; }
  __device__ bf16* at(int part, int row, int column) const { return data + (part * rows + row) * pitch() + column; }
  __device__ bf16* end() const { return data + elements(rows, columns); }
  __host__ __device__ static constexpr int elements(int rows, int columns) {
    return kParts * rows * (columns + kRowGap);
  }

  // The 16 x 16 block at a row and a column. left: rows are the product's rows, right: its columns; _down: as where
  // the matrix is transposed.
  __device__ Parts<kParts> left(int row, int column) const { return load<false>(row, column, false); }
  __device__ Parts<kParts> right(int row, int column) const { return load<false>(row, column, true); }
  __device__ Parts<kParts> left_down(int row, int column) const { return load<true>(row, column, true); }
  __device__ Parts<kParts> right_down(int row, int column) const { return load<true>(row, column, false); }

  // Sums at a row and a column.
  __device__ void put(int row, int column, const Sums16& c) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t packed[kParts];
        split(c[n][2 * half], c[n][2 * half + 1], packed);
#pragma unroll
        for (int part = 0; part < kParts; ++part)
          *reinterpret_cast<uint32_t*>(at(part, row + lane / 4 + 8 * half, column + 8 * n + lane % 4 * 2)) =
              packed[part];
      }
  }

  __device__ float value(int row, int column) const { return value_of<kParts>(*this, row, column); }
  __device__ float2 pair(int row, int down, int column) const { return pair_of(at(0, row + down, column)); }
  __device__ void eight(int row, int column, float (&x)[8]) const { eight_of<kParts>(*this, row, column, x); }

  // All of it, kRows of kColumns, from memory whose rows have `count` columns and are `stride` elements apart, part after
  // part; or to memory without gaps. The first is not waited for.
  template <int kThreads, int kRows, int kColumns>
  __device__ void fetch(int thread, const bf16* from, int stride, int count) const {
    constexpr int kChunks = kColumns / 8, kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0);
    const int row = static_cast<int>(static_cast<unsigned>(thread) / kChunks),
              chunk = static_cast<int>(static_cast<unsigned>(thread) % kChunks) * 8;
    const bf16* source = from + row * stride + (chunk < count ? chunk : 0);
#pragma unroll
    for (int r = 0; r < kParts * kRows; r += kAtOnce) {
      if (kParts * kRows % kAtOnce != 0 && row + r >= kParts * kRows) break;
      ptx::cp_async_16(data + (row + r) * (kColumns + kRowGap) + chunk, source + r * stride, chunk < count ? 16 : 0);
    }
  }
  template <int kThreads, int kRows, int kColumns>
  __device__ void keep(int thread, bf16* to, int count) const {
    constexpr int kChunks = kColumns / 8, kAtOnce = kThreads / kChunks;
    static_assert(kThreads % kChunks == 0 && kParts * kRows % kAtOnce == 0);
    const int row = static_cast<int>(static_cast<unsigned>(thread) / kChunks),
              chunk = static_cast<int>(static_cast<unsigned>(thread) % kChunks) * 8;
    if (chunk >= count) return;
    to += row * count + chunk;
    const bf16* from = data + row * (kColumns + kRowGap) + chunk;
#pragma unroll
    for (int r = 0; r < kParts * kRows; r += kAtOnce, to += kAtOnce * count)
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from + r * (kColumns + kRowGap));
  }

 private:
  // The four 8 x 8 matrices of a block go down its left half first, or with `across` along its upper half.
  template <bool kTransposed>
  __device__ Parts<kParts> load(int row, int column, bool across) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp, second = lane / 8 % 2 * 8, third = lane / 16 * 8;
    Parts<kParts> operand;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const bf16* from = at(part, row + lane % 8 + (across ? third : second), column + (across ? second : third));
      if constexpr (kTransposed)
        ptx::ldmatrix_x4_trans(operand.r[part], from);
      else
        ptx::ldmatrix_x4(operand.r[part], from);
    }
    return operand;
  }
};

// Starts to fill a tile of so many rows and columns with rows first .. rows - 1 of a matrix that has `count` columns; the
// rest becomes zeros. A thread has one 16-byte chunk of some rows.
template <int kThreads, int kRows, int kColumns>
__device__ inline void fetch_rows(int thread, const PartsTile<1>& tile, const bf16* from, int64_t stride, int count,
                                  int rows, int first = 0) {
  constexpr int kChunks = kColumns / 8, kAtOnce = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0);
  const int row = static_cast<int>(static_cast<unsigned>(thread) / kChunks),
            chunk = static_cast<int>(static_cast<unsigned>(thread) % kChunks) * 8;
  bf16* to = tile.data + row * (kColumns + kRowGap) + chunk;
  if (first == 0 && rows >= kRows && count >= kColumns) {  // as most are
    const bf16* source = from + row * stride + chunk;
#pragma unroll
    for (int r = 0; r < kRows; r += kAtOnce, source += kAtOnce * stride)
      if (kRows % kAtOnce == 0 || row + r < kRows) ptx::cp_async_16(to + r * (kColumns + kRowGap), source);
    return;
  }
  const bf16* source = from + (chunk < count ? chunk : 0);
#pragma unroll
  for (int r = 0; r < kRows; r += kAtOnce) {
    const int i = row + r;
    if (kRows % kAtOnce != 0 && i >= kRows) break;
    const bool real = i >= first && i < rows;
    ptx::cp_async_16(to + r * (kColumns + kRowGap), source + (real ? i : first) * stride,
                     real && chunk < count ? 16 : 0);
  }
}

// Starts to copy n elements that lie one after another, in whole 16 bytes.
template <int kThreads, int n, class T>
__device__ inline void fetch_run(int thread, T* to, const T* from) {
  constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  static_assert(n % kElements == 0);
  to += thread * kElements, from += thread * kElements;
#pragma unroll
  for (int i = 0; i < n; i += kThreads * kElements)
    if (n % (kThreads * kElements) == 0 || i + thread * kElements < n) ptx::cp_async_16(to + i, from + i);
}

// Copies such a run from shared memory.
template <int kThreads, int n>
__device__ inline void keep_run(int thread, bf16* to, const bf16* from) {
#pragma unroll
  for (int i = 0; i < n; i += kThreads * 8)
    if (n % (kThreads * 8) == 0 || i + thread * 8 < n)
      *reinterpret_cast<uint4*>(to + i + thread * 8) = *reinterpret_cast<const uint4*>(from + i + thread * 8);
}

// Waits for the oldest of one or two stages that are on their way.
__device__ inline void wait_stage(int stages) {
  if (stages == 2)
    ptx::cp_async_wait<1>();
  else
    ptx::cp_async_wait<0>();
}

// Rows first .. rows - 1 of a matrix in device memory; the others are zeros. Its blocks are operands as PartsTile's are.
template <class T>
struct MemoryRows {
  static constexpr int kParts = kDirect<T>;
  const T* data;
  int64_t stride;
  int rows, first = 0;

  __device__ float value(int row, int column) const {
    return row >= first && row < rows ? to_f32(data[row * stride + column]) : 0.0f;
  }
  __device__ float2 pair(int row, int down, int column) const {
    return make_float2(value(row + down, column), value(row + down, column + 1));
  }
  __device__ void eight(int row, int column, float (&x)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = value(row, column + i);
  }
  __device__ Parts<kParts> left(int row, int column) const {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
    Parts<kParts> a;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int from = row + 8 * (i % 2) + g, to = column + 8 * (i / 2) + 2 * t;
      set(a, i, value(from, to), value(from, to + 1));
    }
    return a;
  }
  __device__ Parts<kParts> left_down(int row, int column) const { return swapped(right_down(row, column)); }
  __device__ Parts<kParts> right(int row, int column) const { return swapped(left(row, column)); }
  __device__ Parts<kParts> right_down(int row, int column) const {
    const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
    Parts<kParts> b;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int from = row + 8 * (i % 2) + 2 * t, to = column + 8 * (i / 2) + g;
      set(b, i, value(from, to), value(from + 1, to));
    }
    return b;
  }
};

// Parts of a lower triangle of kSize rows and columns, in shared or device memory: bands of 16 rows, each of as many
// columns as its last block of 16 has and kRowGap more, so that a triangle is one run of bytes in both. Right operands
// are as PartsTile's; what lies above the diagonal's blocks may not be asked for.
template <int kNumberParts, int kSize, bool kShared>
struct Triangle {
  static constexpr int kParts = kNumberParts, kBands = kSize / 16;
  static constexpr int kPart = 16 * kBands * (8 * (kBands + 1) + kRowGap);  // elements
  static constexpr int kElements = kParts * kPart;
  static_assert(kPart % 8 == 0);
  bf16* data;

  __device__ static int pitch(int band) { return 16 * (band + 1) + kRowGap; }
  // A row of a band, which the compiler does not always know to be one of its 16.
  __device__ bf16* at(int part, int band, int row, int column) const {
    return data + part * kPart + 16 * band * (8 * (band + 1) + kRowGap) + row * pitch(band) + column;
  }
  __device__ bf16* at(int part, int row, int column) const { return at(part, row / 16, row % 16, column); }
  __device__ float value(int row, int column) const { return value_of<kParts>(*this, row, column); }
  // One element, and two neighbours of a row.
  __device__ void put(int band, int row, int column, float x) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t rounded = ptx::pack_bf16(x, 0);
      at(part, band, row, column)->bits = static_cast<uint16_t>(rounded);
      x -= float_of(rounded << 16);
    }
  }
  __device__ void put(int band, int row, int column, float low, float high) const {
    uint32_t packed[kParts];
    split(low, high, packed);
#pragma unroll
    for (int part = 0; part < kParts; ++part) *reinterpret_cast<uint32_t*>(at(part, band, row, column)) = packed[part];
  }
  // Blocks of 16 x 16 as PartsTile's.
  __device__ Parts<kParts> left_down(int row, int column) const { return swapped(right_down(row, column)); }
  __device__ Parts<kParts> right(int row, int column) const {
    Parts<kParts> b;
    if constexpr (kShared) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ptx::ldmatrix_x4(b.r[part], at(part, row / 16, lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
    } else {
      const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          b.r[part][i] =
              *reinterpret_cast<const uint32_t*>(at(part, row / 16, 8 * (i / 2) + g, column + 8 * (i % 2) + 2 * t));
    }
    return b;
  }
  __device__ Parts<kParts> right_down(int row, int column) const {
    Parts<kParts> b;
    if constexpr (kShared) {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
        ptx::ldmatrix_x4_trans(b.r[part], at(part, row / 16, lane % 8 + lane / 8 % 2 * 8, column + lane / 16 * 8));
    } else {
      const int g = static_cast<int>(threadIdx.x) % kWarp / 4, t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bf16* upper = at(part, row / 16, 8 * (i % 2) + 2 * t, column + 8 * (i / 2) + g);
          b.r[part][i] = uint32_t{upper[pitch(row / 16)].bits} << 16 | upper->bits;
        }
    }
    return b;
  }
};

// Rows of x as a kernel reads them: from shared memory, which takes bf16, or as they lie.
template <class T, bool kStaged>
using RowsOf = std::conditional_t<kStaged, PartsTile<1>, MemoryRows<T>>;

}  // namespace qeng
