// Between the network's threads and the loop: events wait here for the loop, and connections for its answers.
#pragma once
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "engine/net/answer.h"

namespace qeng {

class Connection;

// What the loop's side has to know of a request to make the bytes of its answer.
struct AnswerForm {
  std::shared_ptr<Connection> connection;
  bool head_only = false;   // a HEAD request
  bool keep_alive = false;  // the client would go on
  bool http10 = false;
  std::string lines;  // header lines that the network's side adds
  bool begun = false;
  Framing framing = Framing::length;
};

class Desk {
 public:
  Desk(size_t max_waiting_bytes, bool starts) : starting(starts), max_waiting_bytes_(max_waiting_bytes) {}

  // Bytes of bodies that are here or on their way. False: there is no room, and nothing was kept.
  bool keep_bytes(size_t count);
  void release_bytes(size_t count) { waiting_bytes_ -= count; }

  // The event's body was kept byte by byte; it is released where the loop takes it. Returns its id.
  uint64_t deliver(HttpEvent event, AnswerForm form);
  void refused(HttpEvent event);

  // The client of a request left. An event "gone" unless the loop has handed over all, or never saw the request.
  void left(uint64_t id);

  std::optional<HttpEvent> wait(double seconds);
  // Calls use(form) if the client is there. With `last`, nothing more can be said to it afterwards.
  bool with(uint64_t id, bool last, const std::function<void(AnswerForm&)>& use);
  void forget_all();  // every client is gone, silently
  HttpStats stats() const;

  std::atomic<bool> starting, stopping = false;
  std::atomic<size_t> connections = 0, dropped_slow = 0, unsent_bytes = 0;

 private:
  const size_t max_waiting_bytes_;
  std::atomic<size_t> waiting_bytes_ = 0;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<HttpEvent> events_;
  std::unordered_map<uint64_t, AnswerForm> open_;
  uint64_t next_id_ = 1;
  size_t requests_ = 0, refused_ = 0, refused_waiting_ = 0;
};

}  // namespace qeng
