#include "kernels/cuda/side_copies.h"

namespace qeng {

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
  check_cuda(cudaEventRecord(joined, stream), "recording an event");
  check_cuda(cudaStreamWaitEvent(operations, joined, 0), "ordering streams");
}

CudaSideCopies::CudaSideCopies(CudaContext& context, SideStream& side) : context_(context), side_(side) {
  side_.make();
  check_cuda(cudaEventCreate(&origin_), "creating an event");
  check_cuda(cudaEventRecord(origin_, side_.stream), "recording an event");
}

CudaSideCopies::~CudaSideCopies() {
  cudaStreamSynchronize(side_.stream);
  cudaEventDestroy(origin_);
  spans_.insert(spans_.end(), spare_.begin(), spare_.end());
  for (const Span& span : spans_) {
    cudaEventDestroy(span.begin);
    cudaEventDestroy(span.end);
  }
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

CudaSideCopies::Span CudaSideCopies::begin_span(cudaStream_t stream, bool waiting) {
  Span span;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), "asking whether a graph is recorded");
  if (!spare_.empty()) {
    span = spare_.back();
    spare_.pop_back();
  } else {
    check_cuda(cudaEventCreate(&span.begin), "creating an event");
    check_cuda(cudaEventCreate(&span.end), "creating an event");
  }
  span.waiting = waiting;
  span.of_graph = status == cudaStreamCaptureStatusActive;
  span.seen_ms = -1;
  check_cuda(cudaEventRecordWithFlags(span.begin, stream, span.of_graph ? cudaEventRecordExternal : cudaEventRecordDefault),
             "recording an event");
  return span;
}

void CudaSideCopies::end_span(Span span, cudaStream_t stream) {
  check_cuda(cudaEventRecordWithFlags(span.end, stream, span.of_graph ? cudaEventRecordExternal : cudaEventRecordDefault),
             "recording an event");
  spans_.push_back(span);
}

void CudaSideCopies::move(int place, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  Place& memory = at(place);
  if (!memory.released) release(place);
  check_cuda(cudaStreamWaitEvent(side_.stream, memory.free, 0), "ordering streams");
  const Span span = begin_span(side_.stream, false);
  check_cuda(cudaMemcpyAsync(to, from, bytes, kind, side_.stream), "copying streamed weights");
  end_span(span, side_.stream);
  check_cuda(cudaEventRecord(memory.done, side_.stream), "recording an event");
  side_.used = true;
}

void CudaSideCopies::copy(int place, void* device, const void* pinned, size_t bytes) {
  move(place, device, pinned, bytes, cudaMemcpyHostToDevice);
}

void CudaSideCopies::copy_back(int place, void* pinned, const void* device, size_t bytes) {
  move(place, pinned, device, bytes, cudaMemcpyDeviceToHost);
}

void CudaSideCopies::await(int place) {
  const Span span = begin_span(context_.stream, true);
  check_cuda(cudaStreamWaitEvent(context_.stream, at(place).done, 0), "ordering streams");
  end_span(span, context_.stream);
}

SideCopies::Times CudaSideCopies::times() {
  check_cuda(cudaStreamSynchronize(context_.stream), "waiting for the device");
  check_cuda(cudaStreamSynchronize(side_.stream), "waiting for the device");
  Times times;
  std::vector<Span> kept;
  for (Span& span : spans_) {
    float began = 0, took = 0;
    const cudaError_t status = cudaEventElapsedTime(&began, origin_, span.begin);
    if (status == cudaErrorInvalidResourceHandle) {  // of a graph that was never launched
      cudaGetLastError();
    } else {
      check_cuda(status, "timing copies");
      if (began != span.seen_ms) {
        check_cuda(cudaEventElapsedTime(&took, span.begin, span.end), "timing copies");
        (span.waiting ? times.waiting : times.copying) += took * 1e-3;
        span.seen_ms = began;
      }
    }
    (span.of_graph ? kept : spare_).push_back(span);
  }
  spans_.swap(kept);
  return times;
}

void CudaSideCopies::release(int place) {
  Place& free = at(place);
  check_cuda(cudaEventRecord(free.free, context_.stream), "recording an event");
  free.released = true;
}

}  // namespace qeng
