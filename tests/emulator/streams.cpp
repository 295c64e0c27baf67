// Streams as queues, events, captures and graphs.
#include <algorithm>
#include <chrono>
#include <set>

#include "tests/emulator/block.h"
#include "tests/emulator/runtime.h"

namespace emulator {
namespace {

std::vector<std::shared_ptr<CUstream_st>>& streams() {  // the default stream first
  static auto* list = new std::vector<std::shared_ptr<CUstream_st>>{std::make_shared<CUstream_st>()};
  return *list;
}
std::set<cudaEvent_t>& events() {
  static auto* set = new std::set<cudaEvent_t>;
  return *set;
}
std::vector<std::shared_ptr<Capture>>& captures() {
  static auto* list = new std::vector<std::shared_ptr<Capture>>;
  return *list;
}

std::shared_ptr<CUstream_st> find(cudaStream_t stream) {
  if (!stream) return streams().front();
  for (const auto& known : streams())
    if (known.get() == stream) return known;
  return nullptr;
}

// Where the stream stands: all that is queued on it so far.
Dependency now(const std::shared_ptr<CUstream_st>& stream) { return {stream, stream->queued}; }
bool passed(const Dependency& dependency) { return dependency.stream->done >= dependency.done; }
bool passed(const std::vector<Dependency>& dependencies) {
  return std::all_of(dependencies.begin(), dependencies.end(), [](const Dependency& one) { return passed(one); });
}

// Runs one piece of work of a stream whose turn it may be; false where there is none.
bool run_one() {
  std::vector<CUstream_st*> ready;
  for (const auto& stream : streams())
    if (!stream->items.empty() && passed(stream->items.front().after)) ready.push_back(stream.get());
  if (ready.empty()) return false;
  CUstream_st& stream = *ready[random_bits() % ready.size()];
  CUstream_st::Item item = std::move(stream.items.front());
  stream.items.pop_front();
  open_device_memory(true);
  const bool well = item.work();
  ++stream.done;
  if (!well) {  // the context is lost: nothing that was queued will run
    set_sticky(cudaErrorLaunchFailure);
    for (const auto& other : streams()) other->items.clear(), other->done = other->queued;
  }
  return true;
}

template <class F>
cudaError_t run_until(F done) {
  while (!done())
    if (!run_one()) break;
  open_device_memory(false);
  return sticky();
}

// How soon work runs that nobody waits for yet: seeds 0, 3, ... at once, 1, 4, ... never, 2, 5, ... now and then.
void run_ahead() {
  if (seed() % 3 == 0) {
    run_until([] { return false; });
  } else if (seed() % 3 == 2 && random_bits() % 4 == 0) {
    run_one();
    open_device_memory(false);
  }
}

void join(const std::shared_ptr<CUstream_st>& stream, const std::shared_ptr<Capture>& capture,
          const std::vector<int>& frontier) {
  if (!stream->capture) {
    stream->capture = capture;
    stream->frontier.clear();
    capture->streams.push_back(stream);
  }
  for (int node : frontier)
    if (std::find(stream->frontier.begin(), stream->frontier.end(), node) == stream->frontier.end())
      stream->frontier.push_back(node);
}

void end(Capture& capture) {
  capture.ended = true;
  for (const auto& stream : capture.streams) stream->capture = nullptr, stream->frontier.clear();
  std::erase_if(captures(), [&](const auto& one) { return one.get() == &capture; });
}

// Whether every node leads to the frontier of the stream that began the capture.
bool joined(const Capture& capture) {
  std::vector<bool> reached(capture.graph.nodes.size());
  std::vector<int> next = capture.origin->frontier;
  while (!next.empty()) {
    const auto node = static_cast<size_t>(next.back());
    next.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    for (int before : capture.graph.nodes[node].after) next.push_back(before);
  }
  return std::all_of(reached.begin(), reached.end(), [](bool one) { return one; });
}

// The nodes in an order that the edges allow and the seed draws.
bool run_graph(const CUgraph_st& graph) {
  std::vector<bool> done(graph.nodes.size());
  std::vector<size_t> waiting(graph.nodes.size());
  for (size_t i = 0; i < waiting.size(); ++i) waiting[i] = i;
  while (!waiting.empty()) {
    std::vector<size_t> ready;  // places in `waiting`
    for (size_t i = 0; i < waiting.size() && ready.size() < 8; ++i) {
      const auto& after = graph.nodes[waiting[i]].after;
      if (std::all_of(after.begin(), after.end(), [&](int node) { return done[static_cast<size_t>(node)]; }))
        ready.push_back(i);
    }
    const size_t chosen = ready[random_bits() % ready.size()], node = waiting[chosen];
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(chosen));
    if (!graph.nodes[node].work()) return false;
    done[node] = true;
  }
  return true;
}

uint64_t clock_ns() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

}  // namespace

