// The instructions of ptx_sm90.h against plain arithmetic. The kernels and the first tests also compile with nvcc, for
// a look at the real ones; the last tests show what the emulator finds wrong.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "kernels/cuda/attention/attention_sm90.h"
#include "tests/catch.h"
#include "tests/emulator/kernel_fixture.h"

using namespace emulator_test;
using namespace qeng;

#ifndef QENG_EMULATED  // the backend's is in its library
void qeng::check_cuda(cudaError_t status, const char* doing) {
  if (status != cudaSuccess) fail("cuda", doing, ": ", cudaGetErrorString(status));
}
#endif

namespace hopper_test {  // named: nvcc and Catch2 disagree about what is anonymous

// Where element (row, column) of a tile of panels lies: written out from the comment over ptx_sm90.h.
size_t panel_place(int row, int column, int rows) {
  const int panel = column / 64, chunk = column % 64 / 8;
  return static_cast<size_t>(panel * rows * 64 + row * 64 + (chunk ^ row % 8) * 8 + column % 8);
}
std::vector<bf16> integers(size_t count, unsigned seed) {  // small, so that sums are exact
  std::mt19937 random(seed);
  std::vector<bf16> values(count);
  for (bf16& x : values) x = to_bf16(static_cast<float>(static_cast<int>(random() % 9) - 4));
  return values;
}
View tensor(const Device<bf16>& memory, int64_t tokens, int64_t heads, int64_t dim) {
  return View(memory.data, DType::bf16, {tokens, heads, dim});
}

// ---- mbarriers: thread 0 fills a ring of two stages with 0, 1, 2, ..., warps 1 and 2 add each to their sums

__global__ void hand_over(int* sums, int count) {
#if QENG_SM90
  auto* barrier = reinterpret_cast<uint64_t*>(shared_memory());  // full 0, 1; empty 2, 3
  auto* values = reinterpret_cast<int*>(shared_memory() + 32);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 4; ++i) ptx::mbarrier_init(barrier + i, i < 2 ? 1 : 2);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  Ring<2> ring;
  if (threadIdx.x == 0)
    for (int i = 0; i < count; ++i) {
      ptx::mbarrier_wait(barrier + 2 + ring.stage, ring.parity ^ 1);
      values[ring.stage] = i;
      ptx::mbarrier_arrive(barrier + ring.stage);
      ring.next();
    }
  if (threadIdx.x < 32) return;
  int sum = 0;
  for (int i = 0; i < count; ++i) {
    ptx::mbarrier_wait(barrier + ring.stage, ring.parity);
    sum += values[ring.stage] * (i + 1);
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(barrier + 2 + ring.stage);
    ring.next();
  }
  sums[threadIdx.x - 32] = sum;
#endif
}
TEST_CASE("mbarriers hand a ring of stages over, turn after turn") {
  const Device<int> sums(64);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    REQUIRE(run(seed, hand_over, 1, 96, 64, sums.data, 9) == cudaSuccess);
    const auto got = sums.read();
    CHECK(std::all_of(got.begin(), got.end(), [](int sum) { return sum == 240; }));  // sum of i (i + 1), i < 9
  }
}

// ---- tensor copies

