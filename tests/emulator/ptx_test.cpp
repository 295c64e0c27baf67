// The twins of ptx.h, against layouts written out by hand and a plain product.
#include <cmath>
#include <limits>
#include <random>

#include "kernels/cuda/divisor.h"
#include "kernels/cuda/ptx/ptx_int8.h"
#include "tests/catch.h"
#include "tests/emulator/kernel_fixture.h"

using namespace emulator_test;
using namespace qeng;

namespace {

// ---- ldmatrix

// Shared memory holds 32 rows of 8 numbers 0, 1, 2, ...; lane 8j + i points at row i of matrix j.
__global__ void load_matrices(uint32_t* out, bool transposed, int shift) {
  auto* numbers = reinterpret_cast<uint16_t*>(shared_memory());
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = 0; i < 8; ++i) numbers[lane * 8 + i] = static_cast<uint16_t>(lane * 8 + i);
  __syncwarp();
  uint32_t r[4];
  const char* row = shared_memory() + lane * 16 + (lane == 9 ? shift : 0);
  if (transposed)
    ptx::ldmatrix_x4_trans(r, row);
  else
    ptx::ldmatrix_x4(r, row);
  for (int j = 0; j < 4; ++j) out[lane * 4 + j] = r[j];
}
TEST_CASE("ldmatrix hands out the elements that the PTX manual draws") {
  const Device<uint32_t> out(128);
  const auto pair = [](uint32_t low, uint32_t high) { return high << 16 | low; };
  REQUIRE(run(1, load_matrices, 1, 32, 512, out.data, false, 0) == cudaSuccess);
  auto got = out.read();
  CHECK(got[0] == pair(0, 1));              // lane 0: matrix 0, row 0, columns 0 and 1
  CHECK(got[1 * 4 + 0] == pair(2, 3));      // lane 1: columns 2 and 3
  CHECK(got[4 * 4 + 0] == pair(8, 9));      // lane 4: row 1
  CHECK(got[31 * 4 + 0] == pair(62, 63));   // lane 31: row 7, columns 6 and 7
  CHECK(got[0 * 4 + 3] == pair(192, 193));  // register 3: matrix 3
  REQUIRE(run(2, load_matrices, 1, 32, 512, out.data, true, 0) == cudaSuccess);
  got = out.read();
  CHECK(got[0] == pair(0, 8));            // lane 0: rows 0 and 1 of column 0
  CHECK(got[1 * 4 + 0] == pair(16, 24));  // lane 1: rows 2 and 3
  CHECK(got[4 * 4 + 0] == pair(1, 9));    // lane 4: column 1
  CHECK(got[31 * 4 + 2] == pair(128 + 55, 128 + 63));
}
TEST_CASE("ldmatrix rows that are misaligned or outside shared memory are reported") {
  const Device<uint32_t> out(128);
  CHECK_THAT(report_of(load_matrices, 32, 512, out.data, false, 8),
             containing("thread (9,0,0) at ldmatrix") && containing("not aligned to 16"));
  CHECK_THAT(report_of(load_matrices, 32, 512, out.data, true, 512),
             containing("ldmatrix.trans") && containing("shared memory, which has 512"));
}

// ---- mma

// c[16][8] += a[16][16] b[16][8] by one warp, with fragments filled as the comment over ptx.h has them.
template <class T>
__global__ void multiply(const T* a, const T* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const auto pair = [](T low, T high) { return uint32_t{high.bits} << 16 | low.bits; };
  const auto a_pair = [&](int row, int k) { return pair(a[row * 16 + k], a[row * 16 + k + 1]); };
  const auto b_pair = [&](int k) { return pair(b[k * 8 + g], b[(k + 1) * 8 + g]); };
  const uint32_t fragment[4] = {a_pair(g, 2 * t), a_pair(g + 8, 2 * t), a_pair(g, 2 * t + 8), a_pair(g + 8, 2 * t + 8)};
  float* places[4] = {&c[g * 8 + 2 * t], &c[g * 8 + 2 * t + 1], &c[(g + 8) * 8 + 2 * t], &c[(g + 8) * 8 + 2 * t + 1]};
  float sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = *places[i];
  if constexpr (std::is_same_v<T, bf16>)
    ptx::mma_bf16(sum, fragment, b_pair(2 * t), b_pair(2 * t + 8));
  else
    ptx::mma_f16(sum, fragment, b_pair(2 * t), b_pair(2 * t + 8));
  for (int i = 0; i < 4; ++i) *places[i] = sum[i];
}
template <class T>
void check_product() {
  std::mt19937 random(5);
  std::vector<T> a(256), b(128);
  std::vector<float> c(128);
  for (auto* values : {&a, &b})
    for (T& x : *values) put(&x, static_cast<float>(static_cast<int>(random() % 17) - 8));  // sums are exact
  for (float& x : c) x = static_cast<float>(random() % 100);
  std::vector<float> expected = c;
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column)
      for (size_t k = 0; k < 16; ++k) expected[row * 8 + column] += to_f32(a[row * 16 + k]) * to_f32(b[k * 8 + column]);
  const Device<T> device_a(a), device_b(b);
  const Device<float> device_c(c);
  REQUIRE(run(1, multiply<T>, 1, 32, 0, device_a.data, device_b.data, device_c.data) == cudaSuccess);
  CHECK(device_c.read() == expected);
}
TEST_CASE("mma adds the product of its fragments") {
  check_product<bf16>();
  check_product<f16>();
}

