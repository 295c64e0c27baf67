// An NVIDIA GPU as a Backend: one stream in whose order everything happens, pinned staging for what comes from the
// host, and graphs for what is recorded.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "kernels/backend_library.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/limits.h"
#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/recorded.h"
#include "kernels/cuda/side_copies.h"
#include "kernels/error.h"
#include "kernels/fault_text.h"
#include "kernels/lm_head.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kLeastCapability = 75;  // CUDA 13 compiles for none before Turing

// Whether kernels read what the host has mapped as fast as what cudaMalloc gives. Not where the GPU has memory of its own
// beside, as Grace Hopper has, which is eight times as fast as its link to the host.
bool one_memory(const cudaDeviceProp& properties) {
  return properties.integrated && properties.pageableMemoryAccessUsesHostPageTables;
}

// A ring of pinned memory. What is uploaded is copied here first, so that the caller's memory is free at once and the
// copy to the device runs beside the host. A piece is used again when the event behind it has passed.
class Staging {
 public:
  ~Staging() {
    for (const Piece& piece : pieces_) cudaEventDestroy(piece.event);
    if (memory_) cudaFreeHost(memory_);
  }

  void upload(void* device, const char* host, size_t bytes, cudaStream_t stream) {
    if (!memory_) check_cuda(cudaMallocHost(&memory_, kBytes), "allocating pinned memory");
    for (size_t done = 0; done < bytes;) {
      const size_t count = std::min(bytes - done, kPiece);
      char* piece = take(count);
      std::memcpy(piece, host + done, count);
      check_cuda(cudaMemcpyAsync(static_cast<char*>(device) + done, piece, count, cudaMemcpyDefault, stream),
                 "copying to the device");
      check_cuda(cudaEventRecord(pieces_.back().event, stream), "recording an event");
      done += count;
    }
  }

 private:
  static constexpr size_t kBytes = size_t{32} << 20;  // four pieces: the host fills one while others travel
  static constexpr size_t kPiece = kBytes / 4;
  struct Piece {
    size_t begin, end;
    cudaEvent_t event;
  };

  char* take(size_t bytes) {
    bytes = (bytes + 255) / 256 * 256;
    if (next_ + bytes > kBytes) next_ = 0;
    const size_t begin = next_, end = next_ + bytes;
    cudaEvent_t event = nullptr;
    // Pieces leave in the order they came, so the oldest that overlaps has the newer ones behind it.
    while (!pieces_.empty() && overlaps_any(begin, end)) {
      check_cuda(cudaEventSynchronize(pieces_.front().event), "waiting for a copy");
      if (event) cudaEventDestroy(event);
      event = pieces_.front().event;
      pieces_.pop_front();
    }
    if (!event) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
    pieces_.push_back({begin, end, event});
    next_ = end;
    return static_cast<char*>(memory_) + begin;
  }
  bool overlaps_any(size_t begin, size_t end) const {
    for (const Piece& piece : pieces_)
      if (piece.begin < end && begin < piece.end) return true;
    return false;
  }

  void* memory_ = nullptr;
  size_t next_ = 0;
  std::deque<Piece> pieces_;
};

class CudaGraph : public Recording {
 public:
  CudaGraph(cudaGraphExec_t graph, size_t nodes, cudaStream_t stream, SideStream& copies)
      : graph_(graph), nodes_(nodes), stream_(stream), copies_(copies), spans_(std::exchange(copies.recorded, {})) {}
  ~CudaGraph() override {
    if (!spans_.empty()) cudaStreamSynchronize(stream_);  // a launch may be under way, and records their events
    cudaGraphExecDestroy(graph_);
  }
  void replay() override {
    copies_.join(stream_);  // its copies begin when it does, and may go to where earlier ones are still under way
    check_cuda(cudaGraphLaunch(graph_, stream_), "launching a graph");
    for (const auto& span : spans_) span->launched = true;
  }
  size_t nodes() const override { return nodes_; }

 private:
  cudaGraphExec_t graph_;
  size_t nodes_;
  cudaStream_t stream_;
  SideStream& copies_;
  std::vector<std::shared_ptr<TimeSpan>> spans_;  // its nodes record their events
};

