#include <algorithm>
#include <utility>

#include "kernels/cuda/recorded.h"
#include "kernels/cuda/side_copies.h"
#include "kernels/error.h"

namespace qeng {

namespace {
constexpr size_t kMostSpans = 256;  // that wait to be asked for: passes of generation, whose times nobody wants

void run_fill(void* given) {
  auto* fill = static_cast<SideCopies::Fill*>(given);
  if (const char* message = fill->write()) fill->failure->store(message);
}
}  // namespace

TimeSpan::TimeSpan() {
  check_cuda(cudaEventCreate(&first), "creating an event");
  check_cuda(cudaEventCreate(&last), "creating an event");
}

TimeSpan::~TimeSpan() {
  cudaEventDestroy(first);
  cudaEventDestroy(last);
}

void TimeSpan::begin(cudaStream_t stream) {
  check_cuda(cudaEventRecordWithFlags(first, stream, of_graph ? cudaEventRecordExternal : cudaEventRecordDefault),
             "recording an event");
}

void TimeSpan::end(cudaStream_t stream) {
  check_cuda(cudaEventRecordWithFlags(last, stream, of_graph ? cudaEventRecordExternal : cudaEventRecordDefault),
             "recording an event");
}

double TimeSpan::seconds(cudaEvent_t origin) {
  if (of_graph && !launched) return 0;
  float began = 0, took = 0;
  check_cuda(cudaEventElapsedTime(&began, origin, first), "timing copies");
  if (began == seen_ms) return 0;
  seen_ms = began;
  check_cuda(cudaEventElapsedTime(&took, first, last), "timing copies");
  return took * 1e-3;
}

SideStream::~SideStream() {
  if (!stream) return;
  cudaStreamSynchronize(stream);
  cudaEventDestroy(joined);
  cudaStreamDestroy(stream);
}

void SideStream::make() {
  if (stream) return;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  check_cuda(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming), "creating an event");
}

void SideStream::join(cudaStream_t operations) {
  if (!used) return;
  used = false;
  check_cuda(cudaEventRecord(joined, stream), "recording an event");
  check_cuda(cudaStreamWaitEvent(operations, joined, 0), "ordering streams");
}

void SideStream::check() {
  if (const char* message = failure.exchange(nullptr)) fail("io", message);
}

CudaSideCopies::CudaSideCopies(CudaContext& context, SideStream& side) : context_(context), side_(side) {
  side_.make();
  check_cuda(cudaEventCreate(&origin_), "creating an event");
  check_cuda(cudaEventRecord(origin_, side_.stream), "recording an event");
}

CudaSideCopies::~CudaSideCopies() {
  cudaStreamSynchronize(side_.stream);
  cudaEventDestroy(origin_);
  for (const auto& [number, place] : places_) {
    cudaEventDestroy(place.free);
    cudaEventDestroy(place.done);
  }
}

CudaSideCopies::Place& CudaSideCopies::at(int place) {
  Place& found = places_[place];
  for (cudaEvent_t* event : {&found.free, &found.done})
    if (!*event) check_cuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "creating an event");
  return found;
}

void* CudaSideCopies::pin(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t status = cudaMallocHost(&memory, std::max<size_t>(bytes, 1));
  if (status != cudaSuccess) {
    cudaGetLastError();
    fail("memory", "cuda: no ", bytes,
         " bytes of the host's memory can be pinned for streamed weights: ", cudaGetErrorString(status),
         "; free some, or stream a model of fewer bits a weight");
  }
  return memory;
}

void CudaSideCopies::unpin(void* memory) { cudaFreeHost(memory); }

std::shared_ptr<TimeSpan> CudaSideCopies::begin_span(cudaStream_t stream, bool waiting) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a graph is recorded");
  const bool of_graph = status == cudaStreamCaptureStatusActive;
  if (!of_graph && spans_.size() >= kMostSpans) collect();
  std::shared_ptr<TimeSpan> span;
  if (spare_.empty() || of_graph) {
    span = std::make_shared<TimeSpan>();
  } else {
    span = std::move(spare_.back());
    spare_.pop_back();
  }
  span->waiting = waiting, span->of_graph = of_graph, span->seen_ms = -1;
  span->begin(stream);
  if (of_graph) {
    side_.recorded.push_back(span);
    of_graphs_.push_back(span);
  } else {
    spans_.push_back(span);
  }
  return span;
}

bool CudaSideCopies::later(std::function<void()> call) {
  if (!context_.recorded) return false;
  context_.recorded->calls.emplace_back(context_.recorded->ops.size(), std::move(call));
  return true;
}

void CudaSideCopies::move(int place, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Fill* fill) {
  if (later([=, this] { move(place, to, from, bytes, kind, fill); })) return;
  Place& memory = at(place);
  if (!memory.released) release(place);
  check_cuda(cudaStreamWaitEvent(side_.stream, memory.free, 0), "ordering streams");
  side_.used = true;
  const std::shared_ptr<TimeSpan> span = begin_span(side_.stream, false);
  if (fill) {
    fill->failure = &side_.failure;
    check_cuda(cudaLaunchHostFunc(side_.stream, run_fill, fill), "reading streamed weights");
  }
  check_cuda(cudaMemcpyAsync(to, from, bytes, kind, side_.stream), "copying streamed weights");
  span->end(side_.stream);
  check_cuda(cudaEventRecord(memory.done, side_.stream), "recording an event");
}

void CudaSideCopies::copy(int place, void* device, const void* pinned, size_t bytes, Fill* fill) {
  move(place, device, pinned, bytes, cudaMemcpyHostToDevice, fill);
}

void CudaSideCopies::copy_back(int place, void* pinned, const void* device, size_t bytes) {
  move(place, pinned, device, bytes, cudaMemcpyDeviceToHost);
}

void CudaSideCopies::await(int place) {
  if (later([=, this] { await(place); })) return;
  const std::shared_ptr<TimeSpan> span = begin_span(context_.stream, true);
  check_cuda(cudaStreamWaitEvent(context_.stream, at(place).done, 0), "ordering streams");
  span->end(context_.stream);
}

void CudaSideCopies::collect() {
  check_cuda(cudaStreamSynchronize(context_.stream), "waiting for the device");
  check_cuda(cudaStreamSynchronize(side_.stream), "waiting for the device");
  std::erase_if(of_graphs_, [](const std::weak_ptr<TimeSpan>& span) { return span.expired(); });
  const auto add = [this](TimeSpan& span) {
    (span.waiting ? times_.waiting : times_.copying) += span.seconds(origin_);
  };
  for (const auto& span : spans_) add(*span);
  for (const auto& span : of_graphs_) add(*span.lock());
  spare_.insert(spare_.end(), spans_.begin(), spans_.end());
  spans_.clear();
}

SideCopies::Times CudaSideCopies::times() {
  collect();
  return std::exchange(times_, {});
}

void CudaSideCopies::release(int place) {
  if (later([=, this] { release(place); })) return;
  Place& free = at(place);
  check_cuda(cudaEventRecord(free.free, context_.stream), "recording an event");
  free.released = true;
}

}  // namespace qeng