// c[16][8] += a[16][kDepth] b[kDepth][8] of int8, b stored by columns, with the fragments of ptx_int8.h.
template <int kDepth>
__global__ void multiply_codes(const int8_t* a, const int8_t* b, int* c) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const auto four = [](const int8_t* codes) {
    uint32_t word = 0;
    for (int i = 0; i < 4; ++i) word |= (static_cast<uint32_t>(codes[i]) & 255u) << (8 * i);
    return word;
  };
  uint32_t rows[kDepth / 8], columns[kDepth / 16];
  for (int half = 0; half < kDepth / 16; ++half) {
    rows[2 * half] = four(a + g * kDepth + 16 * half + 4 * t);
    rows[2 * half + 1] = four(a + (g + 8) * kDepth + 16 * half + 4 * t);
    columns[half] = four(b + g * kDepth + 16 * half + 4 * t);
  }
  int sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  ptx::mma_int8(sum, rows, columns);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
template <int kDepth>
void check_codes() {
  std::mt19937 random(7);
  std::vector<int8_t> a(16 * kDepth), b(8 * kDepth);
  std::vector<int> c(128);
  for (auto* codes : {&a, &b})
    for (int8_t& code : *codes) code = static_cast<int8_t>(random());
  for (int& x : c) x = static_cast<int>(random() % 1000) - 500;
  std::vector<int> expected = c;
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column)
      for (size_t k = 0; k < kDepth; ++k) expected[row * 8 + column] += a[row * kDepth + k] * b[column * kDepth + k];
  const Device<int8_t> device_a(a), device_b(b);
  const Device<int> device_c(c);
  REQUIRE(run(1, multiply_codes<kDepth>, 1, 32, 0, device_a.data, device_b.data, device_c.data) == cudaSuccess);
  CHECK(device_c.read() == expected);
}
TEST_CASE("mma of int8 adds the exact product of its fragments") {
  check_codes<16>();
  check_codes<32>();
}

// c[16][8] += bits of a[16][256] that are set in b[8][256] as well.
__global__ void multiply_bits(const uint32_t* a, const uint32_t* b, int* c) {
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  const uint32_t rows[4] = {a[8 * g + t], a[8 * (g + 8) + t], a[8 * g + t + 4], a[8 * (g + 8) + t + 4]};
  const uint32_t columns[2] = {b[8 * g + t], b[8 * g + t + 4]};
  int sum[4];
  for (int i = 0; i < 4; ++i) sum[i] = c[(g + i / 2 * 8) * 8 + 2 * t + i % 2];
  ptx::mma_bits(sum, rows, columns);
  for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 8 + 2 * t + i % 2] = sum[i];
}
TEST_CASE("mma of bits counts those that are set on both sides") {
  std::mt19937 random(8);
  std::vector<uint32_t> a(16 * 8), b(8 * 8);
  for (auto* words : {&a, &b})
    for (uint32_t& word : *words) word = static_cast<uint32_t>(random());
  std::vector<int> c(128, 5);
  std::vector<int> expected = c;
  for (size_t row = 0; row < 16; ++row)
    for (size_t column = 0; column < 8; ++column)
      for (size_t k = 0; k < 256; ++k)
        expected[row * 8 + column] += a[row * 8 + k / 32] >> (k % 32) & b[column * 8 + k / 32] >> (k % 32) & 1;
  const Device<uint32_t> device_a(a), device_b(b);
  const Device<int> device_c(c);
  REQUIRE(run(1, multiply_bits, 1, 32, 0, device_a.data, device_b.data, device_c.data) == cudaSuccess);
  CHECK(device_c.read() == expected);
}

