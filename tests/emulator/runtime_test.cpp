// The stand-in for CUDA's runtime: what streams may reorder, what a capture refuses, what memory is guarded.
#include <cstring>
#include <set>
#include <thread>

#include "kernels/cuda/device.h"
#include "tests/catch.h"
#include "tests/emulator/kernel_fixture.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

using namespace emulator_test;

namespace {

template <class... Params, class... Args>
cudaError_t queue(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, size_t shared, Args... args) {
  return emulator::launch("kernel", reinterpret_cast<const void*>(kernel), grid, block, shared, stream,
                          [=] { kernel(args...); });
}
cudaStream_t make_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == cudaSuccess);
  return stream;
}
cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  return event;
}
int* pinned(size_t count) {
  int* memory = nullptr;
  REQUIRE(cudaMallocHost(&memory, count * sizeof(int)) == cudaSuccess);
  return memory;
}

__global__ void set_to(int* out, int value) { out[threadIdx.x] = value; }
__global__ void add_to(int* out, const int* in, int value) { out[threadIdx.x] = in[threadIdx.x] + value; }

TEST_CASE("work on two streams is ordered by events, and only by them") {
  const Device<int> a(4), b(4);
  std::set<int> with, without;
  for (uint64_t seed = 0; seed < 24; ++seed) {
    for (bool event_between : {true, false}) {
      REQUIRE(run(seed, set_to, 1, 4, 0, a.data, 1) == cudaSuccess);
      cudaStream_t first = make_stream(), second = make_stream();
      cudaEvent_t event = make_event();
      REQUIRE(queue(first, set_to, 1, 4, 0, a.data, 5) == cudaSuccess);
      REQUIRE(cudaEventRecord(event, first) == cudaSuccess);
      if (event_between) REQUIRE(cudaStreamWaitEvent(second, event) == cudaSuccess);
      REQUIRE(queue(second, add_to, 1, 4, 0, b.data, a.data, 10) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(second) == cudaSuccess);
      (event_between ? with : without).insert(b.read()[0]);
      cudaEventDestroy(event);
      cudaStreamDestroy(first), cudaStreamDestroy(second);
    }
  }
  CHECK(with == std::set<int>{15});
  CHECK(without == std::set<int>{11, 15});
}

TEST_CASE("blocking streams wait for the default stream and it for them") {
  const Device<int> a(4), b(4);
  for (uint64_t seed = 0; seed < 12; ++seed) {
    REQUIRE(run(seed, set_to, 1, 4, 0, a.data, 1) == cudaSuccess);
    cudaStream_t stream = make_stream(cudaStreamDefault);
    queue(stream, set_to, 1, 4, 0, a.data, 5);
    queue(nullptr, add_to, 1, 4, 0, b.data, a.data, 1);
    queue(stream, add_to, 1, 4, 0, a.data, b.data, 1);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(a.read()[3] == 7);
    cudaStreamDestroy(stream);
  }
}