__global__ void copy_box(const __grid_constant__ TensorMap map, int column, int head, int row, uint32_t bytes,
                         bf16* out) {
#if QENG_SM90
  auto* barrier = reinterpret_cast<uint64_t*>(shared_memory() + bytes);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(barrier, bytes);
    ptx::tma_load(shared_memory(), &map, column, head, row, barrier);
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
  for (unsigned i = threadIdx.x; i < bytes / 2; i += blockDim.x)
    out[i] = reinterpret_cast<const bf16*>(shared_memory())[i];
#endif
}
TEST_CASE("a tensor copy writes swizzled rows, and zeros for what lies outside the tensor") {
  constexpr int kTokens = 37, kHeads = 3, kDim = 96, kRows = 24;
  const auto values = integers(kTokens * kHeads * kDim, 3);
  const Device<bf16> source(values), out(kRows * 64);
  struct Place {
    int column, head, row;
  };
  for (const int heads : {1, 2}) {  // beside each other in a box
    const TensorMap map = panel_map(tensor(source, kTokens, kHeads, kDim), kRows / heads, heads);
    for (const Place at : {Place{0, 0, 0}, Place{64, 2, 5}, Place{0, 1, 30}, Place{64, 1, 37}})
      for (uint64_t seed = 0; seed < 2; ++seed) {
        REQUIRE(run(seed, copy_box, 1, 64, kRows * 128 + 8, map, at.column, at.head, at.row, uint32_t{kRows * 128},
                    out.data) == cudaSuccess);
        const auto got = out.read();
        int wrong = 0;
        for (int r = 0; r < kRows; ++r)
          for (int c = 0; c < 64; ++c) {
            const int row = at.row + r / heads, head = at.head + r % heads, column = at.column + c;
            const bool inside = row < kTokens && head < kHeads && column < kDim;
            const uint16_t expected =
                inside ? values[static_cast<size_t>((row * kHeads + head) * kDim + column)].bits : uint16_t{0};
            wrong += got[panel_place(r, c, kRows)].bits != expected;
          }
        CHECK(wrong == 0);
      }
  }
}
TEST_CASE("tensors that TMA cannot read are refused") {
  const Device<bf16> memory(1024);
  CHECK(fits_tensor_map(tensor(memory, 4, 2, 8)));
  CHECK_FALSE(fits_tensor_map(tensor(memory, 4, 2, 12)));                       // strides of 24 bytes
  CHECK_FALSE(fits_tensor_map(View(memory.data + 4, DType::bf16, {4, 2, 8})));  // address
  CHECK_FALSE(fits_tensor_map(View(memory.data, DType::f32, {4, 2, 8})));
  CHECK_FALSE(fits_tensor_map(tensor(memory, 0, 2, 8)));
  CHECK_THROWS(panel_map(tensor(memory, 4, 2, 8), 257));
  CHECK_THROWS(panel_map(tensor(memory, 4, 2, 8), 129, 2));
}

// ---- wgmma

enum class A { k_major, mn_major, registers };

// d = a b (+ 1 where `accumulate`), a: [64, 64], b: [64, n] as k-major or mn-major tiles, given as shared memory has
// them.
template <int n, ptx::Major b_major, A a_kind>
__global__ void multiply(const bf16* a, const bf16* b, bool accumulate, bool fence, float* out) {
#if QENG_SM90
  char *const a_tile = shared_memory(), *const b_tile = a_tile + 64 * 128;
  constexpr int kBRows = b_major == ptx::Major::k ? n : 64, kBColumns = b_major == ptx::Major::k ? 64 : n;
  constexpr int kBElements = sm90::tile_bytes(kBColumns, kBRows) / 2;
  for (unsigned i = threadIdx.x; i < 64 * 64; i += 128) reinterpret_cast<bf16*>(a_tile)[i] = a[i];
  for (unsigned i = threadIdx.x; i < kBElements; i += 128) reinterpret_cast<bf16*>(b_tile)[i] = b[i];
  if (fence) ptx::fence_proxy_async();
  __syncthreads();
  float d[n / 2];
#pragma unroll
  for (int i = 0; i < n / 2; ++i) d[i] = 1;
  const int row = sm90::fragment_row(), column = sm90::fragment_column();
  uint32_t fragments[4][4];
#pragma unroll
  for (int k = 0; k < 4; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // the pair at row (+ 8), k-columns 2t (+ 8), out of the swizzled tile
      const int r = row + i % 2 * 8, chunk = 2 * k + i / 2;
      fragments[k][i] = *reinterpret_cast<const uint32_t*>(a_tile + r * 128 + (chunk ^ r % 8) * 16 + column * 2);
    }
  ptx::wgmma_start(d, fragments);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t b_slice =
        b_major == ptx::Major::k
            ? ptx::advance(ptx::tile_descriptor(b_tile), static_cast<uint32_t>(k) * 32)
            : ptx::advance(ptx::tile_descriptor(b_tile, 64 * 128), static_cast<uint32_t>(k) * 2048);
    if constexpr (a_kind == A::registers)
      ptx::wgmma<b_major>(d, fragments[k], b_slice, accumulate || k > 0);
    else if constexpr (a_kind == A::mn_major)
      ptx::wgmma<b_major, ptx::Major::mn>(
          d, ptx::advance(ptx::tile_descriptor(a_tile), static_cast<uint32_t>(k) * 2048), b_slice, accumulate || k > 0);
    else
      ptx::wgmma<b_major>(d, ptx::advance(ptx::tile_descriptor(a_tile), static_cast<uint32_t>(k) * 32), b_slice,
                          accumulate || k > 0);
  }
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>(d);
#pragma unroll
  for (int i = 0; i < n / 2; ++i) out[(row + i / 2 % 2 * 8) * n + i / 4 * 8 + column + i % 2] = d[i];
