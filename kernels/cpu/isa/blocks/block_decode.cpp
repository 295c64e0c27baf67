// Rows of stored dtypes to f32: the values of kernels/math/blocks, bit for bit, 16 weights at a time where a format is
// common. This file is compiled without fused products (CMakeLists.txt).
#include "kernels/cpu/isa/blocks/sixteen_bytes.h"
#include "kernels/math/blocks/with_block.h"

namespace qeng::isa::QENG_ISA {
namespace {

using namespace qeng::blocks;

template <class Block>
void whole(const Block& b, float* out) {
  blocks::decode(b, 0, Block::kElements, out);
}

#if defined(QENG_ISA_avx2) || defined(QENG_ISA_avx512) || defined(QENG_ISA_neon)

// out[i] = d * code[i]  or  d * code[i] - m, codes with sign
inline void put_codes(Bytes codes, float d, float* out) {
  for_codes(codes, [=](int i, Vec q) { store(out + i, splat(d) * q); });
}
inline void put_codes(Bytes codes, float d, float m, float* out) {
  for_codes(codes, [=](int i, Vec q) { store(out + i, splat(d) * q - splat(m)); });
}

void whole(const Q8_0& b, float* out) {
  const float d = scale(b, 0);
  for (int i = 0; i < 32; i += 16) put_codes(bytes_at(b.qs + i), d, out + i);
}

void whole(const Q4_0& b, float* out) {
  const Bytes q = bytes_at(b.qs);
  put_codes(less(low(q), all(8)), scale(b, 0), out);
  put_codes(less(high(q), all(8)), scale(b, 0), out + 16);
}

void whole(const Q4_1& b, float* out) {
  const Bytes q = bytes_at(b.qs);
  put_codes(low(q), scale(b, 0), min(b, 0), out);
  put_codes(high(q), scale(b, 0), min(b, 0), out + 16);
}

void whole(const Int4& b, float* out) {
  if (b.zero > 100) return blocks::decode(b, 0, 32, out);  // the difference has to fit a byte
  const Bytes q = bytes_at(b.qs);
  put_codes(less(low(q), all(b.zero)), scale(b, 0), out);
  put_codes(less(high(q), all(b.zero)), scale(b, 0), out + 16);
}

inline void put_table(uint64_t first_eight, uint64_t others, const uint8_t* qs, float d, float* out) {
  const Bytes table = words(first_eight, others), q = bytes_at(qs);
  put_codes(picked(table, low(q)), d, out);
  put_codes(picked(table, high(q)), d, out + 16);
}
void whole(const IQ4_NL& b, float* out) { put_table(kIq4First, kIq4Others, b.qs, scale(b, 0), out); }
void whole(const MXFP4& b, float* out) { put_table(kFp4First, kFp4Others, b.qs, scale(b, 0), out); }

void whole(const Q4_K& b, float* out) {
  for (int g = 0; g < 8; g += 2, out += 64)
    for (int i = 0; i < 32; i += 16) {
      const Bytes q = bytes_at(b.qs + g * 16 + i);
      put_codes(low(q), scale(b, g), min(b, g), out + i);
      put_codes(high(q), scale(b, g + 1), min(b, g + 1), out + 32 + i);
    }
}

// 16 where a bit of x is set, in each byte.
inline Bytes fifth_bits(Bytes x, int bit) {
  const Bytes mask = all(1 << bit);
  return both(alike(both(x, mask), mask), all(16));
}
void whole(const Q5_K& b, float* out) {
  for (int g = 0; g < 8; g += 2, out += 64)
    for (int i = 0; i < 32; i += 16) {
      const Bytes q = bytes_at(b.qs + g * 16 + i), bits = bytes_at(b.qh + i);
      put_codes(either(low(q), fifth_bits(bits, g)), scale(b, g), min(b, g), out + i);
      put_codes(either(high(q), fifth_bits(bits, g + 1)), scale(b, g + 1), min(b, g + 1), out + 32 + i);
    }
}

// Two bits in the order of q2_k.h: body(first weight of 16, codes).
template <class Body>
inline void for_crumbs(const uint8_t* qs, Body body) {
  for (int i = 0; i < 64; i += 16) {
    const Bytes q = bytes_at(qs + i);
    const int k = i / 32 * 128 + i % 32;
    body(k, crumbs<0>(q)), body(k + 32, crumbs<2>(q)), body(k + 64, crumbs<4>(q)), body(k + 96, crumbs<6>(q));
  }
}
void whole(const Q2_K& b, float* out) {
  for_crumbs(b.qs, [&](int k, Bytes q) { put_codes(q, scale(b, k / 16), min(b, k / 16), out + k); });
}
void whole(const Q3_K& b, float* out) {
  for_crumbs(b.qs, [&](int k, Bytes q) {
    const Bytes mask = all(1 << (k / 32)), unset = alike(both(bytes_at(b.hmask + k % 32), mask), all(0));
    put_codes(less(q, both(unset, all(4))), scale(b, k / 16), out + k);
  });
}
void whole(const TQ2_0& b, float* out) {
  for_crumbs(b.qs, [&](int k, Bytes q) { put_codes(less(q, all(1)), scale(b, 0), out + k); });
}
void whole(const Q6_K& b, float* out) {
  for_crumbs(b.qh, [&](int k, Bytes q) {
    const Bytes two = bytes_at(b.ql + k / 128 * 64 + k % 64), nibbles = k % 128 < 64 ? low(two) : high(two);
    put_codes(less(either(nibbles, four_up(q)), all(32)), scale(b, k / 16), out + k);
  });
}
void whole(const Q2_0& b, float* out) {
  for (int k = 0; k < 64; k += 16) put_codes(less(sixteen_crumbs(b.qs + k / 4), all(1)), scale(b, 0), out + k);
}
void whole(const PQ2_0& b, float* out) {
  for (int k = 0; k < 128; k += 16) put_codes(less(sixteen_crumbs(b.qs + k / 4), all(1)), scale(b, 0), out + k);
}
void whole(const OneBit& b, float* out) { put_signs(b.qs, out); }
void whole(const Ternary& b, float* out) { put_ternary(b.qs, out); }

// Five digits of each of 16 bytes, 16 weights each, `run` apart.
inline void put_trits(const uint8_t* qs, int run, float d, float* out) {
  Trits left(qs);
  for (int n = 0; n < 5; ++n, out += run) put_codes(less(left.next(), all(1)), d, out);
}
void whole(const TQ1_0& b, float* out) {
  const float d = scale(b, 0);
  put_trits(b.qs, 32, d, out), put_trits(b.qs + 16, 32, d, out + 16), put_trits(b.qs + 32, 16, d, out + 160);
  blocks::decode(b, 240, 16, out + 240);
}

#endif

template <class T>
void convert(const void* row, int64_t first, int64_t count, float* out) {
  const T* x = static_cast<const T*>(row) + first;
  for_lanes(count, [=](int64_t i, int64_t lanes) { store(out + i, load(x + i, lanes), lanes); });
}

template <class Block>
void decode_blocks(const Block* row, int64_t first, int64_t count, float* out) {
  constexpr int64_t kElements = Block::kElements;
  const Block* b = row + first / kElements;
  for (int64_t inside = first % kElements; count > 0; ++b, inside = 0) {
    const int64_t n = kElements - inside < count ? kElements - inside : count;
    if (n == kElements) {
      whole(*b, out);
    } else {  // a part of a block
      float values[kElements];
      whole(*b, values);
      for (int64_t i = 0; i < n; ++i) out[i] = values[inside + i];
    }
    out += n, count -= n;
  }
}

void decode(DType dtype, const void* row, int64_t first, int64_t count, float* out) {
  switch (dtype) {
    case DType::f32: return convert<float>(row, first, count, out);
    case DType::bf16: return convert<bf16>(row, first, count, out);
    case DType::f16: return convert<f16>(row, first, count, out);
    default: break;
  }
  with_block(dtype, [=](auto tag) { decode_blocks(static_cast<const decltype(tag)*>(row), first, count, out); });
}

}  // namespace

void fill_block_decode(Table& table) { table.decode = decode; }

}  // namespace qeng::isa::QENG_ISA