TEST_CASE("pinned memory is read as late, and written as late, as is legal; pageable memory at once") {
  const Device<int> device(1);
  int* host = pinned(2);
  cudaStream_t stream = make_stream();
  std::set<int> seen, downloaded;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    emulator::set_seed(seed);
    host[0] = 1;
    REQUIRE(cudaMemcpyAsync(device.data, host, sizeof(int), cudaMemcpyHostToDevice, stream) == cudaSuccess);
    host[0] = 2;  // too soon
    host[1] = 0;
    REQUIRE(cudaMemcpyAsync(host + 1, device.data, sizeof(int), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    downloaded.insert(host[1]);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    seen.insert(host[1]);

    int pageable = 7;
    REQUIRE(cudaMemcpyAsync(device.data, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream) == cudaSuccess);
    pageable = 8;
    REQUIRE(cudaMemcpyAsync(&pageable, device.data, sizeof(int), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    CHECK(pageable == 7);
  }
  CHECK(seen == std::set<int>{1, 2});
  CHECK(downloaded.count(0) == 1);
  cudaStreamDestroy(stream);
  cudaFreeHost(host);
}

TEST_CASE("an event is ready when its stream has come so far, and polling ends") {
  const Device<int> a(4);
  emulator::set_seed(1);
  cudaStream_t stream = make_stream();
  cudaEvent_t begin = make_event(), end = make_event();
  CHECK(cudaEventQuery(end) == cudaSuccess);  // never recorded
  cudaEventRecord(begin, stream);
  for (int i = 0; i < 5; ++i) queue(stream, set_to, 1, 4, 0, a.data, i);
  cudaEventRecord(end, stream);
  float milliseconds = -1;
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaErrorNotReady);
  CHECK(cudaGetLastError() == cudaSuccess);
  int polls = 0;
  while (cudaEventQuery(end) == cudaErrorNotReady) ++polls;
  CHECK(polls > 0);
  CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  CHECK(milliseconds >= 0);
  cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaStreamDestroy(stream);
}

TEST_CASE("an event recorded as external is a node of the graph, recorded by each launch") {
  const Device<int> a(4);
  emulator::set_seed(1);
  cudaStream_t stream = make_stream();
  cudaEvent_t origin = make_event(), begin = make_event(), end = make_event();
  REQUIRE(cudaEventRecord(origin, stream) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  REQUIRE(cudaEventRecordWithFlags(begin, stream, cudaEventRecordExternal) == cudaSuccess);
  REQUIRE(queue(stream, set_to, 1, 4, 0, a.data, 3) == cudaSuccess);
  REQUIRE(cudaEventRecordWithFlags(end, stream, cudaEventRecordExternal) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  cudaGraphExec_t ready = nullptr;
  REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
  cudaGraphDestroy(graph);
  float took = -1, began = -1, before = -1;
  CHECK(cudaEventElapsedTime(&took, begin, end) != cudaSuccess);  // not recorded yet: one of four errors
  cudaGetLastError();
  for (int launch = 0; launch < 2; ++launch) {
    REQUIRE(cudaGraphLaunch(ready, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&took, begin, end) == cudaSuccess);
    CHECK(cudaEventElapsedTime(&began, origin, begin) == cudaSuccess);
    CHECK(took >= 0);
    CHECK(began > before);
    before = began;
  }
  cudaGraphExecDestroy(ready);
  cudaEventDestroy(origin), cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaStreamDestroy(stream);
}

TEST_CASE("a captured graph replays its work, on the data of that moment") {
  const Device<int> a(4), b(4);
  int* host = pinned(4);
  cudaStream_t stream = make_stream(), side = make_stream();
  cudaEvent_t fork = make_event(), joined = make_event();
  for (uint64_t seed = 0; seed < 8; ++seed) {
    REQUIRE(run(seed, set_to, 1, 4, 0, a.data, 0) == cudaSuccess);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    cudaStreamCaptureStatus status;
    REQUIRE(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
    CHECK(status == cudaStreamCaptureStatusActive);
    queue(stream, add_to, 1, 4, 0, a.data, a.data, 1);
    REQUIRE(cudaEventRecord(fork, stream) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(side, fork) == cudaSuccess);
    queue(side, add_to, 1, 4, 0, b.data, a.data, 100);
    REQUIRE(cudaEventRecord(joined, side) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(stream, joined) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(host, b.data, 16, cudaMemcpyDeviceToHost, stream) == cudaSuccess);
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    size_t nodes = 0;
    cudaGraphGetNodes(graph, nullptr, &nodes);
    CHECK(nodes == 3);
    REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
    cudaGraphDestroy(graph);
    REQUIRE(a.read()[0] == 0);  // nothing ran so far
    for (int i = 1; i <= 3; ++i) {
      REQUIRE(cudaGraphLaunch(ready, stream) == cudaSuccess);
      REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
      CHECK(host[3] == 100 + i);
    }
    cudaGraphExecDestroy(ready);
  }
  cudaEventDestroy(fork), cudaEventDestroy(joined);
  cudaStreamDestroy(stream), cudaStreamDestroy(side);
  cudaFreeHost(host);
}

// What `act` returns during a capture of the stream, and what the capture then ends with.
template <class F>
std::pair<cudaError_t, cudaError_t> in_capture(cudaStream_t stream, F act,
                                               cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
  REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
  const cudaError_t during = act();
  cudaGraph_t graph = nullptr;
  const cudaError_t end = cudaStreamEndCapture(stream, &graph);
  CHECK((graph != nullptr) == (end == cudaSuccess));
  cudaGraphDestroy(graph);
  cudaGetLastError();
  return {during, end};
}
TEST_CASE("what may not happen during a capture fails and spoils it") {
  const Device<int> a(4);
  cudaStream_t stream = make_stream(), other = make_stream();
  cudaEvent_t event = make_event(), outside = make_event();
  const std::pair refused{cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated};
  void* memory = nullptr;
  int pageable = 0;
  CHECK(in_capture(stream, [&] { return cudaMalloc(&memory, 16); }) == refused);
  CHECK(in_capture(stream, [&] { return cudaStreamSynchronize(stream); }) == refused);
  CHECK(in_capture(stream, [&] { return cudaDeviceSynchronize(); }) == refused);
  CHECK(in_capture(stream, [&] { return cudaMemcpy(&pageable, a.data, 4, cudaMemcpyDeviceToHost); }) == refused);
  CHECK(in_capture(stream, [&] { return cudaMemcpyAsync(a.data, &pageable, 4, cudaMemcpyHostToDevice, stream); }) ==
        refused);
  CHECK(in_capture(
            stream, [&] { return cudaMalloc(&memory, 16); }, cudaStreamCaptureModeRelaxed) ==
        std::pair{cudaSuccess, cudaSuccess});
  cudaFree(memory);
  CHECK(in_capture(stream, [&] {  // another thread is free to
          cudaError_t status = cudaErrorUnknown;
          std::thread([&] { status = cudaMalloc(&memory, 16); }).join();
          return status;
        }) == std::pair{cudaSuccess, cudaSuccess});
  cudaFree(memory);
  CHECK(in_capture(stream, [&] {
          cudaEventRecord(event, stream);
          return cudaEventSynchronize(event);
        }) == std::pair{cudaErrorCapturedEvent, cudaSuccess});
  queue(other, set_to, 1, 4, 0, a.data, 1);
  cudaEventRecord(outside, other);
  CHECK(in_capture(stream, [&] { return cudaStreamWaitEvent(stream, outside); }) ==
        std::pair{cudaErrorStreamCaptureIsolation, cudaErrorStreamCaptureInvalidated});
  CHECK(in_capture(stream, [&] {  // work on another stream that nobody waits for
          cudaEventRecord(event, stream);
          cudaStreamWaitEvent(other, event);
          return queue(other, set_to, 1, 4, 0, a.data, 1);
        }) == std::pair{cudaSuccess, cudaErrorStreamCaptureUnjoined});
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
  cudaGetLastError();
  cudaEventDestroy(event), cudaEventDestroy(outside);
  cudaStreamDestroy(stream), cudaStreamDestroy(other);
}

__global__ void nothing() {}
TEST_CASE("launches that do not fit the device are refused") {
  const auto launch = [](dim3 grid, dim3 block, size_t shared) {
    const cudaError_t status = queue(nullptr, nothing, grid, block, shared);
    cudaGetLastError();
    return status;
  };
  CHECK(launch(1, 1024, 48 << 10) == cudaSuccess);
  CHECK(launch(1, 1025, 0) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, dim3(1, 1, 65), 0) == cudaErrorInvalidConfiguration);
  CHECK(launch(dim3(1, 65536, 1), 1, 0) == cudaErrorInvalidConfiguration);
  CHECK(launch(dim3(70000, 1, 1), 1, 0) == cudaSuccess);
  CHECK(launch(dim3(1, 1, 0), 1, 0) == cudaErrorInvalidConfiguration);
  CHECK(launch(1, 1, (48 << 10) + 1) == cudaErrorInvalidValue);
  CHECK_THAT(emulator::last_report(), containing("49153 bytes of shared memory exceed the 49152"));
  REQUIRE(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10) == cudaSuccess);
  CHECK(launch(1, 1, 227 << 10) == cudaSuccess);
  CHECK(launch(1, 1, (227 << 10) + 1) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1) ==
        cudaErrorInvalidValue);
  REQUIRE(cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, 48 << 10) == cudaSuccess);
  cudaGetLastError();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

__global__ void give_up() { __trap(); }
TEST_CASE("after a kernel failed everything fails, with its report") {
  const Device<int> a(4);
  emulator::set_seed(1);
  cudaStream_t stream = make_stream();
  REQUIRE(queue(stream, give_up, 1, 1, 0) == cudaSuccess);
  queue(stream, set_to, 1, 4, 0, a.data, 3);
  CHECK(cudaStreamSynchronize(stream) == cudaErrorLaunchFailure);
  CHECK(queue(stream, nothing, 1, 1, 0) == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK_THAT(cudaGetErrorString(cudaErrorLaunchFailure),
             containing("kernel kernel, block (0,0,0)") && containing("__trap"));
  cudaDeviceReset();
  CHECK(cudaGetLastError() == cudaSuccess);
  cudaStreamDestroy(stream);
}

TEST_CASE("copies are checked against the allocations they touch") {
  const Device<int> a(4);
  int host[8] = {};
  CHECK(cudaMemcpy(a.data, host, 16, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(a.data, host, 20, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(a.data, host, 16, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(host, host + 4, 16, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemset(a.data + 1, 0, 16) == cudaErrorInvalidValue);
  CHECK(cudaFree(a.data + 1) == cudaErrorInvalidValue);
  void* memory = nullptr;
  size_t before = 0, after = 0, total = 0;
  cudaMemGetInfo(&before, &total);
  CHECK(cudaMalloc(&memory, total + 1) == cudaErrorMemoryAllocation);
  CHECK(memory == nullptr);
  REQUIRE(cudaMalloc(&memory, 1000) == cudaSuccess);
  CHECK(reinterpret_cast<uintptr_t>(memory) % 256 == 0);
  cudaMemGetInfo(&after, &total);
  CHECK(before - after == 1000);
  unsigned char fresh = 0;
  cudaMemcpy(&fresh, static_cast<char*>(memory) + 999, 1, cudaMemcpyDeviceToHost);
  CHECK(fresh == 0xff);
  cudaFree(memory);
  cudaGetLastError();
}

#if defined(__SANITIZE_ADDRESS__)
__global__ void look_behind_shared(int* out) {
  out[0] = __asan_address_is_poisoned(qeng::shared_memory() + 99);
  out[1] = __asan_address_is_poisoned(qeng::shared_memory() + 100);
  out[2] = __asan_address_is_poisoned(out), out[3] = __asan_address_is_poisoned(out + 4);
}
TEST_CASE("the address sanitizer guards what is behind shared and device memory, and device memory from the host") {
  const Device<int> out(4);
  REQUIRE(run(1, look_behind_shared, 1, 1, 100, out.data) == cudaSuccess);
  CHECK(out.read() == std::vector<int>{0, 1, 0, 1});
  CHECK(__asan_address_is_poisoned(out.data));
}
#else
__global__ void write_shared(int byte) { qeng::shared_memory()[byte] = 1; }
__global__ void write_device(char* memory, int byte) { memory[byte] = 1; }
TEST_CASE("writing behind shared or device memory is found") {
  CHECK(report_of(write_shared, 1, 100, 99) == "no failure");
  CHECK_THAT(report_of(write_shared, 1, 100, 100), containing("wrote byte 100 of 100 of shared memory"));
  const Device<char> device(100);
  CHECK(report_of(write_device, 1, 0, device.data, 99) == "no failure");
  CHECK_THAT(report_of(write_device, 1, 0, device.data, 103),
             containing("wrote byte 103 of an allocation of 100 bytes"));
}
#endif

}  // namespace
