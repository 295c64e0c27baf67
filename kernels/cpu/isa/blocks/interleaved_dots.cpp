// Dot products of a few rows of activations with weights whose rows lie interleaved by 32 (kernels/math/blocks/
// interleaved.h): the bits of block_dots.cpp, as sums inside a block are exact and blocks follow in the same order.
#include "kernels/cpu/isa/blocks/block_dot.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/math/blocks/interleaved.h"

namespace qeng::isa::QENG_ISA {
namespace {

using blocks::Interleaved;
constexpr int kParts = 4;  // of 8 rows: a vector's lanes
// Bytes of each group of rows to ask for early. A quarter as many leave an Intel Xeon at 70 % of its bandwidth, where
// these reach 83; AMD's ask for more by themselves.
constexpr int64_t kAhead = 4096;
// Groups of rows together, for one row of x: two share its codes where the products are what takes time, or where so
// many codes do not stay in the first level beside the weights that pass.
#if defined(QENG_VNNI)
constexpr int64_t kOneStream = 4096;  // codes of a row up to which one stream is faster
#else
constexpr int64_t kOneStream = 0;
#endif

// Sums of the codes of block b of kGroups groups of rows times those of kXs rows of x, which begin at x + q * k.
#if defined(QENG_VNNI) || defined(QENG_I8MM)
// Products of whole bytes add up in 32 bits, so the lowest one, two, three and all four parts of the codes are multiplied as they lie;
// the differences are the parts'. Even and odd steps have sums of their own, as one addition waits for the one before;
// not on NEON, where it hardly does, and sums are two registers each.
template <int kXs, int kGroups>
inline void add_block(const Interleaved<blocks::TQ2_0>* const (&w)[kGroups], int64_t b, const int8_t* x, int64_t k,
                      const int16_t*, Ints (&sums)[kXs][kGroups][kParts]) {
#if defined(QENG_I8MM)
  constexpr int kSets = 1;
#else
  constexpr int kSets = 2;
#endif
  Products products[kXs][kGroups][kSets][kParts];
  for (auto& of_row : products)
    for (auto& of_group : of_row)
      for (auto& of_set : of_group)
        for (Products& each : of_set) each = no_products();
  for (int step = 0; step < 64; step += 2)
    repeat<2>([&](int odd) {
      for (int g = 0; g < kGroups; ++g) {
        const auto& from = w[g][b].steps[step + odd];
        const Bytes codes = load_bytes(from);
        const Bytes parts[kParts] = {bits<0, 3>(codes), bits<0, 15>(codes), bits<0, 63>(codes), codes};
        if (odd == 0) prefetch(from[0] + kAhead);
        if (g == 0 && odd == 0 && step % 16 == 0)
          __builtin_prefetch(x + 4 * step + 256);  // codes of x of the next block
        for (int q = 0; q < kXs; ++q) {
          const Bytes a = splat_four(x + q * k + 4 * (step + odd));
          for (int p = 0; p < kParts; ++p) {
            Products& sum = products[q][g][odd % kSets][p];
            sum = in_order(add_byte_products(sum, parts[p], a));
          }
        }
      }
    });
  for (int q = 0; q < kXs; ++q)
    for (int g = 0; g < kGroups; ++g) {
      const auto sum = [&](int p) {
        if constexpr (kSets == 1) return products[q][g][0][p];
        return add(products[q][g][0][p], products[q][g][kSets - 1][p]);
      };
      sums[q][g][0] = sum(0);
      sums[q][g][1] = shift_right<2>(subtract(sum(1), sum(0)));
      sums[q][g][2] = shift_right<4>(subtract(sum(2), sum(1)));
      sums[q][g][3] = shift_right<6>(subtract(sum(3), sum(2)));
    }
}
#else
template <int kXs, int kGroups>
inline void add_block(const Interleaved<blocks::TQ2_0>* const (&w)[kGroups], int64_t b, const int8_t* x, int64_t k,
                      const int16_t*, Ints (&sums)[kXs][kGroups][kParts]) {
  // Codes of odd parts stay where they lie, times 4. Products of 8 such steps, and of 32 of the others, fit 16 bits.
  constexpr int kSteps = 64, kOdd = 8, kEven = 32, kHalves = kParts / 2;
  for (int step = 0; step < kSteps; step += kEven) {
    Products even[kXs][kGroups][kHalves];
    for (auto& of_row : even)
      for (auto& of_group : of_row) of_group[0] = of_group[1] = no_products();
    for (int s = step; s < step + kEven; s += kOdd) {
      Products odd[kXs][kGroups][kHalves];
      for (auto& of_row : odd)
        for (auto& of_group : of_row) of_group[0] = of_group[1] = no_products();
      repeat<kOdd>([&](int i) {
        for (int g = 0; g < kGroups; ++g) {
          const auto& from = w[g][b].steps[s + i];
          const Bytes codes = load_bytes(from);
          const Bytes parts[kParts] = {bits<0, 3>(codes), bits<0, 12>(codes), bits<4, 3>(codes), bits<4, 12>(codes)};
          if (i % 2 == 0) prefetch(from[0] + kAhead);
          for (int q = 0; q < kXs; ++q) {
            const Bytes a = splat_four(x + q * k + 4 * (s + i));
            for (int half = 0; half < kHalves; ++half) {
              Products &even_sum = even[q][g][half], &odd_sum = odd[q][g][half];
              even_sum = in_order(add_products(even_sum, parts[2 * half], a));
              odd_sum = in_order(add_products(odd_sum, parts[2 * half + 1], a));
            }
          }
        }
      });
      for (int q = 0; q < kXs; ++q)
        for (int g = 0; g < kGroups; ++g)
          for (int half = 0; half < kHalves; ++half)
            sums[q][g][2 * half + 1] = add(sums[q][g][2 * half + 1], widen(odd[q][g][half]));
    }
    for (int q = 0; q < kXs; ++q)
      for (int g = 0; g < kGroups; ++g)
        for (int half = 0; half < kHalves; ++half)
          sums[q][g][2 * half] = add(sums[q][g][2 * half], widen(even[q][g][half]));
  }
  for (auto& of_row : sums)
    for (auto& of_group : of_row)
      for (int half = 0; half < kHalves; ++half) of_group[2 * half + 1] = shift_right<2>(of_group[2 * half + 1]);
}
#endif

// Products begin with the offset of 32: those of a group's four steps fit 16 bits with it, not without.
template <int kXs, int kGroups>
inline void add_block(const Interleaved<blocks::Q6_K>* const (&w)[kGroups], int64_t b, const int8_t* x, int64_t k,
                      const int16_t* halves, Ints (&sums)[kXs][kGroups][kParts]) {
  for (int sixteen = 0; sixteen < 16; ++sixteen) {
    Products products[kXs][kGroups][kParts];
    for (int q = 0; q < kXs; ++q) {
      const Products start = products_of_pairs(halves + q * k / 8 + 2 * sixteen, -32);
      for (auto& of_group : products[q])
        for (Products& each : of_group) each = start;
    }
    repeat<4>([&](int i) {
      for (int g = 0; g < kGroups; ++g) {
        const auto& step = w[g][b].sixteens[sixteen].steps[i];
        const Bytes low[2] = {load_bytes(step.low[0]), load_bytes(step.low[1])}, high = load_bytes(step.high);
        const Bytes parts[kParts] = {either(bits<0, 15>(low[0]), bits<0, 48>(shift_bits_left<4>(high))),
                                     either(bits<4, 15>(low[0]), bits<0, 48>(shift_bits_left<2>(high))),
                                     either(bits<0, 15>(low[1]), bits<0, 48>(high)),
                                     either(bits<4, 15>(low[1]), bits<2, 48>(high))};
        const uint8_t* ahead = step.low[0][0] + kAhead;
        prefetch(ahead);
        if (i % 2 == 1) prefetch(ahead + 64);
        for (int q = 0; q < kXs; ++q) {
          const Bytes a = splat_four(x + q * k + 4 * (4 * sixteen + i));
          for (int p = 0; p < kParts; ++p) products[q][g][p] = in_order(add_products(products[q][g][p], parts[p], a));
        }
      }
    });
    for (int g = 0; g < kGroups; ++g) {
      const int8_t* from = w[g][b].sixteens[sixteen].scales;
      const Shorts scales[kParts] = {twice_each<0>(from), twice_each<1>(from), twice_each<2>(from),
                                     twice_each<3>(from)};
      for (int q = 0; q < kXs; ++q)
        for (int p = 0; p < kParts; ++p) sums[q][g][p] = add(sums[q][g][p], widen(products[q][g][p], scales[p]));
    }
  }
}

// kGroups groups of rows together: streams far apart, of which the memory gives more than of one, share the codes of x.
template <class Block, int kXs, int kGroups>
void dots(const Activations& x, int64_t row, const Interleaved<Block>* w, int64_t n, float* out, int64_t stride) {
  const int64_t count = x.k / Block::kElements, groups = n / kInterleavedRows, apart = (groups + kGroups - 1) / kGroups;
  for (int64_t j = 0; j < apart; ++j) {
    int64_t index[kGroups];  // the last again where there are fewer
    const Interleaved<Block>* from[kGroups];
    for (int g = 0; g < kGroups; ++g) {
      index[g] = j + g * apart < groups ? j + g * apart : groups - 1;
      from[g] = w + index[g] * count;
    }
    Floats y[kXs][kGroups][kParts];
    for (auto& of_row : y)
      for (auto& of_group : of_row)
        for (Floats& each : of_group) each = splat_float(0.0f);
    for (int64_t b = 0; b < count; ++b) {
      const int64_t block = row * count + b;
      Ints sums[kXs][kGroups][kParts];
      for (auto& of_row : sums)
        for (auto& of_group : of_row)
          for (Ints& each : of_group) each = splat_int(0);
      add_block(from, b, x.codes + block * Block::kElements, x.k, x.halves_16 + block * 32, sums);
      for (int q = 0; q < kXs; ++q) {
        const Floats scale = splat_float(x.scales[block + q * count]);
        const Ints offset = splat_int(Dot<Block>::kScaled ? 0 : Dot<Block>::kOffset * x.sums[block + q * count]);
        for (int g = 0; g < kGroups; ++g)
          for (int p = 0; p < kParts; ++p) {
            const Floats factors = multiply(load_f16(from[g][b].d + 8 * p), scale);
            y[q][g][p] = multiply_add(to_floats(subtract(sums[q][g][p], offset)), factors, y[q][g][p]);
          }
      }
    }
    for (int q = 0; q < kXs; ++q)
      for (int g = 0; g < kGroups; ++g)
        for (int p = 0; p < kParts; ++p)
          store_floats(out + q * stride + index[g] * kInterleavedRows + 8 * p, y[q][g][p]);
  }
}

void interleaved_dots(DType format, const Activations& x, int64_t row, int64_t rows, const void* w, int64_t n,
                      float* out, int64_t stride) {
  blocks::with_interleaved(format, [&](auto tag) {
    using Block = typename decltype(tag)::Plain;
    const auto* data = static_cast<const decltype(tag)*>(w);
    int64_t r = 0;
    for (; r + 2 <= rows; r += 2) dots<Block, 2, 1>(x, row + r, data, n, out + r * stride, stride);
    if (r == rows) return;
    const auto one = x.k <= kOneStream ? dots<Block, 1, 1> : dots<Block, 1, 2>;
    one(x, row + r, data, n, out + r * stride, stride);
  });
}

}  // namespace

void fill_interleaved_dots(Table& table) { table.interleaved_dots = interleaved_dots; }

}  // namespace qeng::isa::QENG_ISA
