// Copies from pinned memory and back on a stream of their own, ordered with the operations' stream by events: one for each
// place when it is free, one when its copy is done. In a graph that is being recorded the side stream takes part through
// those events, and join() brings it back before the recording ends.
//
// Times are those between pairs of events, around each copy and around each wait. Those of a graph are its nodes, and
// recorded anew by each launch; others are used once.
#pragma once
#include <map>
#include <vector>

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
  void copy_back(int place, void* pinned, const void* device, size_t bytes) override;
  void await(int place) override;
  void release(int place) override;
  Times times() override;

 private:
  struct Place {
    cudaEvent_t free = nullptr, done = nullptr;
    bool released = false;
  };
  struct Span {
    cudaEvent_t begin = nullptr, end = nullptr;
    bool waiting = false, of_graph = false;
    float seen_ms = -1;  // when it began the last time, after origin_
  };
  Place& at(int place);
  Span begin_span(cudaStream_t stream, bool waiting);
  void end_span(Span span, cudaStream_t stream);
  void move(int place, void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
  CudaContext& context_;
  SideStream& side_;
  std::map<int, Place> places_;
  cudaEvent_t origin_ = nullptr;
  std::vector<Span> spans_, spare_;
};

}  // namespace qeng
