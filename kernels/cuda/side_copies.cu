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
}

CudaSideCopies::~CudaSideCopies() {
  cudaStreamSynchronize(side_.stream);
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

void CudaSideCopies::copy(int place, void* device, const void* pinned, size_t bytes) {
  Place& to = at(place);
  if (!to.released) release(place);
  check_cuda(cudaStreamWaitEvent(side_.stream, to.free, 0), "ordering streams");
  check_cuda(cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, side_.stream), "copying to the device");
  check_cuda(cudaEventRecord(to.done, side_.stream), "recording an event");
  side_.used = true;
}

void CudaSideCopies::await(int place) {
  check_cuda(cudaStreamWaitEvent(context_.stream, at(place).done, 0), "ordering streams");
}

void CudaSideCopies::release(int place) {
  Place& free = at(place);
  check_cuda(cudaEventRecord(free.free, context_.stream), "recording an event");
  free.released = true;
}

}  // namespace qeng
