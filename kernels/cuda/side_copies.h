// Copies from pinned memory on a stream of their own, ordered with the operations' stream by events: one for each place
// when it is free, one when its copy is done. In a graph that is being recorded the side stream takes part through
// those events, and join() brings it back before the recording ends.
#pragma once
#include <map>

#include "kernels/cuda/cuda.h"

namespace qeng {

struct SideStream {
  ~SideStream();
  void make();                         // the stream, on first use
  void join(cudaStream_t operations);  // what is queued there from now on comes after the copies
  cudaStream_t stream = nullptr;
  cudaEvent_t joined = nullptr;
  bool used = false;  // since it was set to false
};

class CudaSideCopies : public SideCopies {
 public:
  CudaSideCopies(CudaContext& context, SideStream& side);
  ~CudaSideCopies() override;
  void* pin(size_t bytes) override;
  void unpin(void* memory) override;
  void copy(int place, void* device, const void* pinned, size_t bytes) override;
  void await(int place) override;
  void release(int place) override;

 private:
  struct Place {
    cudaEvent_t free = nullptr, done = nullptr;
    bool released = false;
  };
  Place& at(int place);
  CudaContext& context_;
  SideStream& side_;
  std::map<int, Place> places_;
};

}  // namespace qeng
