// A device as the engine sees it: a backend, the accounts of its memory, and whoever listens to what it runs.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/backend.h"

namespace qeng {

class Device;
class Runtime;          // engine/runtime
class StreamedWeights;  // engine/stream
struct Tensor;

// Memory that tensors share. Freed, or returned to the device's cache, when the last sharer lets go.
// With its count of sharers it fills 128 bytes, the largest size that malloc keeps at hand.
struct Buffer {
  Device* device = nullptr;
  std::shared_ptr<Device> keeps;  // the device, where it is shared
  void* data = nullptr;
  size_t bytes = 0;
  std::string account;          // "weights", "gradients", "activations", ...
  std::shared_ptr<void> owner;  // set where the memory belongs to something else, a mapped file for one
  void* home =
      nullptr;  // the host's memory that has the values, which are at `data` only while they are streamed there
  bool read_only = false;      // weights that are streamed: what is written there would be lost
  bool spilled = false;        // a file's memory, whose pages need not be in the process (engine/stream/spilled_file.h)
  bool constant = false;       // made from host values while capturing: the program keeps it as it is
  bool virtual_pages = false;  // allocated while capturing: address space, until the program gives it memory
  ~Buffer();
};

struct Account {
  size_t bytes = 0, peak = 0;
  size_t held = 0;  // of bytes, what counts against the budget: not memory that something else owns
};

// What is made while a program is captured (engine/program/program.h).
struct Captured {
  std::vector<std::shared_ptr<Buffer>> buffers;
  std::vector<std::weak_ptr<Tensor>> tensors;
  std::set<std::shared_ptr<StreamedWeights>> streams;  // of its UseWeights
};

// Told of every op before and after it runs. A listener that returns false from before() keeps it from running
// (capture).
class OpListener {
 public:
  virtual ~OpListener() = default;
  virtual bool before(const Op&, const std::string& label) {
    (void)label;
    return true;
  }
  virtual void after(const Op&, const std::string& label) { (void)label; }
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  explicit Device(std::unique_ptr<Backend> backend);
  ~Device();
  Device(const Device&) = delete;

  Backend& backend() { return *backend_; }
  // Whose it is, null: nobody's, or nobody's any more. Buffers of a shared device outlive its runtime.
  Runtime* runtime() const { return runtime_; }
  void set_runtime(Runtime* runtime) { runtime_ = runtime; }
  void run(const Op& op) { run(op, false); }
  void repeat(const Op& op) { run(op, true); }  // what has run before with the same views
  // Waits for all that is queued, for destructors: an error of it is printed, with what was being done.
  void finish(const std::string& doing) noexcept;

  // Uninitialised memory, 64-byte aligned; Error("memory") over the budget, naming account, block and what to change,
  // or when the system has none.
  std::shared_ptr<Buffer> allocate(size_t bytes, const std::string& account);
  // Memory that `owner` keeps alive (a mapped file).
  std::shared_ptr<Buffer> adopt(void* data, size_t bytes, const std::string& account, std::shared_ptr<void> owner);
  // The most bytes to hold, 0: any number; option: what messages call it. What is there already may exceed it.
  void set_budget(size_t bytes, const std::string& option = "the device's budget") {
    budget_ = bytes, budget_option_ = option;
  }
  size_t budget() const { return budget_; }
  const std::string& budget_option() const { return budget_option_; }
  size_t held() const { return held_; }  // what counts against it: memory in use, and kept for reuse
  // Counts memory that is not allocate()'s against the budget: `what` of it may be told in Error("memory").
  void hold(size_t bytes, const std::string& account, const std::string& what);
  void let_go(size_t bytes, const std::string& account);
  // Called with the bytes that lack before anything is refused, to let_go() of what can be had again. Empty: nobody.
  void set_reclaim(std::function<void(size_t bytes)> reclaim) { reclaim_ = std::move(reclaim); }
  // Called as the last thing before memory is refused, to let go of what nobody uses any more (the host's garbage).
  void set_collect(std::function<void()> collect) { collect_ = std::move(collect); }
  // A limit of the backend, measured in memory that the budget has: Error("memory") where it has too little.
  double limit(Limit which);
  Limits limits() { return {limit(&Limits::bandwidth), limit(&Limits::flops_f32), limit(&Limits::flops_bf16)}; }
  // Operations on this memory are refused with Error("value", why) while the result lives: the device cannot reach it.
  std::shared_ptr<void> put_out_of_reach(const void* data, size_t bytes, const std::string& why);
  void check_reach(const View& view) const;
  bool reclaims() const { return static_cast<bool>(reclaim_); }
  // Memory that is held; the address space of a capture is none.
  const std::map<std::string, Account>& accounts() const { return accounts_; }
  size_t allocated_since(bool reset);  // bytes allocated since last asked with reset: the host collects garbage on it
  void trim();                         // gives cached memory back to the system
  void give_back();                    // and, before, what the host has dropped

  // Blocks name the ops run inside, for traces and profiles: "layers.3".
  void push_label(const std::string& label);
  void pop_label() { labels_.pop_back(); }
  void set_label(const std::string& label) { labels_.back() = label; }
  const std::string& label() const { return labels_.back(); }

  // While something is pending (engine/autograd/expression.h): called before memory is written to, with the view; null:
  // all that is pending is to be computed.
  void set_before_write(std::function<void(const View* written)> before_write) {
    before_write_ = std::move(before_write);
  }
  void set_pending(bool on) { pending_ = on; }
  bool pending() const { return pending_; }
  void before_write(const View* written) {
    if (pending_) before_write_(written);
  }

  void set_listener(OpListener* listener) { listener_ = listener; }
  OpListener* listener() const { return listener_; }

  // While on, allocations are address space only, kept in `captured`; see program.h.
  void set_capturing(Captured* captured) { captured_ = captured; }
  bool capturing() const { return captured_ != nullptr; }
  Captured* captured() const { return captured_; }
  // RAII: what happens while it lives happens now, not in the program being captured.
  struct Outside {
    explicit Outside(Device& d) : device(d), captured(d.captured_), listener(d.listener_) {
      device.captured_ = nullptr;
      device.listener_ = nullptr;
    }
    ~Outside() {
      device.captured_ = captured;
      device.listener_ = listener;
    }
    Device& device;
    Captured* captured;
    OpListener* listener;
  };

 private:
  void run(const Op& op, bool again);
  friend struct Buffer;
  void check_reach(const Op& op) const;
  void credit(const std::string& account, size_t bytes, bool held);
  void make_room(size_t bytes, const std::string& account, const std::string& what);
  std::unique_ptr<Backend> backend_;
  Runtime* runtime_ = nullptr;
  std::map<std::string, Account> accounts_;
  std::unordered_map<size_t, std::vector<void*>> cache_;
  size_t cached_ = 0, held_ = 0, budget_ = 0, since_ = 0;
  std::string budget_option_;
  struct OutOfReach {
    size_t bytes;
    std::string why;
  };
  std::map<const char*, OutOfReach> out_of_reach_;
  std::function<void(size_t)> reclaim_;
  std::function<void()> collect_;
  std::function<void(const View*)> before_write_;
  bool pending_ = false;
  std::vector<std::string> labels_{""};
  OpListener* listener_ = nullptr;
  Captured* captured_ = nullptr;
};

// RAII: ops run inside a named block, for traces, profiles and errors.
struct Block {
  Block(Device& d, const std::string& label) : device(d) { device.push_label(label); }
  ~Block() { device.pop_label(); }
  Device& device;
};

}  // namespace qeng
