// The race check finds what no schedule needs to show.
#include "tests/catch.h"
#include "tests/emulator/kernel_fixture.h"
#include "tests/emulator/race_kernels.h"

using namespace emulator_test;

namespace {

template <class... Params, class... Args>
std::string races_of(void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args... args) {
  std::string report = "none";
  for (uint64_t seed = 1; seed < 4; ++seed) {  // whatever the order
    const bool failed = run(seed, kernel, grid, block, shared, args...) == cudaErrorLaunchFailure;
    const std::string now = failed ? "race" : "none";
    if (seed == 1)
      report = failed ? emulator::last_report() : "none";
    else if ((report == "none") != (now == "none"))
      report = "sometimes";
    cudaDeviceReset();
  }
  return report;
}

TEST_CASE("shared memory needs a barrier between a write and others' reads, and before the next write") {
  const Device<int> out(128);
  CHECK(races_of(pass_on, 1, 128, 512, out.data, 3) == "none");
  CHECK_THAT(races_of(pass_on, 1, 128, 512, out.data, 1), containing("race: thread") && containing("of shared memory"));
  CHECK_THAT(races_of(pass_on, 1, 128, 512, out.data, 2), containing("nothing orders the two"));
  CHECK(races_of(pass_on_in_warp, 1, 64, 256, out.data, true) == "none");
  CHECK_THAT(races_of(pass_on_in_warp, 1, 64, 256, out.data, false), containing("race_kernels.cpp:"));
  CHECK_THAT(races_of(pass_on_after_shuffle, 1, 32, 128, out.data), containing("race: "));
}

TEST_CASE("named barriers order those who arrive before those who wait") {
  const Device<int> out(64);
  CHECK(races_of(named_hand_over, 1, 64, 4, out.data, true) == "none");
  CHECK_THAT(races_of(named_hand_over, 1, 64, 4, out.data, false), containing("byte ") && containing("race: "));
}

TEST_CASE("a kernel that is launched ahead touches memory only once the one before has ended") {
  const Device<int> out(std::vector<int>(64, 1));
  const auto report = [&](int when) {
    emulator::set_seed(1);
    const cudaError_t status = emulator::launch(
        "kernel", reinterpret_cast<const void*>(add_one_ahead), 2, 32, 0, nullptr,
        [&out, when] { add_one_ahead(out.data + blockIdx.x * 32, when); }, true);
    const bool failed = (status ? status : cudaDeviceSynchronize()) == cudaErrorLaunchFailure;
    cudaDeviceReset();
    return failed ? emulator::last_report() : "none";
  };
  CHECK(report(0) == "none");
  CHECK_THAT(report(1), containing("race: ") && containing("before begin_ahead") && containing("race_kernels.cpp:"));
  CHECK_THAT(report(-1), containing("has not called begin_ahead"));
}

TEST_CASE("a read that is not aligned to its size is reported") {
  const Device<char> in(std::vector<char>(16, 1));
  const Device<uint32_t> out(1);
  CHECK(races_of(read_word, 1, 1, 0, in.data, out.data, 4) == "none");
  CHECK_THAT(races_of(read_word, 1, 1, 0, in.data, out.data, 2),
             containing("4 bytes is not aligned") && containing("race_kernels.cpp:"));
}

TEST_CASE("two blocks may not write one element") {
  const Device<int> out(256);
  CHECK(races_of(same_element, 4, 64, 0, out.data, 64) == "none");
  CHECK_THAT(races_of(same_element, 4, 64, 0, out.data, 63),
             containing("device memory") && containing("of another block"));
}

TEST_CASE("the last block may read the others' sums behind a fence") {
  const Device<int> sums(8), total(1);
  for (bool with_fence : {true, false}) {
    const Device<int> count(std::vector<int>{0});
    const cudaError_t status = run(1, last_block, 8, 32, 4, sums.data, count.data, total.data, with_fence);
    CHECK(status == (with_fence ? cudaSuccess : cudaErrorLaunchFailure));
    cudaDeviceReset();
    if (with_fence) CHECK(total.read()[0] == 28);
  }
}

TEST_CASE("cp.async writes from its start to its wait, and others see it behind a barrier") {
  const Device<uint4> in(64), out(64);
  CHECK(races_of(copy_then_read, 1, 64, 1024, in.data, out.data, true) == "none");
  CHECK_THAT(races_of(copy_then_read, 1, 64, 1024, in.data, out.data, false), containing("race: "));
  CHECK(races_of(overwrite_by_copy, 1, 64, 1024, in.data, out.data, true) == "none");
  CHECK_THAT(races_of(overwrite_by_copy, 1, 64, 1024, in.data, out.data, false), containing("race: "));
}

TEST_CASE("atomics do not race with each other, but with plain accesses") {
  const Device<int> out(2);
  CHECK(races_of(count_atomically, 2, 64, 0, out.data, false) == "none");
  CHECK_THAT(races_of(count_atomically, 1, 64, 0, out.data, true), containing("race: "));
}

}  // namespace
