// Rows of activations rounded to int8, and their dot products with weights of block formats as they lie in memory.
#include "kernels/cpu/isa/blocks/block_dot.h"
#include "kernels/cpu/isa/blocks/round_group.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/math/blocks/activations.h"

namespace qeng::isa::QENG_ISA {
namespace {

// Codes that are in the order of Dot<Block>::kPlanes together: for few rows of x those of a block.
template <class Block>
constexpr int run_of(bool few) {
  return few && Dot<Block>::kLanes != GroupLanes::one_group ? Block::kElements : 32;
}

int activation_kind(DType format, bool few) {
  int kind = 0;
  with_dot_block(format, [&](auto block) {
    using D = Dot<decltype(block)>;
    const int run = D::kPlanes > 1 ? run_of<decltype(block)>(few) : 0;
    kind = ((kActivationGroup<decltype(block)> + run) * 16 + D::kPlanes) * 2 + D::kScaled;
  });
  return kind;
}

template <int run, int planes>
void reorder(int8_t* codes, int64_t k) {
  for (; k > 0; codes += run, k -= run) {
    int8_t from[run];
    __builtin_memcpy(from, codes, run);
    for (int i = 0; i < run; ++i) codes[i % planes * (run / planes) + i / planes] = from[i];
  }
}

// Other sums of one group's codes, for formats whose groups have factors.
template <int group>
void sum_codes(const int8_t* codes, const Activations& to, int64_t index) {
  for (int i = 0; i < group / 32; ++i) {
    int16_t pairs[16];
    store_shorts(pairs, sums_of_pairs(load_bytes(codes + 32 * i)));
    const auto four = [&](int first) {
      return static_cast<int16_t>(pairs[first] + pairs[first + 2] + pairs[first + 4] + pairs[first + 6]);
    };
    int16_t* halves = to.halves_16 + (index * 16 + 2 * i) * 2;
    halves[0] = four(0), halves[1] = four(1), halves[2] = four(8), halves[3] = four(9);
    const int low = halves[0] + halves[1], high = halves[2] + halves[3];
    int16_t* sums_16 = to.sums_16 + index * 16;
    sums_16[i] = static_cast<int16_t>(low), sums_16[8 + i] = static_cast<int16_t>(high);
    to.sums_32[index * 8 + i] = static_cast<int16_t>(low + high);
  }
}

template <int group, bool scaled>
void round_rows(const float* x, const Activations& to, int64_t row, int64_t rows) {
  const int64_t of_row = to.k / group, groups = rows * of_row;
  for (int64_t b = 0; b < groups; b += kGroupsTogether) {
    const int count = static_cast<int>(groups - b < kGroupsTogether ? groups - b : kGroupsTogether);
    const int64_t first = row * of_row + b;
    int8_t* codes = to.codes + first * group;
    round_groups(x + b * group, group, count, group, codes, to.scales + first, to.sums + first);
    if constexpr (scaled)
      for (int g = 0; g < count; ++g) sum_codes<group>(codes + g * group, to, first + g);
  }
}

void round_activations(DType format, const float* x, const Activations& to, int64_t row, int64_t rows) {
  with_dot_block(format, [&](auto block) {
    using Block = decltype(block);
    round_rows<kActivationGroup<Block>, Dot<Block>::kScaled>(x, to, row, rows);
    constexpr int kPlanes = Dot<Block>::kPlanes;
    int8_t* codes = to.codes + row * to.k;
    if constexpr (kPlanes > 1)
      to.few ? reorder<run_of<Block>(true), kPlanes>(codes, rows * to.k) : reorder<32, kPlanes>(codes, rows * to.k);
  });
}

// Codes 32 i .. 32 end - 1 of a block, unpacked once, times those of kXs rows of activations, still in lanes: the
// block's in row q begin at x + q * k.
template <class Block, int kXs, int i, int end>
inline void add_products_of(const Block& b, const int8_t* x, int64_t k, Products (&products)[kXs]) {
  if constexpr (i < end) {
    Bytes w;
    if constexpr (Dot<Block>::kLanes != GroupLanes::one_group)
      w = Dot<Block>::template wide_codes<i>(b);
    else
      w = Dot<Block>::template codes<i>(b);
    for (int q = 0; q < kXs; ++q) {
      const Bytes a = load_bytes(x + q * k + 32 * i);
      if constexpr (Dot<Block>::kMost == 0)
        products[q] = add_products(products[q], size_of(w), with_sign_of(a, w));
      else
        products[q] = add_products(products[q], w, a);
    }
    add_products_of<Block, kXs, i + 1, end>(b, x, k, products);
  }
}
// The same of groups with factors.
template <class Block, int kXs, int i = 0>
inline void add_scaled_products(const Block& b, const int8_t* x, int64_t k, const Shorts& scales, Ints (&sums)[kXs]) {
  if constexpr (i < Block::kElements / 32) {
    const Bytes w = Dot<Block>::template codes<i>(b);
    const Shorts factors = factors_of<i>(scales);
    for (int q = 0; q < kXs; ++q) {
      const Bytes a = load_bytes(x + q * k + 32 * i);
      if constexpr (Dot<Block>::kMost == 0)
        sums[q] = add_scaled(sums[q], size_of(w), with_sign_of(a, w), factors);
      else
        sums[q] = add_scaled(sums[q], w, a, factors);
    }
    add_scaled_products<Block, kXs, i + 1>(b, x, k, scales, sums);
  }
}

constexpr int log2(int n) { return n <= 1 ? 0 : 1 + log2(n / 2); }

constexpr int kRows = 8;          // of w at a time: a lane each, once their products are summed
constexpr int64_t kAhead = 1024;  // bytes of each row of w to ask for early

// y[q] += <row row + q of x, each of rows>, over block b, or from its group a of x on. codes: of the block, in the
// first row.
template <class Block, int kXs, int a = 0>
inline void add_groups(const Activations& x, int64_t row, const int8_t* codes, const Block* const (&rows)[kRows],
                       int64_t b, const Floats& factors, const Floats& minimum_factors, Floats (&y)[kXs]) {
  using D = Dot<Block>;
  constexpr int kGroups = kActivationGroups<Block>, kTogether = groups_of(D::kLanes);
  if constexpr (a < kGroups) {
    const int64_t groups = x.k / kActivationGroup<Block>, first = row * groups + b * kGroups + a;
    Ints dot[kXs][kRows], minimum[kXs][kRows];
    const auto multiply_row = [&](int r) __attribute__((always_inline)) {
      const Block& block = rows[r][b];
      if constexpr (D::kScaled) {
        const Shorts scales = D::scales(block);
        Ints totals[kXs];
        for (Ints& total : totals) total = splat_int(0);
        add_scaled_products(block, codes, x.k, scales, totals);
        for (int q = 0; q < kXs; ++q) {
          const Shorts sums = load_shorts(x.sums_16 + (first + q * groups) * 16);
          dot[q][r] = totals[q];
          if constexpr (D::kOffset)
            dot[q][r] = subtract(dot[q][r], shift_left<log2(D::kOffset)>(multiply_pairs(scales, sums)));
          if constexpr (has_min<Block>()) minimum[q][r] = multiply_pairs(D::mins(block), sums);
        }
      } else {
        constexpr int kParts = kActivationGroup<Block> / 32;
        Products products[kXs];
        for (Products& each : products) each = no_products();
        add_products_of<Block, kXs, a * kParts, (a + kTogether) * kParts>(block, codes, x.k, products);
        for (int q = 0; q < kXs; ++q) dot[q][r] = widen(products[q]);
      }
    };
    if constexpr (!D::kScaled && kXs == 1)
      repeat<kRows>(multiply_row);
    else
      for (int r = 0; r < kRows; ++r) multiply_row(r);
    for (int q = 0; q < kXs; ++q) {
      Ints sums[kTogether];
      totals<D::kLanes>(dot[q], sums);
      for (int g = 0; g < kTogether; ++g) {
        const int64_t group = first + q * groups + g;
        const Floats scale = splat_float(x.scales[group]);
        if constexpr (!D::kScaled && D::kOffset) sums[g] = subtract(sums[g], splat_int(D::kOffset * x.sums[group]));
        y[q] = multiply_add(to_floats(sums[g]), multiply(factors, scale), y[q]);
        if constexpr (has_min<Block>()) {
          const Floats times = multiply(minimum_factors, scale);
          if constexpr (D::kScaled)
            y[q] = subtract_product(to_floats(totals(minimum[q])), times, y[q]);
          else
            y[q] = multiply_add(splat_float(static_cast<float>(x.sums[group])), times, y[q]);
        }
      }
    }
    add_groups<Block, kXs, a + kTogether>(x, row, codes, rows, b, factors, minimum_factors, y);
  }
}

// kXs rows of x. Of w, one row of each eighth together: eight streams far enough apart for the processor to follow each
// draw more from the memory than one does, or than eight rows side by side. Not inlined, so that g++ inlines what it calls:
// that has a limit for a function.
template <class Block, int kXs>
__attribute__((noinline)) void dots(const Activations& x, int64_t row, const Block* w, int64_t n, float* out,
                                    int64_t stride) {
  using D = Dot<Block>;
  constexpr int kElements = Block::kElements, kSize = sizeof(Block);
  constexpr int kEvery = kSize < 64 ? 64 / kSize : 1,
                kLines = (kSize * kEvery + 48) / 64;  // blocks, and lines they take
  const int64_t count = x.k / kElements, apart = (n + kRows - 1) / kRows;
  const int8_t* codes = x.codes + row * x.k;
  for (int64_t j = 0; j < apart; ++j) {
    const Block* rows[kRows];  // the last again where there are fewer
    for (int r = 0; r < kRows; ++r) rows[r] = w + (j + r * apart < n ? j + r * apart : n - 1) * count;
    Floats y[kXs];
    for (Floats& each : y) each = splat_float(0.0f);
    for (int64_t b = 0; b < count; ++b) {
      if (b % kEvery == 0)
        for (const Block* each : rows)
          for (int line = 0; line < kLines; ++line)
            prefetch(reinterpret_cast<const char*>(each + b) + kAhead + 64 * line);
      const Floats factors = gather([&](int r) { return D::factor(rows[r][b]); });
      Floats minimum_factors = factors;
      if constexpr (has_min<Block>()) minimum_factors = gather([&](int r) { return D::minimum_factor(rows[r][b]); });
      add_groups(x, row, codes + b * kElements, rows, b, factors, minimum_factors, y);
    }
    for (int q = 0; q < kXs; ++q) {
      float results[kRows];
      store_floats(results, y[q]);
      for (int r = 0; r < kRows && j + r * apart < n; ++r) out[q * stride + j + r * apart] = results[r];
    }
  }
}

// Rows from .. end of x, as many at a time as kXs, then half as many.
template <class Block, int kXs>
void dots_of(const Activations& x, int64_t from, int64_t end, const Block* w, int64_t n, float* out, int64_t stride) {
  for (; from + kXs <= end; from += kXs, out += kXs * stride) dots<Block, kXs>(x, from, w, n, out, stride);
  if constexpr (kXs > 1) dots_of<Block, kXs / 2>(x, from, end, w, n, out, stride);
}

void block_dots(DType format, const Activations& x, int64_t row, int64_t rows, const void* w, int64_t n, float* out,
                int64_t stride) {
  with_dot_block(format, [&](auto block) {
    using Block = decltype(block);
    dots_of<Block, 4>(x, row, row + rows, static_cast<const Block*>(w), n, out, stride);
  });
}

}  // namespace

void fill_block_dots(Table& table) {
  table.activation_kind = activation_kind;
  table.round_activations = round_activations;
  table.block_dots = block_dots;
}

}  // namespace qeng::isa::QENG_ISA
