// What the emulator finds in kernels, shown on kernels that have the mistake and kernels that do not.
#include <set>

#include "kernels/cuda/ptx/ptx.h"
#include "tests/catch.h"
#include "tests/emulator/kernel_fixture.h"

using namespace emulator_test;
using qeng::shared_memory;

namespace {

__global__ void indices(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  atomicAdd(&out[block * threads + thread], static_cast<int>(thread));
}
TEST_CASE("every thread of every block runs once, with its indices") {
  const Device<int> out(std::vector<int>(2 * 3 * 5 * 60, 1000));
  REQUIRE(run(1, indices, dim3(2, 3, 5), dim3(3, 4, 5), 0, out.data) == cudaSuccess);
  const auto values = out.read();
  for (size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == 1000 + static_cast<int>(i % 60));
}

// Each thread passes its number to the thread 37 further on.
__global__ void rotate(int* out, bool with_barrier) {
  int* numbers = reinterpret_cast<int*>(shared_memory());
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (with_barrier) __syncthreads();
  out[threadIdx.x] = numbers[(threadIdx.x + 37) % blockDim.x];
}
TEST_CASE("a missing __syncthreads gives wrong results that differ between seeds") {
  const Device<int> out(256);
  std::set<std::vector<int>> with, without;
  for (uint64_t seed = 0; seed < 5; ++seed) {
    REQUIRE(run(seed, rotate, 1, 256, 1024, out.data, true) == cudaSuccess);
    with.insert(out.read());
    REQUIRE(run(seed, rotate, 1, 256, 1024, out.data, false) == cudaSuccess);
    without.insert(out.read());
  }
  CHECK(with.size() == 1);
  CHECK((*with.begin())[250] == 31);
  CHECK(without.size() == 5);
}

// As before within a warp.
__global__ void rotate_warp(int* out, bool with_barrier) {
  int* numbers = reinterpret_cast<int*>(shared_memory());
  numbers[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (with_barrier) __syncwarp();
  out[threadIdx.x] = numbers[(threadIdx.x + 7) % 32];
}
TEST_CASE("lanes of a warp do not run in step: a missing __syncwarp shows") {
  const Device<int> out(32);
  std::vector<int> expected;
  for (int i = 0; i < 32; ++i) expected.push_back((i + 7) % 32);
  REQUIRE(run(1, rotate_warp, 1, 32, 128, out.data, true) == cudaSuccess);
  CHECK(out.read() == expected);
  REQUIRE(run(1, rotate_warp, 1, 32, 128, out.data, false) == cudaSuccess);
  CHECK(out.read() != expected);
}

__global__ void half_the_block() {
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void two_places() {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
}
TEST_CASE("divergent barriers are reported") {
  CHECK_THAT(report_of(half_the_block, 64, 0), containing("kernel kernel, block (0,0,0)") &&
                                                   containing("__syncthreads (block_test.cpp") && containing("exited"));
  CHECK_THAT(report_of(two_places, 64, 0), containing("other threads wait at __syncthreads"));
}

__global__ void exited_lane() {
  if (threadIdx.x == 7) return;
  __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void lane_elsewhere() {
  if (threadIdx.x == 7)
    __syncwarp();
  else
    __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void not_in_mask() { __shfl_xor_sync(0x0000ffffu, 1, 1); }
__global__ void source_not_in_mask() {
  if (threadIdx.x < 16) __shfl_sync(0x0000ffffu, 1, 16);
}
__global__ void half_a_warp() { __shfl_xor_sync(0xffffffffu, 1, 1); }
TEST_CASE("shuffles that miss a lane are reported") {
  CHECK_THAT(report_of(exited_lane, 32, 0),
             containing("__shfl_xor_sync") && containing("(7,0,0)") && containing("exited"));
  CHECK_THAT(report_of(lane_elsewhere, 32, 0), containing("__syncwarp") && containing("__shfl_xor_sync"));
  CHECK_THAT(report_of(not_in_mask, 32, 0), containing("does not name the thread's own lane"));
  CHECK_THAT(report_of(source_not_in_mask, 32, 0), containing("reads lane 16"));
  CHECK_THAT(report_of(half_a_warp, 16, 0), containing("thread 16 does not exist"));
}

__global__ void shuffles(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = __shfl_sync(~0u, lane, 5);
  out[32 + lane] = __shfl_sync(~0u, lane, 1, 8);
  out[64 + lane] = __shfl_up_sync(~0u, lane, 3, 16);
  out[96 + lane] = __shfl_down_sync(~0u, lane, 3, 16);
  out[128 + lane] = __shfl_xor_sync(~0u, lane, 9);
  out[160 + lane] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
  out[192 + lane] = __any_sync(~0u, lane == 31) + 2 * __all_sync(~0u, lane == 31) + 4 * __all_sync(~0u, lane < 32);
  long long wide = (1ll << 40) + lane;
  wide = __shfl_xor_sync(~0u, wide, 1);
  out[224 + lane] = static_cast<int>(wide - (1ll << 40));
  if (lane < 16) out[256 + lane] = __shfl_xor_sync(0xffffu, lane, 1);
  if (lane >= 16) out[256 + lane] = __shfl_xor_sync(0xffff0000u, lane, 2);
}
TEST_CASE("shuffles and votes give what CUDA's manual says") {
  const Device<int> out(288);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    REQUIRE(run(seed, shuffles, 1, 32, 0, out.data) == cudaSuccess);
    const auto got = out.read();
    for (int lane = 0; lane < 32; ++lane) {
      const auto at = [&](int set) { return got[static_cast<size_t>(32 * set + lane)]; };
      CHECK(at(0) == 5);
      CHECK(at(1) == lane / 8 * 8 + 1);
      CHECK(at(2) == (lane % 16 < 3 ? lane : lane - 3));
      CHECK(at(3) == (lane % 16 > 12 ? lane : lane + 3));
      CHECK(at(4) == (lane ^ 9));
      CHECK(at(5) == 0x49249249);
      CHECK(at(6) == 5);
      CHECK(at(7) == (lane ^ 1));
      CHECK(at(8) == (lane < 16 ? lane ^ 1 : lane ^ 2));
    }
  }
}

__global__ void counts(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(t % 5 == 0), all = __syncthreads_and(t < 96), any = __syncthreads_or(t == 95);
  out[t] = count * 4 + all * 2 + any;
}
TEST_CASE("barriers count votes") {
  const Device<int> out(96);
  REQUIRE(run(3, counts, 1, 96, 0, out.data) == cudaSuccess);
  CHECK(out.read() == std::vector<int>(96, 20 * 4 + 3));
}

// Warp 1 makes numbers, warp 0 takes them, through one place in shared memory and two barriers.
__global__ void hand_over(int* out, int rounds) {
  volatile int* place = reinterpret_cast<int*>(shared_memory());
  for (int i = 0; i < rounds; ++i) {
    if (threadIdx.x >= 32) {
      if (i > 0) qeng::ptx::barrier_sync(2, 64);
      if (threadIdx.x == 32) *place = i;
      __syncwarp();
      qeng::ptx::barrier_arrive(1, 64);
    } else {
      qeng::ptx::barrier_sync(1, 64);
      out[i * 32 + static_cast<int>(threadIdx.x)] = *place;
      if (i + 1 < rounds) qeng::ptx::barrier_arrive(2, 64);
    }
  }
}
__global__ void wrong_count() { qeng::ptx::barrier_sync(1, threadIdx.x < 32 ? 64 : 96); }
__global__ void nobody_comes() { qeng::ptx::barrier_sync(3, 96); }
__global__ void half_warp_arrives() {
  if (threadIdx.x % 32 < 16) qeng::ptx::barrier_sync(1, 32);
}
TEST_CASE("named barriers order producer and consumer, and their misuse is reported") {
  const Device<int> out(320);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    REQUIRE(run(seed, hand_over, 1, 64, 4, out.data, 10) == cudaSuccess);
    const auto got = out.read();
    for (size_t i = 0; i < got.size(); ++i) REQUIRE(got[i] == static_cast<int>(i / 32));
  }
  CHECK_THAT(report_of(wrong_count, 64, 0), containing("barrier 1 is awaited over"));
  CHECK_THAT(report_of(nobody_comes, 64, 0),
             containing("nobody can go on: threads 0 to 63 wait at bar.sync (block_test.cpp"));
  CHECK_THAT(report_of(half_warp_arrives, 64, 0), containing("only 16 of 32 lanes of warp"));
}

__global__ void spin(int* out) {
  volatile int* place = reinterpret_cast<int*>(shared_memory());
  if (threadIdx.x == 0) *place = 0;
  __syncthreads();
  if (threadIdx.x / 32 == 0) {
    emulator::wait_until(
        "spin", [&] { return *place == 33; }, emulator::Site::current());
    out[threadIdx.x] = *place;
  } else {
    emulator::yield();
    *place = *place + 1;
  }
}
__global__ void spin_forever() {
  emulator::wait_until(
      "spin", [] { return false; }, emulator::Site::current());
}
// Whoever looks, the condition of thread 0 fails: also a thread that is about to exit.
__global__ void wait_for_failure() {
  int looked = 0;
  if (threadIdx.x == 0)
    emulator::wait_until(
        "spin",
        [&looked] {
          if (looked++) emulator::fail("spin", "too often", emulator::Site::current());
          return false;
        },
        emulator::Site::current());
}
struct Number {
  int value, sum;
};
__global__ void group_sum(int* out) {
  Number slot{static_cast<int>(threadIdx.x), 0};
  emulator::meet_warpgroup(
      "sum", slot,
      [](Number* const* slots) {
        int sum = 0;
        for (int i = 0; i < 128; ++i) sum += slots[i]->value;
        for (int i = 0; i < 128; ++i) slots[i]->sum = sum;
      },
      emulator::Site::current());
  out[threadIdx.x] = slot.sum;
}
TEST_CASE("instructions can wait for a condition, and meet in a warpgroup") {
  const Device<int> out(256);
  for (uint64_t seed = 0; seed < 6; ++seed) {
    REQUIRE(run(seed, spin, 1, 65, 4, out.data) == cudaSuccess);
    CHECK(out.read()[31] == 33);
  }
  CHECK_THAT(report_of(spin_forever, 40, 0), containing("nobody can go on: threads 0 to 39 wait at spin"));
  CHECK_THAT(report_of(wait_for_failure, 40, 0), containing("too often"));
  REQUIRE(run(1, group_sum, 1, 256, 0, out.data) == cudaSuccess);
  CHECK(out.read()[0] == 127 * 64);
  CHECK(out.read()[255] == 127 * 64 + 128 * 128);
  CHECK_THAT(report_of(group_sum, 160, 0, out.data), containing("does not exist"));
}

}  // namespace
