// Packed codes (kernels/math/kv_codes.h) as fragments of mma: how a thread finds its codes in the words of a tile, and
// the tables in shared memory that turn a group of codes at once into a group of levels.
//
// With 16 keys as rows of A, the order of the contraction is free if the other operand has the same: thread t of a quad
// takes dimensions 8 t .. 8 t + 7 of a run for two products, rows g and g + 8 are slots 2 g and 2 g + 1. With 16
// dimensions of values as rows, two products are of the 32 slots of two tiles: it takes slots 8 (t % 2) .. + 7 of tile
// t / 2, and rows g and g + 8 are lanes 2 g and 2 g + 1.
//
// Groups have two codes of 3 or 4 bits or four of 1 or 2. An entry of a table is a group's 16-bit levels, once for each
// bank that may ask: 32 times 4 bytes, or 16 times 8, of which half a warp asks at a time. So no two lanes ever meet in
// a bank, whatever their codes. Keys' and values' tables take turns of 128 bytes: a byte of codes over a lane's place in
// an entry is an address, made by one instruction.
#pragma once
#include "kernels/cuda/attention/attention.h"
#include "kernels/math/kv_codes.h"

namespace qeng {

constexpr int kEntryBytes = 256;
__host__ __device__ constexpr int group_codes(int bits) { return bits >= 3 ? 2 : 4; }
__host__ __device__ constexpr int group_entries(int bits) { return 1 << (bits * group_codes(bits)); }

// Where the tables of a width lie: those of bytes (2 and 4 bits) in front, the others behind. Of any two neighbouring
// widths one is each, so a side has room for both of its own.
__host__ __device__ constexpr bool bytes_of_codes(int bits) { return bits % 2 == 0; }
struct CodeTables {
  int byte_entries, other_entries;
  __host__ __device__ int bytes() const { return (byte_entries + other_entries) * kEntryBytes; }
  __host__ __device__ void add(int bits) {
    int& entries = bytes_of_codes(bits) ? byte_entries : other_entries;
    if (entries < group_entries(bits)) entries = group_entries(bits);
  }
  __host__ __device__ void add(const kv_codes::Shape& shape) {
    if (shape.wide < shape.dim) add(shape.bits);
    if (shape.wide > 0) add(shape.bits + 1);
  }
};

// f(bits), as a constant.
template <class F>
__device__ void for_bits(int bits, F f) {
  if (bits == 4)
    f(std::integral_constant<int, 4>());
  else if (bits == 3)
    f(std::integral_constant<int, 3>());
  else if (bits == 2)
    f(std::integral_constant<int, 2>());
  else
    f(std::integral_constant<int, 1>());
}

// Fills the table of a width by all threads of a block. values: its turn of 128 bytes, and levels in bf16 instead of
// f16, as the probabilities that they are multiplied with need the range. A thread has every 16th entry.
template <int kThreads, int bits>
__device__ void fill_table(char* table, const float* levels, bool values) {
  constexpr int kChunks = 128 / 16, kEvery = kThreads / kChunks, kOwn = (group_entries(bits) + kEvery - 1) / kEvery;
  const int own = static_cast<int>(threadIdx.x) / kChunks % kEvery, chunk = static_cast<int>(threadIdx.x) % kChunks;
  const auto pair = [&](int i, int place) {  // codes `place` and the next of an entry
    const int at = (i * kEvery | own) >> (place * bits), mask = (1 << bits) - 1;
    const float low = levels[at & mask], high = levels[at >> bits & mask];
    return values ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high);
  };
  uint32_t pairs[kOwn][2];
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    pairs[i][0] = pair(i, 0), pairs[i][1] = group_codes(bits) == 4 ? pair(i, 2) : pairs[i][0];
  char* const to = table + own * kEntryBytes + (values ? 128 : 0) + 16 * chunk;
#pragma unroll
  for (int i = 0; i < kOwn; ++i)
    if (i * kEvery + own < group_entries(bits))
      *reinterpret_cast<uint4*>(to + i * kEvery * kEntryBytes) =
          make_uint4(pairs[i][0], pairs[i][1], pairs[i][0], pairs[i][1]);
}
template <int kThreads>
__device__ void fill_tables(char* tables, const CodeTables& layout, const kv_codes::Shape& shape, const float* levels,
                            bool values) {
  const auto fill = [&](int width, const float* from) {
    for_bits(width, [&](auto bits) {
      constexpr int kBits = decltype(bits)::value;
      fill_table<kThreads, kBits>(tables + (bytes_of_codes(kBits) ? 0 : layout.byte_entries * kEntryBytes), from,
                                  values);
    });
  };
  if (shape.wide < shape.dim) fill(shape.bits, levels);
  if (shape.wide > 0) fill(shape.bits + 1, levels + (1 << shape.bits));
}