// From the driver, once more when what the engine does not use is let go.
class SpareOfDriver : public SpareMemory {
 public:
  void* allocate(size_t bytes, const char* doing) override {
    void* memory = nullptr;
    cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaErrorMemoryAllocation && reclaim) {
      cudaGetLastError();
      reclaim();
      status = cudaMalloc(&memory, bytes);
    }
    check_cuda(status, doing);
    return memory;
  }
  void grows(size_t bytes) override {
    if (on_scratch) on_scratch(bytes);
  }
  std::function<void()> reclaim;
  std::function<void(size_t bytes)> on_scratch;
};

class CudaBackend : public Backend {
 public:
  explicit CudaBackend(int index) {
    context_.device = index;
    choose();
    cudaDeviceProp properties{};
    check_cuda(cudaGetDeviceProperties(&properties, index), "reading the device's properties");
    context_.multiprocessors = properties.multiProcessorCount;
    context_.capability = properties.major * 10 + properties.minor;
    context_.shared_limit = properties.sharedMemPerBlockOptin;
    title_ = properties.name;
    memory_bytes_ = context_.memory = properties.totalGlobalMem;
    one_memory_ = one_memory(properties);
    if (context_.capability < kLeastCapability)
      fail("unsupported", "cuda:", index, " is a ", title_, " of compute capability ", properties.major, ".",
           properties.minor, "; needed is 7.5 or more (Turing and later)");
    const char* wait = std::getenv("QENG_CUDA_SYNC");
    context_.synchronous = wait && std::string(wait) != "0";
    const char* ahead = std::getenv("QENG_CUDA_AHEAD");
    context_.ahead = context_.capability >= 90 && (!ahead || std::string(ahead) != "0");
    check_cuda(cudaStreamCreateWithFlags(&context_.stream, cudaStreamNonBlocking), "creating a stream");
    void* fault = nullptr;
    check_cuda(cudaMalloc(&fault, sizeof(Fault)), "allocating memory");
    context_.fault = static_cast<Fault*>(fault);
    void* arrived = nullptr;
    check_cuda(cudaMalloc(&arrived, kMostArrived * sizeof(int)), "allocating memory");
    context_.arrived = static_cast<int*>(arrived);
    check_cuda(cudaMemsetAsync(arrived, 0, kMostArrived * sizeof(int), context_.stream), "clearing counters");
    void* seen = nullptr;
    check_cuda(cudaMallocHost(&seen, sizeof(Fault)), "allocating pinned memory");
    seen_ = static_cast<Fault*>(seen);
    clear_fault();
    check_cuda(cudaStreamSynchronize(context_.stream), "starting");
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(context_.stream);
    if (side_) {
      cudaStreamSynchronize(side_);
      cudaEventDestroy(before_), cudaEventDestroy(done_);
      cudaStreamDestroy(side_);
    }
    cudaFree(context_.fault);
    cudaFree(context_.arrived);
    cudaFreeHost(seen_);
    delete context_.cublas;
    cudaStreamDestroy(context_.stream);
  }

  std::string name() const override { return "cuda:" + std::to_string(context_.device); }
  std::string description() const override {
    return title_ + ", compute capability " + std::to_string(context_.capability / 10) + "." +
           std::to_string(context_.capability % 10);
  }

  void run(const Op& op) override {
    choose();
    std::visit([](const auto& concrete) { check_shapes(concrete); }, op);
    for_each_view(op, [&](const char* label, const View& view, Access) {
      if (view.interleaved)
        fail("dtype", op_name(op), ": ", label, " is ", shape_text(view), ", whose rows are interleaved, as the CPU ",
             "alone reads them: load it for ", name());
    });
    if (context_.recorded) return context_.recorded->ops.push_back(op);
    context_.scratch.reset();
    std::visit([this](const auto& concrete) { qeng::run(concrete, context_); }, op);
  }

  void synchronize() override {
    check_cuda(cudaMemcpyAsync(seen_, context_.fault, sizeof(Fault), cudaMemcpyDeviceToHost, context_.stream),
               "reading the fault record");
    check_cuda(cudaStreamSynchronize(context_.stream), "waiting for the device");
    if (copies_.stream) check_cuda(cudaStreamSynchronize(copies_.stream), "waiting for the device");
    copies_.used = false;
    copies_.check();
    check_fault();
  }