#endif
}

template <int n, ptx::Major b_major, A a_kind>
int wrong_products(uint64_t seed, bool accumulate) {
  const auto a = integers(64 * 64, 11), b = integers(64 * n, static_cast<unsigned>(n));  // b: [64][n]
  const bool k_major = b_major == ptx::Major::k;
  const int rows = k_major ? n : 64, columns = k_major ? 64 : n;
  std::vector<bf16> a_tile(64 * 64), b_tile(static_cast<size_t>(sm90::tile_bytes(columns, rows) / 2), bf16{0});
  for (int i = 0; i < 64; ++i)
    for (int k = 0; k < 64; ++k)
      a_tile[a_kind == A::mn_major ? panel_place(k, i, 64) : panel_place(i, k, 64)] =
          a[static_cast<size_t>(i * 64 + k)];
  for (int k = 0; k < 64; ++k)
    for (int j = 0; j < n; ++j)
      b_tile[k_major ? panel_place(j, k, rows) : panel_place(k, j, rows)] = b[static_cast<size_t>(k * n + j)];
  const Device<bf16> a_memory(a_tile), b_memory(b_tile);
  const Device<float> out(64 * n);
  const size_t shared = 64 * 128 + b_tile.size() * 2;
  if (run(seed, hopper_test::multiply<n, b_major, a_kind>, 1, 128, shared, a_memory.data, b_memory.data, accumulate,
          true, out.data) != cudaSuccess)
    return -1;
  const auto got = out.read();
  int wrong = 0;
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < n; ++j) {
      float sum = accumulate ? 1 : 0;
      for (int k = 0; k < 64; ++k)
        sum += to_f32(a[static_cast<size_t>(i * 64 + k)]) * to_f32(b[static_cast<size_t>(k * n + j)]);
      wrong += got[static_cast<size_t>(i * n + j)] != sum;
    }
  return wrong;
}
template <int n>
void check_products() {
  INFO("n = " << n);
  for (const bool accumulate : {false, true}) {
    CHECK(wrong_products<n, ptx::Major::k, A::k_major>(1, accumulate) == 0);
    CHECK(wrong_products<n, ptx::Major::k, A::registers>(2, accumulate) == 0);
    CHECK(wrong_products<n, ptx::Major::mn, A::k_major>(1, accumulate) == 0);
    CHECK(wrong_products<n, ptx::Major::mn, A::registers>(2, accumulate) == 0);
    CHECK(wrong_products<n, ptx::Major::mn, A::mn_major>(3, accumulate) == 0);
  }
}
TEST_CASE("wgmma multiplies tiles, stored by rows or by columns") {
  check_products<16>(), check_products<48>(), check_products<64>(), check_products<80>(), check_products<96>();
  check_products<128>(), check_products<256>();
}

// ---- registers

__global__ void __launch_bounds__(sm90::Crew<2>::kThreads, 1) trade_registers(int* out) {
#if QENG_SM90
  if (threadIdx.x < 128)
    ptx::registers_give<sm90::Crew<2>::kFew>();
  else
    ptx::registers_take<sm90::Crew<2>::kMany>();
  out[threadIdx.x] = static_cast<int>(threadIdx.x);
#endif
}
TEST_CASE("warpgroups trade registers") {
  const Device<int> out(sm90::Crew<2>::kThreads);
  REQUIRE(run(1, trade_registers, 1, sm90::Crew<2>::kThreads, 0, out.data) == cudaSuccess);
  CHECK(out.read()[383] == 383);
}

#ifdef QENG_EMULATED

// ---- what goes wrong

TEST_CASE("wgmma's reading what ordinary stores wrote without a fence is reported") {
  const Device<bf16> a(integers(64 * 64, 1)), b(integers(64 * 64, 2));
  const Device<float> out(64 * 64);
  CHECK_THAT(report_of(hopper_test::multiply<64, ptx::Major::k, A::k_major>, 128, 64 * 128 * 2, a.data, b.data, false,
                       false, out.data),
             containing("no fence_proxy_async since"));
}