CUstream_st* capturing(cudaStream_t stream) {
  const auto found = find(stream);
  return found && found->capture ? found.get() : nullptr;
}

cudaError_t spoil(Capture& capture, cudaError_t error) {
  capture.invalid = true;
  return error;
}

cudaError_t refuse_in_capture() {
  cudaError_t error = cudaSuccess;
  for (const auto& capture : captures()) {
    const bool mine = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeGlobal || (capture->mode == cudaStreamCaptureModeThreadLocal && mine))
      error = spoil(*capture, cudaErrorStreamCaptureUnsupported);
  }
  return error;
}

cudaError_t enqueue(cudaStream_t handle, Work work, std::vector<Dependency> after) {
  const auto stream = find(handle);
  if (sticky()) return sticky();
  if (!stream) return cudaErrorInvalidResourceHandle;
  if (stream->capture) {
    Capture& capture = *stream->capture;
    if (capture.invalid) return cudaErrorStreamCaptureInvalidated;
    capture.graph.nodes.push_back({std::move(work), stream->frontier});
    stream->frontier = {static_cast<int>(capture.graph.nodes.size()) - 1};
    return cudaSuccess;
  }
  const auto& standard = streams().front();
  if (stream == standard) {
    for (const auto& other : streams()) {
      if (!other->blocking || other == standard) continue;
      if (other->capture) return spoil(*other->capture, cudaErrorStreamCaptureImplicit);
      after.push_back(now(other));
    }
  } else if (stream->blocking) {
    after.push_back(now(standard));
  }
  stream->items.push_back({std::move(work), std::move(after)});
  ++stream->queued;
  run_ahead();
  return cudaSuccess;
}

