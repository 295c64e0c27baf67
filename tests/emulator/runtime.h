// What the files of the runtime API share: one lock, the errors, the queues, the registry of memory.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/emulator/runtime_api.h"

namespace emulator {

void note_launch(const void* kernel);  // coverage.cpp

std::recursive_mutex& lock();

// Remembers an error as the thread's last one, and returns it. After a kernel failed, everything fails.
cudaError_t result(cudaError_t error);
cudaError_t sticky();
void set_sticky(cudaError_t error);

// ---- memory

enum class Kind { pageable, pinned, device };
// Of `bytes` bytes at `pointer`; `valid` is false where they leave the allocation in which they begin.
Kind kind_of(const void* pointer, size_t bytes, bool* valid);
// The allocation, pinned or on the device, that an address is in; the version changes with the list of them.
bool find_allocation(uintptr_t address, uintptr_t* begin, uintptr_t* end);
uint64_t allocation_version();
// The host may touch device memory only while work runs (seen with the address sanitizer).
void open_device_memory(bool open);
// False, with a report, where something wrote behind an allocation (without the address sanitizer, which sees it at
// once).
bool check_margins(const char* doing);

// ---- queues

using Work = std::function<bool()>;  // false: the kernel failed

struct Capture;
struct Dependency;

}  // namespace emulator

struct CUstream_st {
  struct Item {
    emulator::Work work;
    std::vector<emulator::Dependency> after;
  };
  bool blocking = true;  // waits for the default stream, and it for this
  std::deque<Item> items;
  uint64_t queued = 0, done = 0;
  std::shared_ptr<emulator::Capture> capture;
  std::vector<int> frontier;  // of what is captured: the nodes that the next one follows
};

struct emulator::Dependency {
  std::shared_ptr<CUstream_st> stream;
  uint64_t done;
};

struct CUgraph_st {
  struct Node {
    emulator::Work work;
    std::vector<int> after;
  };
  std::vector<Node> nodes;
};
struct CUgraphExec_st {
  std::shared_ptr<const CUgraph_st> graph;
};

struct emulator::Capture {
  CUgraph_st graph;
  CUstream_st* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false, ended = false;
  std::vector<std::shared_ptr<CUstream_st>> streams;
};

struct CUevent_st {
  std::shared_ptr<uint64_t> time_ns;     // when it passed
  std::vector<emulator::Dependency> at;  // empty: never recorded
  bool of_graph = false;                 // it is recorded by the launches of a graph
  std::shared_ptr<emulator::Capture> capture;
  std::vector<int> frontier;
};

namespace emulator {

// Queues work, to run after what the dependencies name; or adds it to the stream's capture.
cudaError_t enqueue(cudaStream_t stream, Work work, std::vector<Dependency> after = {});
CUstream_st* capturing(cudaStream_t stream);  // the stream, where it captures
// Refuses what must not happen while this thread captures, and spoils the captures.
cudaError_t refuse_in_capture();
cudaError_t spoil(Capture& capture, cudaError_t error);
// Runs what is queued until the stream (or everything) is done.
cudaError_t finish(cudaStream_t stream);
cudaError_t finish_all();

}  // namespace emulator
