// Many rows of activations times weights of block formats: 16 rows of w are repacked as a panel, codes interleaved so
// that each lane of a vector works for a row of its own; then tiles of 16 rows of w by 4 of x stay in registers. Sums
// inside a block are exact and those over blocks take the order of block_dots.cpp, so the results are its bits. With
// AMX tiles of 16 rows of x take most of it (block_tiles_amx.h), with I8MM 2 x 2 sums at a time (block_tiles_i8mm.h).
#include "kernels/cpu/isa/blocks/block_dot.h"
#include "kernels/cpu/isa/blocks/block_panel.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/math/blocks/interleaved.h"
#if defined(QENG_AMX)
#include "kernels/cpu/isa/blocks/block_tiles_amx.h"
#elif defined(QENG_I8MM)
#include "kernels/cpu/isa/blocks/block_tiles_i8mm.h"
#endif

namespace qeng::isa::QENG_ISA {
namespace {

// VNNI's products and NEON's add up in 32 bits. With VNNI codes with a sign lie 128 higher, so that they have none and x keeps its own;
// what that adds is 128 times the sum of x. (AMX multiplies codes with a sign.)
#if defined(QENG_VNNI) || defined(QENG_ISA_neon)
constexpr bool kWideSums = true;
#else
constexpr bool kWideSums = false;
#endif
#if defined(QENG_VNNI) && !defined(QENG_AMX)
template <class Block>
constexpr bool kRaised = Dot<Block>::kMost == 0 && !Dot<Block>::kScaled;
#else
template <class Block>
constexpr bool kRaised = false;
#endif

template <class Block, int i = 0>
inline void unpack(const Block& b, uint8_t* codes) {
  if constexpr (i < Block::kElements / 32) {
    store_bytes(codes + 32 * i, Dot<Block>::template codes<i>(b));
    if constexpr (kRaised<Block>)
      for (int j = 32 * i; j < 32 * i + 32; ++j) codes[j] ^= 0x80;
    unpack<Block, i + 1>(b, codes);
  }
}
inline float as_float(float x) { return x; }
inline float as_float(f16 x) { return to_f32(x); }

template <class Block>
void pack(const Block* w, int64_t n, int64_t count, PanelBlock<Block>* panel) {
  using D = Dot<Block>;
  using P = PanelBlock<Block>;
  for (int64_t b = 0; b < count; ++b)
    for (int row = 0; row < kPanelRows; ++row) {
      const Block& block = w[(row < n ? row : n - 1) * count + b];
      const int side = row / kLanes, lane = row % kLanes;
      P& to = panel[b];
      alignas(32) uint8_t codes[Block::kElements];
      unpack(block, codes);
      for (int step = 0; step < P::kSteps; ++step) __builtin_memcpy(to.codes_at(step, side, lane), codes + 4 * step, 4);
      to.factor[side][lane] = as_float(D::factor(block));
      if constexpr (has_min<Block>()) to.minimum_factor[side][lane] = as_float(D::minimum_factor(block));
      if constexpr (D::kScaled) {
        int16_t scales[16], mins[16];
        store_shorts(scales, D::scales(block));
        if constexpr (has_min<Block>()) store_shorts(mins, D::mins(block));
        for (int g = 0; g < P::kGroups; ++g)  // Shorts: even groups of 16, then odd ones; or groups of 32, twice
          for (int16_t& each : to.scales[g][side][lane]) each = scales[P::kGroups == 16 ? g / 2 + g % 2 * 8 : g];
        if constexpr (P::kSums)
          for (int g = 0; g < P::kGroups; ++g)
            to.mins[g / 2][side][lane][g % 2] =
                has_min<Block>() ? mins[g] : static_cast<int16_t>(scales[g] * D::kOffset);
      }
    }
}

// The codes of a step of all rows of a side.
template <class Block>
inline void put_step(PanelBlock<Block>& to, int step, int side, Bytes codes) {
#if defined(QENG_I8MM)
  uint8_t each[kLanes][4];
  store_bytes(each, codes);
  for (int lane = 0; lane < kLanes; ++lane) __builtin_memcpy(to.codes_at(step, side, lane), each[lane], 4);
#else
  store_bytes(to.codes[step][side], codes);
#endif
}

// The half of a group of 32 rows that begins with row `first`.
void pack(const blocks::Interleaved<blocks::Q6_K>* w, int first, int64_t count, PanelBlock<blocks::Q6_K>* panel) {
  for (int64_t b = 0; b < count; ++b) {
    auto& to = panel[b];
    for (int step = 0; step < to.kSteps; ++step) {
      const auto& from = w[b].sixteens[step / 4].steps[step % 4];
      const Bytes low = load_bytes(from.low[first / kPanelRows]), high = load_bytes(from.high);
      const Bytes bits_4_5[kSides] = {first ? bits<0, 48>(high) : bits<0, 48>(shift_bits_left<4>(high)),
                                      first ? bits<2, 48>(high) : bits<0, 48>(shift_bits_left<2>(high))};
      put_step(to, step, 0, either(bits<0, 15>(low), bits_4_5[0]));
      put_step(to, step, 1, either(bits<4, 15>(low), bits_4_5[1]));
    }
    for (int side = 0; side < kSides; ++side) {
      const int row = first + kLanes * side;
      store_floats(to.factor[side], load_f16(w[b].d + row));
      for (int g = 0; g < 16; ++g)
        for (int lane = 0; lane < kLanes; ++lane) {
          const int16_t scale = w[b].sixteens[g].scales[row + lane];
          to.scales[g][side][lane][0] = to.scales[g][side][lane][1] = scale;
          const int entry = g / 2 + g % 2 * 8;  // of the sums of x, which are Shorts
          to.mins[entry / 2][side][lane][entry % 2] = static_cast<int16_t>(scale * Dot<blocks::Q6_K>::kOffset);
        }
    }
  }
}

// The half of a group of 32 rows that begins with row `first`.
void pack(const blocks::Interleaved<blocks::TQ2_0>* w, int first, int64_t count, PanelBlock<blocks::TQ2_0>* panel) {
  for (int64_t b = 0; b < count; ++b) {
    auto& to = panel[b];
    for (int step = 0; step < to.kSteps; ++step) {
      const Bytes codes = load_bytes(w[b].steps[step]);
      put_step(to, step, 0, first ? bits<4, 3>(codes) : bits<0, 3>(codes));
      put_step(to, step, 1, first ? bits<6, 3>(codes) : bits<2, 3>(codes));
    }
    for (int side = 0; side < kSides; ++side) store_floats(to.factor[side], load_f16(w[b].d + first + kLanes * side));
  }
}

// Steps whose products fit together in an int16, a power of two; all of them where they add up in 32 bits.
constexpr int steps_that_fit(int most, int steps) {
  int fit = steps;
  if (kWideSums) return fit;
  while (fit > 1 && (most ? fit * most * 254 : fit * 32512) > 32767) fit /= 2;
  return fit;
}

// <rows of x, rows of the panel> over a group of x, whose codes begin there, and at step `begin` of a block of w.
#if defined(QENG_I8MM)
template <int kRows, class Block>
inline void group_dots(const int8_t* codes, int64_t k, const PanelBlock<Block>& w, int begin,
                       Ints (&dots)[kSides][kRows]) {
  if constexpr (Dot<Block>::kScaled) {  // the sums of all rows and their factors are more than there are registers
    dots_of_pairs<kRows, Block, 1>(codes, k, w, begin, 0, dots);
    dots_of_pairs<kRows, Block, 1>(codes, k, w, begin, 1, dots);
  } else {
    dots_of_pairs<kRows, Block, kSides>(codes, k, w, begin, 0, dots);
  }
}
#else
template <int kRows, class Block>
inline void group_dots(const int8_t* codes, int64_t k, const PanelBlock<Block>& w, int begin,
                       Ints (&dots)[kSides][kRows]) {
  using D = Dot<Block>;
  constexpr int kSteps = kActivationGroup<Block> / 4, kGroupSteps = D::kScaled ? Block::kGroup / 4 : kSteps;
  constexpr int kFit = steps_that_fit(D::kMost, kGroupSteps);
  for (auto& side : dots)
    for (Ints& each : side) each = splat_int(0);
  for (int step = 0; step < kSteps; step += kFit) {
    Products products[kSides][kRows];
    for (auto& side : products)
      for (Products& each : side) each = no_products();
    for (int s = step; s < step + kFit; ++s) {
      const Bytes left = load_bytes(w.codes[begin + s][0]), right = load_bytes(w.codes[begin + s][1]);
      repeat<kRows>([&](int r) {
        const Bytes of_x = splat_four(codes + r * k + 4 * s);
        const auto more = [&](Products before, Bytes codes_of_w) {
          if constexpr (D::kMost == 0 && !kRaised<Block>)
            return in_order(add_products(before, size_of(codes_of_w), with_sign_of(of_x, codes_of_w)));
          else
            return in_order(add_products(before, codes_of_w, of_x));
        };
        products[0][r] = more(products[0][r], left);
        products[1][r] = more(products[1][r], right);
      });
    }
    for (int side = 0; side < kSides; ++side)
      for (int r = 0; r < kRows; ++r)
        dots[side][r] =
            add(dots[side][r], D::kScaled ? widen(products[side][r], load_shorts(w.scales[step / kGroupSteps][side]))
                                          : widen(products[side][r]));
  }
}
#endif

template <int kRows, class Block>
inline void tile(const Activations& x, int64_t first, const PanelBlock<Block>* panel, float* out, int64_t stride) {
  using D = Dot<Block>;
  using P = PanelBlock<Block>;
  constexpr int kGroup = kActivationGroup<Block>, kSteps = kGroup / 4;
  const int64_t groups = x.k / kGroup;
  Floats y[kSides][kRows];
  for (auto& side : y)
    for (Floats& each : side) each = splat_float(0.0f);
  for (int64_t a = 0; a < groups; ++a) {
    constexpr int kInBlock = kActivationGroups<Block>;
    const P& w = panel[a / kInBlock];
    const int begin = static_cast<int>(a % kInBlock) * kSteps;
    const int8_t* codes = x.codes + first * x.k + a * kGroup;
    Ints dots[kSides][kRows];
    group_dots(codes, x.k, w, begin, dots);
    for (int r = 0; r < kRows; ++r) {
      const int64_t group = (first + r) * groups + a;
      const Floats scale = splat_float(x.scales[group]);
      const Ints sum = splat_int(x.sums[group]);
      for (int side = 0; side < kSides; ++side) {
        Ints less = splat_int(0);
        if constexpr (P::kSums)
          for (int pair = 0; pair < P::kGroups / 2; ++pair) {
            const int16_t* sums = P::kGroups == 16 ? x.sums_16 + group * 16 : x.sums_32 + group * 8;
            less = add(less, multiply_pairs(load_shorts(w.mins[pair][side]), splat_pair(sums + 2 * pair)));
          }
        Ints dot = dots[side][r];
        if constexpr (D::kScaled && D::kOffset) dot = subtract(dot, less);
        constexpr int kLess = kRaised<Block> ? 128 : D::kOffset;
        if constexpr (!D::kScaled && kLess) dot = subtract(dot, multiply_ints(sum, splat_int(kLess)));
        Floats& total = y[side][r];
        total = multiply_add(to_floats(dot), multiply(load_floats(w.factor[side]), scale), total);
        if constexpr (has_min<Block>()) {
          const Floats times = multiply(load_floats(w.minimum_factor[side]), scale);
          if constexpr (D::kScaled)
            total = subtract_product(to_floats(less), times, total);
          else
            total = multiply_add(to_floats(sum), times, total);
        }
      }
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int side = 0; side < kSides; ++side) store_floats(out + r * stride + side * kLanes, y[side][r]);
}

int64_t panel_bytes(DType format, int64_t k) {
  int64_t bytes = 0;
  with_dot_block(format, [&](auto block) {
    using Block = decltype(block);
    bytes = k / Block::kElements * static_cast<int64_t>(sizeof(PanelBlock<Block>));
  });
  return bytes;
}

void pack_panel(DType format, bool interleaved, const void* w, int64_t first, int64_t n, int64_t k, void* panel) {
  if (interleaved)
    return blocks::with_interleaved(format, [&](auto tag) {
      using Interleaved = decltype(tag);
      using Block = typename Interleaved::Plain;
      const int64_t count = k / Block::kElements;
      const auto* group = static_cast<const Interleaved*>(w) + first / kInterleavedRows * count;
      pack(group, static_cast<int>(first % kInterleavedRows), count, static_cast<PanelBlock<Block>*>(panel));
    });
  with_dot_block(format, [&](auto block) {
    using Block = decltype(block);
    const int64_t count = k / Block::kElements;
    pack(static_cast<const Block*>(w) + first * count, n, count, static_cast<PanelBlock<Block>*>(panel));
  });
}

void block_tiles(DType format, const Activations& x, int64_t first, int64_t rows, const void* panel, float* out,
                 int64_t stride) {
  with_dot_block(format, [&](auto block) {
    const auto* w = static_cast<const PanelBlock<decltype(block)>*>(panel);
    int64_t r = 0;
#if defined(QENG_AMX)
    r = matrix_tiles(x, first, rows, w, out, stride);
#endif
    for (; r + 4 <= rows; r += 4) tile<4>(x, first + r, w, out + r * stride, stride);
    for (; r < rows; ++r) tile<1>(x, first + r, w, out + r * stride, stride);
  });
}

}  // namespace

void fill_block_tiles(Table& table) {
  table.panel_bytes = panel_bytes;
  table.pack_panel = pack_panel;
  table.block_tiles = block_tiles;
#if defined(QENG_AMX)
  table.matrix_tiles = true;
#endif
}

}  // namespace qeng::isa::QENG_ISA