// As `multiply`, from shared memory through ldmatrix, by the address recipes for operands stored [m][k], [n][k] and
// [k][n]. Rows are `pitch` elements apart: 48 bytes, so that eight of them lie in other banks each, or 32.
__global__ void multiply_from_shared(const bf16* a, const bf16* b, float* c, bool b_is_nk, int pitch) {
  auto* shared_a = reinterpret_cast<bf16*>(shared_memory());  // [16][16]
  bf16* shared_b = shared_a + 16 * pitch;                     // [16 n][16 k] or [16 k][16 n]
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  for (int i = lane; i < 256; i += 32)
    shared_a[i / 16 * pitch + i % 16] = a[i], shared_b[i / 16 * pitch + i % 16] = b[i];
  __syncwarp();
  uint32_t af[4], bf[4];
  ptx::ldmatrix_x4(af, shared_a + (lane & 15) * pitch + (lane >> 4) * 8);
  if (b_is_nk)
    ptx::ldmatrix_x4(bf, shared_b + ((lane & 7) + 8 * (lane >> 4)) * pitch + ((lane >> 3) & 1) * 8);
  else
    ptx::ldmatrix_x4_trans(bf, shared_b + (lane & 15) * pitch + (lane >> 4) * 8);
  for (int tile = 0; tile < 2; ++tile) {
    float sum[4] = {};
    ptx::mma_bf16(sum, af, bf[2 * tile], bf[2 * tile + 1]);
    for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * 16 + 8 * tile + 2 * t + i % 2] = sum[i];
  }
}
TEST_CASE("ldmatrix feeds mma from both storage orders") {
  std::mt19937 random(6);
  std::vector<bf16> a(256), b(256), b_turned(256);
  for (auto* values : {&a, &b})
    for (bf16& x : *values) x = to_bf16(static_cast<float>(static_cast<int>(random() % 17) - 8));
  std::vector<float> expected(256);
  for (size_t m = 0; m < 16; ++m)
    for (size_t n = 0; n < 16; ++n)
      for (size_t k = 0; k < 16; ++k) expected[m * 16 + n] += to_f32(a[m * 16 + k]) * to_f32(b[n * 16 + k]);
  for (size_t n = 0; n < 16; ++n)
    for (size_t k = 0; k < 16; ++k) b_turned[k * 16 + n] = b[n * 16 + k];
  const Device<bf16> device_a(a), nk(b), kn(b_turned);
  const Device<float> c(256);
  for (uint64_t seed = 1; seed < 4; ++seed) {
    REQUIRE(run(seed, multiply_from_shared, 1, 32, 1536, device_a.data, nk.data, c.data, true, 24) == cudaSuccess);
    CHECK(c.read() == expected);
    REQUIRE(run(seed, multiply_from_shared, 1, 32, 1536, device_a.data, kn.data, c.data, false, 24) == cudaSuccess);
    CHECK(c.read() == expected);
  }
  CHECK_THAT(report_of(multiply_from_shared, 32, 1024, device_a.data, nk.data, c.data, true, 16),
             containing("rows of lanes 0 and 4 lie in the same banks") && containing("ptx_test.cpp:"));
}

// ---- cp.async

