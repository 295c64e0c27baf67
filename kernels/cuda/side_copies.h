// Copies from pinned memory and back on a stream of their own, ordered with the operations' stream by events: one for
// each place when it is free, one when its copy is done. In a graph that is being recorded the side stream takes part
// through those events, and join() brings it back before the recording ends.
//
// Times are those between pairs of events, around each copy and around each wait. Those of a graph are its nodes, which
// each launch records anew, and live as long as it; others are used once.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda.h"

namespace qeng {

struct TimeSpan {
  TimeSpan();
  ~TimeSpan();
  TimeSpan(const TimeSpan&) = delete;
  void begin(cudaStream_t stream);
  void end(cudaStream_t stream);
  // Seconds that it took, of the last time, if it began anew after `origin` since it was last asked; 0 otherwise.
  double seconds(cudaEvent_t origin);
  cudaEvent_t first = nullptr, last = nullptr;
  bool waiting = false, of_graph = false;
  bool launched = false;  // of a graph that was: before that its events are of no time, and asking for it is an error
  float seen_ms = -1;     // when it began the last time, after the origin
};

struct SideStream {
  ~SideStream();
  void make();                         // the stream, on first use
  void join(cudaStream_t operations);  // what is queued there from now on comes after the copies, if there are any
  void check();                        // Error("io") of a failure
  cudaStream_t stream = nullptr;
  cudaEvent_t joined = nullptr;
  bool used = false;                                // since the operations' stream, or the host, last waited for it
  std::vector<std::shared_ptr<TimeSpan>> recorded;  // of the graph that is being recorded
  std::atomic<const char*> failure{nullptr};        // of what fills pinned memory
};

class CudaSideCopies : public SideCopies {
 public:
  CudaSideCopies(CudaContext& context, SideStream& side);
  ~CudaSideCopies() override;
  void* pin(size_t bytes) override;
  void unpin(void* memory) override;
  void copy(int place, void* device, const void* pinned, size_t bytes, Fill* fill) override;
  void copy_back(int place, void* pinned, const void* device, size_t bytes) override;
  void await(int place) override;
  void release(int place) override;
  Times times() override;

 private:
  struct Place {
    cudaEvent_t free = nullptr, done = nullptr;
    bool released = false;
  };
  Place& at(int place);
  std::shared_ptr<TimeSpan> begin_span(cudaStream_t stream, bool waiting);
  void collect();                          // blocking
  bool later(std::function<void()> call);  // whether it is of a recording, and called when that is queued
  void move(int place, void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Fill* fill = nullptr);
  CudaContext& context_;
  SideStream& side_;
  std::map<int, Place> places_;
  cudaEvent_t origin_ = nullptr;
  std::vector<std::shared_ptr<TimeSpan>> spans_, spare_;
  std::vector<std::weak_ptr<TimeSpan>> of_graphs_;
  Times times_;
};

}  // namespace qeng