// The bit of a lane where a thread's eight codes of a key begin, or of a dimension of a half of a run of values.
__device__ inline int key_bit(int bits, int t) { return 8 * bits * t; }
__device__ inline int value_bit(int bits, int half, int t) { return bits * (16 * half + 8 * (t % 2)); }

// A thread's view of the tables of a side, and of runs of that side in shared memory.
struct CodeReader {
  const char* tables;
  uint32_t lane4, lane8, other4, other8;  // its place in an entry of groups of 4 and of 8 bytes, of bytes and of others
  int g, t;

  __device__ CodeReader(const char* memory, const CodeTables& layout, bool values) : tables(memory) {
    const uint32_t lane = threadIdx.x % kWarp, turn = values ? 128 : 0;
    const uint32_t others = static_cast<uint32_t>(layout.byte_entries * kEntryBytes);  // 0 or 2^16: no bit of an index
    lane4 = turn + 4 * lane, lane8 = turn + lane % 16 * 8, other4 = others + lane4, other8 = others + lane8;
    g = static_cast<int>(lane) / 4, t = static_cast<int>(lane) % 4;
  }

  // The words of lanes 2 g and 2 g + 1 in which a bit of them lies.
  __device__ uint2 words(const char* run, int bit) const {
    return *reinterpret_cast<const uint2*>(run + 4 * (kv_codes::kLanes * (bit / 32) + 2 * g));
  }
  // The group at byte `index` of a word.
  __device__ uint32_t two(uint32_t word, uint32_t index) const {
    return *reinterpret_cast<const uint32_t*>(tables + __byte_perm(word, lane4, 0x5504u + 16 * index));
  }
  __device__ uint2 four(uint32_t word, uint32_t index) const {
    return *reinterpret_cast<const uint2*>(tables + __byte_perm(word, lane8, 0x5504u + 16 * index));
  }
  // Of six bits, or of four, that lie `place` groups up in a string.
  __device__ uint32_t two_of_three(uint32_t string, int place) const {
    const uint32_t moved = place < 2 ? string << (8 - 6 * place) : string >> (6 * place - 8);
    return *reinterpret_cast<const uint32_t*>(tables + ((moved & 0x3f00u) | other4));
  }
  __device__ uint2 four_of_one(uint32_t string, int place) const {
    return *reinterpret_cast<const uint2*>(tables + ((string << (8 - 4 * place) & 0xf00u) | other8));
  }

  // A of two products: of the thread's lanes the eight codes from `bit` on, a multiple of eight codes.
  template <int bits>
  __device__ void fragments(const char* run, int bit, uint32_t (&first)[4], uint32_t (&second)[4]) const {
    const uint2 low = words(run, bit);
    if constexpr (bits == 4) {
      first[0] = two(low.x, 0), first[1] = two(low.y, 0), first[2] = two(low.x, 1), first[3] = two(low.y, 1);
      second[0] = two(low.x, 2), second[1] = two(low.y, 2), second[2] = two(low.x, 3), second[3] = two(low.y, 3);
    } else if constexpr (bits == 3) {
      const uint2 high = words(run, bit + 8 * bits - 1);  // the same, or the next
      const uint32_t even = __funnelshift_r(low.x, high.x, static_cast<unsigned>(bit)),
                     odd = __funnelshift_r(low.y, high.y, static_cast<unsigned>(bit));
      first[0] = two_of_three(even, 0), first[1] = two_of_three(odd, 0);
      first[2] = two_of_three(even, 1), first[3] = two_of_three(odd, 1);
      second[0] = two_of_three(even, 2), second[1] = two_of_three(odd, 2);
      second[2] = two_of_three(even, 3), second[3] = two_of_three(odd, 3);
    } else {
      const auto product = [&](int half, uint32_t(&a)[4]) {
        const uint32_t byte = static_cast<uint32_t>(bit / 8 % 4 + half);
        const uint2 even = bits == 2 ? four(low.x, byte) : four_of_one(low.x >> bit, half),
                    odd = bits == 2 ? four(low.y, byte) : four_of_one(low.y >> bit, half);
        a[0] = even.x, a[1] = odd.x, a[2] = even.y, a[3] = odd.y;
      };
      product(0, first), product(1, second);
    }
  }
};

}  // namespace qeng