  std::unique_ptr<Recording> record(const std::function<void()>& fn) override {
    choose();
    copies_.join(context_.stream);  // of those before the recording; it waits for its own at its end
    copies_.recorded.clear();
    RecordedOps recorded;
    context_.recorded = &recorded;
    try {
      fn();
    } catch (...) {
      context_.recorded = nullptr;
      throw;
    }
    context_.recorded = nullptr;
    queue_recorded(recorded, true, context_);
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal), "beginning to record");
    freeze_scratch(true);
    try {
      queue_recorded(recorded, false, context_);
      copies_.join(context_.stream);
    } catch (...) {
      copies_.used = false;
      cudaStreamEndCapture(context_.stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();  // the failed recording's; it is reported by what was thrown
      freeze_scratch(false);
      throw;
    }
    freeze_scratch(false);
    check_cuda(cudaStreamEndCapture(context_.stream, &graph), "recording");
    size_t nodes = 0;
    cudaGraphExec_t ready = nullptr;
    cudaError_t status = cudaGraphGetNodes(graph, nullptr, &nodes);
    if (status == cudaSuccess) status = cudaGraphInstantiate(&ready, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(status, "making a graph of what was recorded");
    return std::make_unique<CudaGraph>(ready, nodes, context_.stream, copies_);
  }

  void ahead(const std::function<void()>& fn) override {
    choose();
    if (!side_) {
      check_cuda(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking), "creating a stream");
      for (cudaEvent_t* event : {&before_, &done_})
        check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event");
    } else {
      check_cuda(cudaStreamWaitEvent(side_, before_, 0), "ordering streams");
    }
    check_cuda(cudaEventRecord(before_, context_.stream), "recording an event");
    std::swap(context_.stream, side_);
    try {
      fn();
    } catch (...) {
      std::swap(context_.stream, side_);
      throw;
    }
    std::swap(context_.stream, side_);
    check_cuda(cudaEventRecord(done_, side_), "recording an event");
    check_cuda(cudaStreamWaitEvent(context_.stream, done_, 0), "ordering streams");
  }

  std::unique_ptr<SideCopies> side_copies() override {
    choose();
    return std::make_unique<CudaSideCopies>(context_, copies_);
  }

  void* allocate(size_t bytes) override {
    choose();
    void* memory = nullptr;
    const size_t vectors = (std::max<size_t>(bytes, 1) + 15) / 16 * 16;  // kernels may read to the end of the last
    const cudaError_t status = cudaMalloc(&memory, vectors);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      const Memory left = this->memory();
      fail("memory", name(), ": no room for ", bytes, " bytes; ", left.free, " of ", left.total,
           " are free. Use fewer or shorter rows, or recompute activations");
    }
    check_cuda(status, "allocating memory");
    return memory;
  }
  void release(void* memory, size_t) override { cudaFree(memory); }
  void set_reclaim(std::function<void()> reclaim) override { spare_.reclaim = std::move(reclaim); }
  void set_on_scratch(std::function<void(size_t)> grows) override { spare_.on_scratch = std::move(grows); }

  void upload(void* device, const void* host, size_t bytes) override {
    choose();
    if (bytes) staging_.upload(device, static_cast<const char*>(host), bytes, context_.stream);
  }
  void download(void* host, const void* device, size_t bytes) override {
    if (bytes)
      check_cuda(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDefault, context_.stream), "copying from the device");
    synchronize();
  }
  bool host_memory() const override { return false; }
  bool reads_host_memory() const override { return one_memory_; }
  int head_chunk(int64_t tokens, int64_t vocab) const override { return gpu_head_chunk(tokens, vocab, memory_bytes_); }

  Memory memory() override {
    choose();
    Memory now;
    check_cuda(cudaMemGetInfo(&now.free, &now.total), "asking for free memory");
    return now;
  }

  size_t limit_memory(Limit which) override { return limits_.*which == 0 ? kLimitMemory : 0; }
  double limit(Limit which) override {
    if (limits_.*which == 0) limits_.*which = measure_limit(which, *this, context_);
    return limits_.*which;
  }

 private:
  template <class F>
  void for_scratch(F f) {
    for (CudaScratch* memory : {&context_.scratch, &context_.rounded[0], &context_.rounded[1], &context_.plans})
      f(*memory);
  }
  void freeze_scratch(bool on) {
    for_scratch([&](CudaScratch& memory) { memory.freeze(on); });
  }
  // The calling thread's device becomes this one: another backend of the process may have chosen its own.
  void choose() const {
    thread_local int chosen = -1;
    if (chosen == context_.device) return;
    check_cuda(cudaSetDevice(context_.device), "choosing the device");
    chosen = context_.device;
  }
  void clear_fault() {
    check_cuda(cudaMemsetAsync(context_.fault, 0, sizeof(Fault), context_.stream), "clearing the fault record");
  }
  void check_fault() {
    const Fault fault = *seen_;
    if (fault.kind == FaultKind::none) return;
    clear_fault();
    throw_fault(fault);
  }

  SpareOfDriver spare_;
  CudaContext context_{spare_};
  Staging staging_;
  SideStream copies_;
  cudaStream_t side_ = nullptr;  // ahead()'s, with the point that its next call waits for and the end of the last one
  cudaEvent_t before_ = nullptr, done_ = nullptr;
  Fault* seen_ = nullptr;  // pinned: the fault record as of the last synchronisation
  std::string title_;
  size_t memory_bytes_ = 0;
  bool one_memory_ = false;
  Limits limits_;
};

