// Rows of activations rounded to int8, and their dot products with weights of block formats as they lie in memory.
#include "kernels/cpu/isa/block_dot.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/math/blocks/activations.h"

namespace qeng::isa::QENG_ISA {
namespace {

int activation_planes(DType format) {
  int planes = 1;
  blocks::with_block(format, [&](auto block) { planes = Dot<decltype(block)>::kPlanes; });
  return planes;
}

template <int group, int planes>
void round_groups(const float* x, const Activations& to, int64_t row) {
  const int64_t groups = to.k / group;
  int8_t* codes = to.codes + row * to.k;
  for (int64_t b = 0; b < groups; ++b, x += group, codes += group) {
    Largest largest;
    for (int i = 0; i < group; i += 8) largest.add(x + i);
    const blocks::ActivationGroup rounded = blocks::activation_group(largest.value());
    alignas(32) int8_t ordered[group];
    for (int i = 0; i < group; i += 32) {
      Bytes part = splat_byte(0);
      if (rounded.inverse != 0.0f) part = to_codes(x + i, rounded.inverse);
      store_bytes((planes == 1 ? codes : ordered) + i, part);
    }
    if constexpr (planes > 1)
      for (int i = 0; i < group; ++i) codes[i % planes * (group / planes) + i / planes] = ordered[i];
    to.scales[row * groups + b] = rounded.scale;
    Ints total = splat_int(0);
    for (int i = 0; i < group / 32; ++i) {
      const Ints fours = sum_of_bytes(load_bytes(codes + 32 * i));
      total = add(total, fours);
      if constexpr (group == 256) {
        int32_t parts[8];
        store_ints(parts, fours);
        const int low = parts[0] + parts[1] + parts[2] + parts[3], high = parts[4] + parts[5] + parts[6] + parts[7];
        int16_t* sums_16 = to.sums_16 + (row * groups + b) * 16;
        sums_16[i] = static_cast<int16_t>(low), sums_16[8 + i] = static_cast<int16_t>(high);
        to.sums_32[(row * groups + b) * 8 + i] = static_cast<int16_t>(low + high);
      }
    }
    to.sums[row * groups + b] = sum(total);
  }
}

void round_activations(DType format, const float* x, const Activations& to, int64_t row) {
  blocks::with_block(format, [&](auto block) {
    using Block = decltype(block);
    round_groups<Block::kElements, Dot<Block>::kPlanes>(x, to, row);
  });
}

// The codes of a block times those of activations, with the groups' factors, still in lanes.
template <class Block, int i = 0>
inline void add_products_of(const Block& b, const int8_t* x, Products& products) {
  if constexpr (i < Block::kElements / 32) {
    const Bytes w = Dot<Block>::template codes<i>(b), a = load_bytes(x + 32 * i);
    if constexpr (Dot<Block>::kMost == 0)
      products = add_products(products, size_of(w), with_sign_of(a, w));
    else
      products = add_products(products, w, a);
    add_products_of<Block, i + 1>(b, x, products);
  }
}
template <class Block, int i = 0>
inline Ints scaled_products(const Block& b, const int8_t* x, const Shorts& scales, const Ints& before) {
  if constexpr (i == Block::kElements / 32)
    return before;
  else {
    const Products products = add_products(no_products(), Dot<Block>::template codes<i>(b), load_bytes(x + 32 * i));
    return scaled_products<Block, i + 1>(b, x, scales, add(before, widen(products, factors_of<i>(scales))));
  }
}

constexpr int log2(int n) { return n <= 1 ? 0 : 1 + log2(n / 2); }

constexpr int64_t kAhead = 4096;  // bytes of w to ask for early: further than 8 short rows let the processor see

template <class Block>
void dots(const Activations& x, int64_t row, const Block* w, int64_t n, float* out) {
  using D = Dot<Block>;
  constexpr int kElements = Block::kElements, kRows = 8;
  const int64_t count = x.k / kElements;
  const int8_t* codes = x.codes + row * x.k;
  for (int64_t j = 0; j < n; j += kRows) {
    const Block* rows[kRows];  // the last again where there are fewer
    for (int r = 0; r < kRows; ++r) rows[r] = w + (j + r < n ? j + r : n - 1) * count;
    const char* ahead = reinterpret_cast<const char*>(rows[0]) + kAhead;
    Floats y = splat_float(0.0f);
    for (int64_t b = 0; b < count; ++b) {
      for (size_t line = 0; line < kRows * sizeof(Block); line += 64) prefetch(ahead + line);
      ahead += kRows * sizeof(Block);
      const float scale = x.scales[row * count + b];
      Ints dot[kRows], minimum[kRows];
      for (int r = 0; r < kRows; ++r) {
        const Block& block = rows[r][b];
        if constexpr (D::kScaled) {
          const Shorts scales = D::scales(block), sums = load_shorts(x.sums_16 + (row * count + b) * 16);
          dot[r] = scaled_products(block, codes + b * kElements, scales, splat_int(0));
          if constexpr (D::kOffset)
            dot[r] = subtract(dot[r], shift_left<log2(D::kOffset)>(multiply_pairs(scales, sums)));
          if constexpr (has_min<Block>()) minimum[r] = multiply_pairs(D::mins(block), sums);
        } else {
          Products products = no_products();
          add_products_of(block, codes + b * kElements, products);
          dot[r] = widen(products);
        }
      }
      Ints sums = totals(dot);
      const int sum_of_codes = x.sums[row * count + b];
      if constexpr (!D::kScaled && D::kOffset) sums = subtract(sums, splat_int(D::kOffset * sum_of_codes));
      y = multiply_add(to_floats(sums),
                       multiply(gather([&](int r) { return D::factor(rows[r][b]); }), splat_float(scale)), y);
      if constexpr (has_min<Block>()) {
        const Floats times = multiply(gather([&](int r) { return D::minimum_factor(rows[r][b]); }), splat_float(scale));
        if constexpr (D::kScaled)
          y = subtract_product(to_floats(totals(minimum)), times, y);
        else
          y = multiply_add(splat_float(static_cast<float>(sum_of_codes)), times, y);
      }
    }
    float results[kRows];
    store_floats(results, y);
    for (int r = 0; r < kRows && j + r < n; ++r) out[j + r] = results[r];
  }
}

void block_dots(DType format, const Activations& x, int64_t row, const void* w, int64_t n, float* out) {
  blocks::with_block(format, [&](auto block) { dots(x, row, static_cast<const decltype(block)*>(w), n, out); });
}

}  // namespace

void fill_block_dots(Table& table) {
  table.activation_planes = activation_planes;
  table.round_activations = round_activations;
  table.block_dots = block_dots;
}

}  // namespace qeng::isa::QENG_ISA
