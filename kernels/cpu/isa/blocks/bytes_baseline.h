// bytes.h for any machine, in plain C++.
#pragma once

namespace qeng::isa::QENG_ISA {

template <class T, int n>
struct Lanes {
  using Lane = T;
  T v[n];
};
using Bytes = Lanes<uint8_t, 32>;
using Shorts = Lanes<int16_t, 16>;
using Ints = Lanes<int32_t, 8>;
using Floats = Lanes<float, 8>;
using Products = Ints;

// Lane i is f(i).
template <class Result, class F>
inline Result lanes(F f) {
  Result r;
  for (int i = 0; i < static_cast<int>(sizeof(r.v) / sizeof(r.v[0])); ++i)
    r.v[i] = static_cast<typename Result::Lane>(f(i));
  return r;
}
inline const uint8_t* bytes_at(const void* p) { return static_cast<const uint8_t*>(p); }

// ---- Bytes
inline Bytes load_bytes(const void* p) {
  return lanes<Bytes>([=](int i) { return bytes_at(p)[i]; });
}
inline Bytes load_twice(const void* p) {
  return lanes<Bytes>([=](int i) { return bytes_at(p)[i % 16]; });
}
inline Bytes load_halves(const void* low, const void* high) {
  return lanes<Bytes>([=](int i) { return bytes_at(i < 16 ? low : high)[i % 16]; });
}
inline void store_bytes(void* p, const Bytes& a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline Bytes splat_four(const void* p) {
  return lanes<Bytes>([=](int i) { return bytes_at(p)[i % 4]; });
}
inline Bytes splat_eight(const void* p) {
  return lanes<Bytes>([=](int i) { return bytes_at(p)[i % 8]; });
}
inline Bytes words(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  const uint64_t list[4] = {a, b, c, d};
  return lanes<Bytes>([&](int i) { return static_cast<uint8_t>(list[i / 8] >> (i % 8 * 8)); });
}
inline Bytes splat_byte(int x) {
  return lanes<Bytes>([=](int) { return x; });
}
inline Bytes low_of_first_high_of_second(const Bytes& a, const Bytes& b) {
  return lanes<Bytes>([&](int i) { return i < 16 ? a.v[i] : b.v[i]; });
}
inline Bytes either(const Bytes& a, const Bytes& b) {
  return lanes<Bytes>([&](int i) { return a.v[i] | b.v[i]; });
}
inline Bytes add_bytes(const Bytes& a, const Bytes& b) {
  return lanes<Bytes>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Bytes average(const Bytes& a, const Bytes& b) {
  return lanes<Bytes>([&](int i) { return (a.v[i] + b.v[i] + 1) >> 1; });
}
template <int shift, int mask>
inline Bytes bits(const Bytes& a) {
  return lanes<Bytes>([&](int i) { return (a.v[i] >> shift) & mask; });
}
template <int low, int high>
inline Bytes shift_halves(const Bytes& a) {
  return lanes<Bytes>([&](int i) { return a.v[i] >> (i < 16 ? low : high); });
}
template <int step>
inline Bytes shift_quarters(const Bytes& a) {
  return lanes<Bytes>([&](int i) { return a.v[i] >> i / 8 * step; });
}
template <int step>
inline Bytes shift_eighths(const Bytes& a) {
  return lanes<Bytes>([&](int i) { return a.v[i] >> i / 4 * step; });
}
template <int n>
inline Bytes shift_bits_left(const Bytes& a) {
  return lanes<Bytes>([&](int i) { return a.v[i] << n; });
}
inline Bytes spread_bits(uint32_t word, int value) {
  return lanes<Bytes>([=](int i) { return word >> i & 1 ? value : 0; });
}
inline Bytes look_up(const uint64_t (&table)[2], const Bytes& a) {
  return lanes<Bytes>([&](int i) { return static_cast<uint8_t>(table[a.v[i] / 8] >> (a.v[i] % 8 * 8)); });
}
template <int limit>
inline Bytes third_of_range(const Bytes& a) {
  const auto third = [](int x) { return 1 + (x > limit) - (x < -limit); };
  return lanes<Bytes>([&](int i) { return third(static_cast<int8_t>(a.v[i])); });
}
inline Bytes multiply_bytes(const Bytes& a, const Bytes& b) {
  return lanes<Bytes>([&](int i) { return a.v[i] * b.v[i]; });
}
inline int signed_byte(const Bytes& a, int i) { return static_cast<int8_t>(a.v[i]); }

// ---- Products
inline Products no_products() { return {}; }
inline Products add_products(const Products& p, const Bytes& unsigned_a, const Bytes& signed_b) {
  return lanes<Products>([&](int i) {
    int sum = p.v[i];
    for (int k = 4 * i; k < 4 * i + 4; ++k) sum += unsigned_a.v[k] * signed_byte(signed_b, k);
    return sum;
  });
}
inline Products products_of_pairs(const int16_t* pairs, int factor) {
  return lanes<Products>([=](int) { return factor * (pairs[0] + pairs[1]); });
}
inline Ints widen(const Products& p) { return p; }
inline Ints widen(const Products& p, const Shorts& factors) {
  return lanes<Ints>([&](int i) { return p.v[i] * factors.v[2 * i]; });
}
inline Ints add_scaled(const Ints& sum, const Bytes& unsigned_a, const Bytes& signed_b, const Shorts& factors) {
  const Ints products = widen(add_products(no_products(), unsigned_a, signed_b), factors);
  return lanes<Ints>([&](int i) { return sum.v[i] + products.v[i]; });
}
inline Products in_order(const Products& a) { return a; }
inline Bytes size_of(const Bytes& a) {
  return lanes<Bytes>([&](int i) { return signed_byte(a, i) < 0 ? -signed_byte(a, i) : signed_byte(a, i); });
}
inline Bytes with_sign_of(const Bytes& b, const Bytes& a) {
  return lanes<Bytes>([&](int i) {
    const int sign = signed_byte(a, i);
    return sign < 0 ? -signed_byte(b, i) : sign > 0 ? signed_byte(b, i) : 0;
  });
}

// ---- Shorts
inline Shorts load_shorts(const void* p) {
  Shorts a;
  __builtin_memcpy(a.v, p, sizeof a.v);
  return a;
}
inline Shorts splat_pair(const int16_t* p) {
  return lanes<Shorts>([=](int i) { return p[i % 2]; });
}
inline void store_shorts(void* p, const Shorts& a) { __builtin_memcpy(p, a.v, sizeof a.v); }
template <int shift, int mask>
inline Shorts unsigned_groups_of_16(const void* p) {
  return lanes<Shorts>([=](int i) { return bytes_at(p)[i % 8 * 2 + i / 8] >> shift & mask; });
}
inline Shorts signed_groups_of_16(const void* p) {
  return lanes<Shorts>([=](int i) { return static_cast<int8_t>(bytes_at(p)[i % 8 * 2 + i / 8]); });
}
inline Shorts groups_of_32(uint64_t groups) {
  return lanes<Shorts>([=](int i) { return groups >> (i % 8 * 8) & 255; });
}
inline Shorts signed_groups_of_32(uint64_t groups) {
  return lanes<Shorts>([=](int i) { return static_cast<int8_t>(groups >> (i % 8 * 8)); });
}
template <int i>
inline Shorts factors_of(const Shorts& a) {
  return lanes<Shorts>([&](int lane) { return a.v[lane / 8 * 8 + i]; });
}
template <int p>
inline Shorts twice_each(const int8_t* bytes) {
  return lanes<Shorts>([=](int i) { return bytes[8 * p + i / 2]; });
}
inline Shorts sums_of_pairs(const Bytes& a) {
  return lanes<Shorts>([&](int i) { return signed_byte(a, 2 * i) + signed_byte(a, 2 * i + 1); });
}
inline Ints multiply_pairs(const Shorts& a, const Shorts& b) {
  return lanes<Ints>([&](int i) { return a.v[2 * i] * b.v[2 * i] + a.v[2 * i + 1] * b.v[2 * i + 1]; });
}

// ---- Ints
inline Ints splat_int(int x) {
  return lanes<Ints>([=](int) { return x; });
}
inline Ints load_ints(const int32_t* p) {
  return lanes<Ints>([=](int i) { return p[i]; });
}
inline void store_ints(int32_t* p, const Ints& a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline Ints add(const Ints& a, const Ints& b) {
  return lanes<Ints>([&](int i) { return a.v[i] + b.v[i]; });
}
inline Ints add_pairs(const Ints& sum, const Shorts& a, const Shorts& b) { return add(sum, multiply_pairs(a, b)); }
inline Ints subtract(const Ints& a, const Ints& b) {
  return lanes<Ints>([&](int i) { return a.v[i] - b.v[i]; });
}
inline Ints multiply_ints(const Ints& a, const Ints& b) {
  return lanes<Ints>([&](int i) { return a.v[i] * b.v[i]; });
}
template <int n>
inline Ints shift_left(const Ints& a) {
  return lanes<Ints>([&](int i) { return a.v[i] * (1 << n); });
}
template <int n>
inline Ints shift_right(const Ints& a) {
  return lanes<Ints>([&](int i) { return a.v[i] >> n; });
}
inline int sum(const Ints& a) {
  int total = 0;
  for (int x : a.v) total += x;
  return total;
}
inline Ints totals(const Ints (&rows)[8]) {
  return lanes<Ints>([&](int r) { return sum(rows[r]); });
}
inline Ints largest(const Ints& a, const Ints& b) {
  return lanes<Ints>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Ints largest_of(const Ints (&rows)[8]) {
  return lanes<Ints>([&](int r) {
    int most = rows[r].v[0];
    for (int x : rows[r].v) most = x > most ? x : most;
    return most;
  });
}
template <GroupLanes kind>
inline void totals(const Ints (&rows)[8], Ints (&groups)[groups_of(kind)]) {
  const auto group_of = [](int lane) {
    if (kind == GroupLanes::pairs_of_two) return lane / 2 % 2;
    if (kind == GroupLanes::pairs_of_four) return lane / 2;
    return kind == GroupLanes::singles_of_four ? lane % 4 : 0;
  };
  for (int g = 0; g < groups_of(kind); ++g)
    groups[g] = lanes<Ints>([&](int r) {
      int total = 0;
      for (int lane = 0; lane < 8; ++lane) total += group_of(lane) == g ? rows[r].v[lane] : 0;
      return total;
    });
}
inline Ints sum_of_bytes(const Bytes& a) { return add_products(no_products(), splat_byte(1), a); }

// ---- Floats
inline Floats splat_float(float x) {
  return lanes<Floats>([=](int) { return x; });
}
inline Floats load_floats(const float* p) {
  return lanes<Floats>([=](int i) { return p[i]; });
}
inline void store_floats(float* p, const Floats& a) { __builtin_memcpy(p, a.v, sizeof a.v); }
inline Floats to_floats(const Ints& a) {
  return lanes<Floats>([&](int i) { return static_cast<float>(a.v[i]); });
}
template <class F>
inline Floats gather(F of) {
  return lanes<Floats>([&](int r) { return to_f32(of(r)); });
}
inline Floats load_f16(const f16* p) {
  return lanes<Floats>([=](int i) { return to_f32(p[i]); });
}
inline Floats multiply(const Floats& a, const Floats& b) {
  return lanes<Floats>([&](int i) { return a.v[i] * b.v[i]; });
}
inline Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
  return lanes<Floats>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
inline Floats subtract_product(const Floats& a, const Floats& b, const Floats& c) {
  return lanes<Floats>([&](int i) { return c.v[i] - a.v[i] * b.v[i]; });
}
inline float to_float(f16 x) { return to_f32(x); }
inline void prefetch(const void* p) { __builtin_prefetch(p); }
inline Ints size_bits(const float* p) {
  return lanes<Ints>([=](int i) { return bits_of(p[i]) & 0x7fffffffu; });
}
inline Shorts to_shorts(const float* p, float factor) {
  return lanes<Shorts>([=](int i) { return static_cast<int16_t>(__builtin_lrintf(p[i] * factor)); });
}
inline Shorts multiply_round(const Shorts& a, int factor) {
  return lanes<Shorts>([&](int i) { return static_cast<int16_t>((a.v[i] * factor + (1 << 14)) >> 15); });
}
inline Bytes to_bytes(const Shorts& a, const Shorts& b) {
  return lanes<Bytes>([&](int i) { return static_cast<int8_t>(i < 16 ? a.v[i] : b.v[i - 16]); });
}

}  // namespace qeng::isa::QENG_ISA