// "13.0" of 13000.
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::vector<DeviceInfo> list_devices(std::string* why) {
  int count = 0, driver = 0, needed = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&needed);
  if (driver == 0) {
    *why = "no NVIDIA driver is running on this machine; needed is one for CUDA " + version_text(needed) + " or newer";
    return {};
  }
  if (status == cudaErrorInsufficientDriver) {
    *why = "the NVIDIA driver supports CUDA up to " + version_text(driver) + "; needed is one for CUDA " +
           version_text(needed) + " or newer";
    return {};
  }
  if (status != cudaSuccess || count == 0) {
    *why = std::string("the NVIDIA driver finds no GPU (") + cudaGetErrorString(status) +
           "); is CUDA_VISIBLE_DEVICES right?";
    return {};
  }
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    devices.push_back(
        {"cuda:" + std::to_string(i), properties.name, properties.totalGlobalMem, one_memory(properties)});
  }
  return devices;
}

}  // namespace

void check_cuda(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  fail(status == cudaErrorMemoryAllocation ? "memory" : "cuda", "cuda: ", doing, ": ", cudaGetErrorString(status), " (",
       cudaGetErrorName(status), ")");
}

void check_launch(CudaContext& context, const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared) {
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.y > 65535 || grid.z > 65535 || shared > context.shared_limit)
    fail("internal", name, ": grid ", grid.x, "x", grid.y, "x", grid.z, ", ", threads, " threads and ", shared,
         " bytes of shared memory do not fit the device (", context.shared_limit, " bytes)");
  if (shared <= 48 * 1024) return;
  const auto place = std::lower_bound(context.prepared.begin(), context.prepared.end(), kernel);
  if (place != context.prepared.end() && *place == kernel) return;
  context.prepared.insert(place, kernel);
  check_cuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(context.shared_limit)),
      name);
}

void load_kernel(const char* name, const void* kernel) {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, kernel), name);
}

void finish_launch(CudaContext& context, const char* name, cudaError_t status) {
  check_cuda(status, name);
  if (!context.synchronous || context.scratch.frozen()) return;
  check_cuda(cudaStreamSynchronize(context.stream), name);
}

CudaScratch::~CudaScratch() {
  for (const Block& block : blocks_) cudaFree(block.memory);
  for (void* memory : outgrown_) cudaFree(memory);
}

void* CudaScratch::take(size_t bytes) {
  if (used_ == blocks_.size()) blocks_.emplace_back();
  Block& block = blocks_[used_++];
  if (block.bytes < bytes) {
    if (frozen_)
      fail("internal", "cuda: an operation being recorded needs ", bytes,
           " bytes of scratch that its first run did not");
    const size_t rounded = (bytes + 65535) / 65536 * 65536;
    spare_.grows(rounded);
    void* larger = spare_.allocate(rounded, "allocating scratch memory");
    if (block.memory) outgrown_.push_back(block.memory);
    block = {larger, rounded};
  }
  return block.memory;
}

}  // namespace qeng

QENG_BACKEND_LIBRARY(&qeng::list_devices, new qeng::CudaBackend(index))