// Copies 16 bytes per thread in two groups, and reads them with or without waiting.
__global__ void copy_early(const uint4* in, uint4* out, int wait) {
  auto* place = reinterpret_cast<uint4*>(shared_memory());
  const unsigned t = threadIdx.x;
  ptx::cp_async_16(place + t, in + t);
  ptx::cp_async_commit();
  ptx::cp_async_16(place + 32 + t, in + 32 + t, 4);
  ptx::cp_async_commit();
  if (wait == 1) ptx::cp_async_wait<1>();
  if (wait == 2) ptx::cp_async_wait<0>();
  __syncwarp();
  out[t] = place[t], out[32 + t] = place[32 + t];
}
TEST_CASE("cp.async lands when its group is waited for, or at once, as the seed draws; before that there is poison") {
  std::vector<uint4> in;
  for (unsigned i = 0; i < 64; ++i) in.push_back({i, i + 1, i + 2, i + 3});
  const Device<uint4> device_in(in), out(64);
  bool early = false, late = false;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    REQUIRE(run(seed, copy_early, 1, 32, 1024, device_in.data, out.data, 2) == cudaSuccess);
    auto got = out.read();
    CHECK((got[5].x == 5 && got[5].w == 8));
    CHECK((got[37].x == 37 && got[37].y == 0 && got[37].w == 0));  // four bytes read, the rest zero
    REQUIRE(run(seed, copy_early, 1, 32, 1024, device_in.data, out.data, 1) == cudaSuccess);
    got = out.read();
    CHECK(got[5].x == 5);
    (got[37].x == 37 ? early : late) = true;
    if (got[37].x != 37) CHECK((got[37].x == ~0u && got[37].w == ~0u));
    REQUIRE(run(seed, copy_early, 1, 32, 1024, device_in.data, out.data, 0) == cudaSuccess);
    if (const uint4 first = out.read()[5]; first.x != 5) CHECK(first.x == ~0u);
  }
  CHECK(early);
  CHECK(late);
}
__global__ void copy_somewhere(const char* in, int to, int from) {
  ptx::cp_async_16(shared_memory() + to, in + from);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
}
TEST_CASE("cp.async addresses are checked") {
  const Device<char> in(64);
  CHECK(report_of(copy_somewhere, 1, 64, in.data, 48, 48) == "no failure");
  CHECK_THAT(report_of(copy_somewhere, 1, 64, in.data, 56, 0), containing("cp.async") && containing("which has 64"));
  CHECK_THAT(report_of(copy_somewhere, 1, 64, in.data, 8, 0), containing("not aligned to 16"));
  CHECK_THAT(report_of(copy_somewhere, 1, 64, in.data, 0, 8), containing("not aligned to 16"));
}

TEST_CASE("approximations treat what is special as the device does") {
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(ptx::exp2_approx(-infinity) == 0.0f);
  CHECK(ptx::exp2_approx(-130.0f) == 0.0f);
  CHECK(ptx::exp2_approx(3.0f) == 8.0f);
  CHECK(ptx::exp2_approx(infinity) == infinity);
  CHECK(std::isnan(ptx::exp2_approx(std::nanf(""))));
  CHECK(ptx::rsqrt_approx(16.0f) == 0.25f);
  CHECK(ptx::pack_bf16(1.0f, -2.0f) == 0xc0003f80u);
}

TEST_CASE("a divisor divides as the host does") {
  constexpr int kMost = std::numeric_limits<int>::max();
  std::mt19937 engine(1);
  for (int round = 0; round < 20000; ++round) {
    const int by = 1 + static_cast<int>(engine() % (round % 2 ? 300u : unsigned{kMost}));
    const Divisor divisor(by);
    const int multiple = static_cast<int>(engine() % (unsigned{kMost} / by + 1)) * by;
    for (const int x : {0, by - 1, multiple, std::max(multiple - 1, 0), static_cast<int>(engine() >> 1), kMost}) {
      const auto [quotient, rest] = divisor.divide(x);
      CAPTURE(x, by);
      REQUIRE(quotient == x / by);
      REQUIRE(rest == x % by);
    }
  }
}

TEST_CASE("bit intrinsics give what CUDA's manual says") {
  CHECK(__byte_perm(0x33221100u, 0x77665544u, 0x7520) == 0x77552200u);
  CHECK(__byte_perm(0x80u, 0x7fu, 0x11c8) == 0x000000ffu);  // nibble 8: the sign of byte 0; nibble c: that of byte 4
  CHECK(__dp4a(int(0xff01807fu), int(0x01ff0202u), 10) == 10 + 127 * 2 - 128 * 2 - 1 - 1);
  CHECK(__dp4a(0xff010203u, 0x01020304u, 1u) == 1u + 255 + 2 + 6 + 12);
  CHECK(ptx::dp4a_unsigned(0xff01807fu, int(0x01ff0202u), 10) == 10 + 127 * 2 + 128 * 2 - 1 + 255);
  CHECK(__ffs(0) == 0);
  CHECK(__ffs(8) == 4);
  CHECK(__clz(1) == 31);
  CHECK(__clz(0) == 32);
  CHECK(__brev(1u) == 0x80000000u);
  CHECK(__umulhi(0x80000000u, 6u) == 3u);
  CHECK(__funnelshift_l(0x80000000u, 1u, 1) == 3u);
  CHECK(__funnelshift_r(0x80000000u, 1u, 31) == 3u);
  CHECK(__float2int_rn(2.5f) == 2);
  CHECK(__float2int_rn(3e9f) == 2147483647);
  CHECK(__float2int_rn(std::nanf("")) == 0);
}

}  // namespace