cudaError_t finish(cudaStream_t handle) {
  const auto stream = find(handle);
  if (!stream) return cudaErrorInvalidResourceHandle;
  return run_until([&] { return stream->items.empty(); });
}
cudaError_t finish_all() {
  return run_until([] { return false; });
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  auto made = std::make_shared<CUstream_st>();
  made->blocking = !(flags & cudaStreamNonBlocking);
  streams().push_back(made);
  *stream = made.get();
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  const std::lock_guard guard(lock());
  const auto stream = find(handle);
  if (!handle || !stream) return result(cudaErrorInvalidResourceHandle);
  if (stream->capture) return result(spoil(*stream->capture, cudaErrorStreamCaptureUnsupported));
  finish(handle);
  std::erase(streams(), stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  if (CUstream_st* captured = capturing(stream))
    return result(spoil(*captured->capture, cudaErrorStreamCaptureUnsupported));
  return result(finish(stream));
}
cudaError_t cudaDeviceSynchronize() {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  return result(finish_all());
}
// A query lets the device go on a little, so that polling ends.
cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  const auto stream = find(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  if (random_bits() % 2) run_one();
  open_device_memory(false);
  if (sticky()) return result(sticky());
  return stream->items.empty() ? cudaSuccess : result(cudaErrorNotReady);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const std::lock_guard guard(lock());
  return result(enqueue(stream, [=] { return function(data), true; }));
}

// ---- events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  *event = *events().insert(new CUevent_st).first;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const std::lock_guard guard(lock());
  if (!events().count(event)) return result(cudaErrorInvalidResourceHandle);
  events().erase(event);
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const std::lock_guard guard(lock());
  const auto stream = find(handle);
  if (!stream || !events().count(event)) return result(cudaErrorInvalidResourceHandle);
  if (stream->capture) {
    if (stream->capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
    event->capture = stream->capture, event->frontier = stream->frontier;
    event->of_graph = false;
    event->at.clear();
    return cudaSuccess;
  }
  event->capture = nullptr, event->of_graph = false;
  event->time_ns = std::make_shared<uint64_t>();
  event->at = {{stream, stream->queued + 1}};
  return result(enqueue(handle, [time = event->time_ns] { return *time = clock_ns(), true; }));
}
// External: in a capture a node of the graph, whose launches record the event.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t handle, unsigned flags) {
  {
    const std::lock_guard guard(lock());
    const auto stream = find(handle);
    if (!stream || !events().count(event)) return result(cudaErrorInvalidResourceHandle);
    if (stream->capture && flags & cudaEventRecordExternal) {
      event->capture = nullptr, event->of_graph = true;
      event->at.clear();
      return result(enqueue(handle, [event] {
        if (!events().count(event)) return false;
        event->time_ns = std::make_shared<uint64_t>(clock_ns());
        event->at = {{streams().front(), 0}};  // has passed
        return true;
      }));
    }
  }
  return cudaEventRecord(event, handle);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  const std::lock_guard guard(lock());
  const auto stream = find(handle);
  if (!stream || !events().count(event)) return result(cudaErrorInvalidResourceHandle);
  if (event->capture) {
    if (event->capture->ended) return result(cudaErrorStreamCaptureIsolation);
    if (stream->capture && stream->capture != event->capture) {
      spoil(*stream->capture, cudaErrorStreamCaptureMerge);
      return result(spoil(*event->capture, cudaErrorStreamCaptureMerge));
    }
    if (event->capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
    join(stream, event->capture, event->frontier);
    return cudaSuccess;
  }
  if (stream->capture && !event->at.empty()) return result(spoil(*stream->capture, cudaErrorStreamCaptureIsolation));
  if (event->at.empty()) return cudaSuccess;
  return result(enqueue(
      handle, [] { return true; }, event->at));
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  if (!events().count(event)) return result(cudaErrorInvalidResourceHandle);
  if (event->capture) return result(cudaErrorCapturedEvent);
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  return result(run_until([&] { return passed(event->at); }));
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  if (!events().count(event)) return result(cudaErrorInvalidResourceHandle);
  if (event->capture) return result(cudaErrorCapturedEvent);
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  if (random_bits() % 2) run_one();
  open_device_memory(false);
  if (sticky()) return result(sticky());
  return passed(event->at) ? cudaSuccess : result(cudaErrorNotReady);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end_event) {
  const std::lock_guard guard(lock());
  if (!events().count(start) || !events().count(end_event)) return result(cudaErrorInvalidResourceHandle);
  for (const cudaEvent_t event : {start, end_event}) {
    if (!event->at.empty()) continue;
    // Which error CUDA gives for an event that awaits the first launch of its graph is written nowhere.
    const cudaError_t either[] = {cudaErrorInvalidResourceHandle, cudaErrorInvalidValue, cudaErrorNotReady,
                                  cudaErrorCapturedEvent};
    return result(either[event->of_graph ? random_bits() % 4 : 0]);
  }
  if (!passed(start->at) || !passed(end_event->at)) return result(cudaErrorNotReady);
  *milliseconds =
      static_cast<float>(static_cast<double>(*end_event->time_ns) - static_cast<double>(*start->time_ns)) * 1e-6f;
  return cudaSuccess;
}

// ---- captures and graphs

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  const auto stream = find(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  if (!handle) return result(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return result(cudaErrorIllegalState);
  const auto capture = std::make_shared<Capture>();
  capture->origin = handle, capture->mode = mode, capture->thread = std::this_thread::get_id();
  join(stream, capture, {});
  captures().push_back(capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  const std::lock_guard guard(lock());
  *graph = nullptr;
  const auto stream = find(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  const auto capture = stream->capture;
  if (!capture) return result(cudaErrorIllegalState);
  if (capture->origin != handle) return result(spoil(*capture, cudaErrorStreamCaptureUnmatched));
  const bool whole = joined(*capture);
  end(*capture);
  if (sticky()) return result(sticky());
  if (capture->invalid) return result(cudaErrorStreamCaptureInvalidated);
  if (!whole) return result(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st(std::move(capture->graph));
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  const std::lock_guard guard(lock());
  const auto stream = find(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  *status = !stream->capture           ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  const std::lock_guard guard(lock());
  if (!graph) return result(cudaErrorInvalidValue);
  *executable = new CUgraphExec_st{std::make_shared<const CUgraph_st>(*graph)};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const std::lock_guard guard(lock());
  if (!executable) return result(cudaErrorInvalidValue);
  return result(enqueue(stream, [graph = executable->graph] { return run_graph(*graph); }));
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  return *count = graph->nodes.size(), cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { return delete executable, cudaSuccess; }
