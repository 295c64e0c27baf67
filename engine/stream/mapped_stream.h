// Weights that are read where their file is mapped, within a limit on the memory of the whole process: for devices that
// read the host's memory. Units stay in memory as far as the limit allows, those that are used again soonest; a thread
// brings the next ones while this one computes, as many ahead as their measured times ask for. Nothing depends on it but
// speed and memory: a page that is not there is read by the access itself, so results have the same bits with any limit.
//
// Being in memory is being in the process's page tables. Giving up a unit takes the whole pages of its tensors out of
// them (madvise), and leaves it to the system to keep or drop its copy of the file. A page that was written to would be
// lost so: tensors of the stream have Buffer::read_only, unless their unit is writable.
//
// The limit counts what the system counts as resident. The device's budget is what of it remains beside memory that is
// not the device's (code, the host's heap, scratch): that is measured at each use, with `slack` for what has not been
// seen yet.
//
// A GPU's own allocations are counted beside what is resident, since drivers differ in whether they show there. The host
// waits for a GPU before it gives up what that has read, and a GPU's programs are not recorded, as a recording would not
// come by here.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/stream/streamed_weights.h"

namespace qeng {

class MappedStream : public StreamedWeights {
 public:
  // units: in the order of order.h. limit: bytes of the process, 0: what the machine has; option: what set it. The
  // device's budget, where it has one, is such a limit as well while streaming. Error("memory") where the largest unit
  // and what the process has already exceed it.
  MappedStream(Device& device, std::vector<StreamUnit> units, size_t limit, const std::string& option, size_t slack);
  ~MappedStream() override;
  void use(int unit, Pass pass) override;
  void close() override;  // the limit is gone, too

  StreamFigures figures() override;
  size_t resident() override;
  size_t total() const override { return total_; }
  size_t process() const override { return others_ + device_.held() - resident_held_; }
  size_t filed() const override { return total_; }
  bool recordable() const override { return on_host_; }

 private:
  enum class State : uint8_t { absent, coming, here };
  struct Range {
    char* begin;
    size_t bytes;
  };
  struct Unit {
    std::string name;
    std::vector<Range> ranges;  // of its tensors, where those adjoin as one
    size_t bytes = 0;
    bool rows_only = false;  // given up after each use, and not brought ahead
    State state = State::absent;
    double fetch_seconds = 0, compute_seconds = 0;  // of the last time
  };
  void bring(int unit);  // queues it: there is room
  void wait(int unit);   // until it is here
  void give_up(int unit);
  bool give_up_one(int beyond);  // the unit used last, if that is more than `beyond` steps away
  void reclaim(size_t bytes);
  size_t seen_beside() const;  // bytes of the process that the device does not account for
  void measure();              // adapts the device's budget to what the process has
  int choose_depth();
  State state_of(const Unit& unit);
  void fetch_loop();
  bool fetch(const Unit& unit);  // on the thread; false where the file is torn

  const bool on_host_;  // the device's memory is the process's, and operations are over when they return
  std::vector<TensorPtr> tensors_;
  std::vector<Unit> units_;
  size_t limit_, slack_, budget_before_, others_ = 0, total_ = 0, largest_ = 0, resident_held_ = 0;
  std::string option_before_, option_;
  int at_ = -1;
  Pass pass_ = Pass::inference;
  int64_t uses_ = 0;
  double resumed_ = 0;  // when the last use() returned

  std::mutex mutex_;  // of what the thread changes: states, its times, figures, the queue
  StreamFigures figures_;
  std::condition_variable changed_;
  std::deque<int> queue_;
  bool stop_ = false, torn_ = false;
  std::thread thread_;
};

}  // namespace qeng