enum class Mistake { none, change_d, change_a, read_d, not_named, end_not_named, no_commit, too_few };
__global__ void careless(Mistake mistake, float* out) {
  char* const tile = shared_memory();
  for (unsigned i = threadIdx.x; i < 64 * 64; i += 128) reinterpret_cast<bf16*>(tile)[i] = to_bf16(1);
  ptx::fence_proxy_async();
  __syncthreads();
  if (mistake == Mistake::too_few && threadIdx.x == 77) return;
  float d[32] = {}, other[32] = {};
  uint32_t a[4] = {};
  if (mistake == Mistake::not_named)
    ptx::wgmma_start(a);
  else
    ptx::wgmma_start(d, a);
  ptx::wgmma<ptx::Major::k>(d, a, ptx::tile_descriptor(tile));
  if (mistake != Mistake::no_commit) ptx::wgmma_commit();
  if (mistake == Mistake::change_d && threadIdx.x == 5) d[3] = 1;
  if (mistake == Mistake::change_a && threadIdx.x == 5) a[3] = 1;
  if (mistake == Mistake::read_d) out[threadIdx.x] = d[0];
  if (mistake == Mistake::end_not_named)
    ptx::wgmma_wait<0>(other);
  else
    ptx::wgmma_wait<0>(d);
  if (mistake != Mistake::read_d) out[threadIdx.x] = d[0];
}
TEST_CASE("careless use of a product's registers is reported, or read as poison") {
  const Device<float> out(128);
  const auto report = [&](Mistake mistake) { return report_of(careless, 128, 64 * 128, mistake, out.data); };
  CHECK(report(Mistake::none) == "no failure");
  CHECK(out.read()[5] == 0);
  CHECK(report(Mistake::read_d) == "no failure");
  CHECK(out.read()[5] != out.read()[5]);
  CHECK_THAT(report(Mistake::change_d), containing("a register of D was changed"));
  CHECK_THAT(report(Mistake::change_a), containing("a register of A was changed"));
  CHECK_THAT(report(Mistake::not_named), containing("did not name D"));
  CHECK_THAT(report(Mistake::end_not_named), containing("finishes a D that it does not name"));
  CHECK_THAT(report(Mistake::no_commit), containing("not committed"));
  CHECK_THAT(report(Mistake::too_few), containing("thread (77,0,0)") && containing("exited"));
}

__global__ void keep(float x) { ptx::keep_before_wait(x); }
TEST_CASE("a negative value before a wait, for which the branch would be taken, is reported") {
  for (const float x : {0.0f, -0.0f, 1.0f, NAN}) CHECK(report_of(keep, 32, 0, x) == "no failure");
  CHECK_THAT(report_of(keep, 32, 0, -1e-30f), containing("keep_before_wait") && containing("negative"));
}

// Expects `bytes` for a box of 8 rows (1024 bytes), makes `arrivals` arrivals where one is awaited.
__global__ void wait_for_box(const __grid_constant__ TensorMap map, uint32_t bytes, int arrivals, int shift) {
  auto* barrier = reinterpret_cast<uint64_t*>(shared_memory() + 2048);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::mbarrier_arrive_expect(barrier, bytes);
    ptx::tma_load(shared_memory() + shift, &map, 0, 0, 0, barrier);
    for (int i = 1; i < arrivals; ++i) ptx::mbarrier_arrive(barrier);
  }
  __syncthreads();
  ptx::mbarrier_wait(barrier, 0);
}
TEST_CASE("wrong counts of bytes and arrivals, and misplaced boxes, are reported") {
  const Device<bf16> memory(integers(8 * 64, 1));
  const TensorMap map = panel_map(tensor(memory, 8, 1, 64), 8);
  CHECK(report_of(wait_for_box, 32, 2056, map, 1024u, 1, 0) == "no failure");
  CHECK_THAT(report_of(wait_for_box, 32, 2056, map, 2048u, 1, 0),
             containing("nobody can go on") && containing("try_wait"));
  CHECK_THAT(report_of(wait_for_box, 32, 2056, map, 2048u, 2, 0), containing("all arrivals of this phase"));
  CHECK_THAT(report_of(wait_for_box, 32, 2056, map, 1024u, 1, 128), containing("not aligned to 1024"));
}

// More registers than the others gave back.
__global__ void take_too_many() {
  if (threadIdx.x < 128)
    ptx::registers_give<40>();
  else
    ptx::registers_take<240>();
}
TEST_CASE("registers that nobody gives back are a deadlock") {
  CHECK_THAT(report_of(take_too_many, sm90::Crew<2>::kThreads, 0),
             containing("nobody can go on") && containing("setmaxnreg.inc"));
}

#endif

}  // namespace hopper_test
