// A captured program: the operations of one run of a function, forward and backward, replayed on the same inputs with
// no host language and no allocation. While capturing nothing is computed: buffers are address space only. What no one
// holds any more at the end is a temporary; temporaries share one arena, planned by the ops between first and last use.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/stream/streamed_weights.h"

namespace qeng {

struct LabelledOp {
  Op op;
  std::string label;
};

class Program {
 public:
  // Runs fn, whose tensors' values it must not read, and keeps its ops. Tensors that fn leaves behind (results,
  // gradients) hold the new values after each run().
  static std::unique_ptr<Program> capture(Device& device, const std::function<void()>& fn);

  // trained: at most so many targets of each LmHeadLoss are not -1; -1: any number. It is rounded (kernels/lm_head.h),
  // and a device that records keeps a recording for each value; all are of the same memory.
  void run(int64_t trained = -1);
  // Called after operation i of a run, whose results are then there or queued; after a recording's replay with the last.
  void set_after(std::function<void(size_t i)> after) { after_ = std::move(after); }
  size_t variants() const { return variants_.size(); }  // values that it has run with
  size_t nodes() const;                                 // of the longest recording; 0 before there is one
  Device& device() const { return device_; }
  const std::vector<LabelledOp>& ops() const { return ops_; }
  size_t arena_bytes() const { return arena_ ? arena_->bytes : 0; }
  size_t temporaries() const { return temporaries_; }  // bytes of all temporaries, had each its own memory
  Cost total_cost() const;

 private:
  explicit Program(Device& device) : device_(device), keeps_(device.weak_from_this().lock()) {}
  // What differs between runs.
  struct Variant {
    bool ran = false;  // to the end: what has run once can be recorded
    std::unique_ptr<Recording> recording;
  };
  Variant& variant(int64_t trained);
  void plan(Captured& captured);
  void give_memory(const std::vector<std::weak_ptr<Tensor>>& tensors);
  void find_written();
  bool records() const;  // false where a stream has to see each run
  void record(Variant& variant);
  void run_each(Variant& variant);

  Device& device_;
  std::shared_ptr<Device> keeps_;
  std::vector<LabelledOp> ops_;
  std::vector<std::shared_ptr<Buffer>> kept_;
  std::shared_ptr<Buffer> arena_;
  std::vector<View> written_;  // memory that it writes to, as bytes, but for the arena
  size_t temporaries_ = 0;
  bool checked_ =
      false;       // all of it has run to the end once: views do not change, so their shapes need no second check
  struct Copies {  // of weights, that a replay makes
    std::shared_ptr<StreamedWeights> stream;
    StreamFigures figures;
  };
  std::vector<Copies> copies_;
  std::function<void(size_t)> after_;
  std::vector<size_t> heads_;                         // numbers of its LmHeadLoss
  std::map<std::vector<int64_t>, Variant> variants_;  // by the rows that these compute
};

// One line an op: block, name, its views with shapes, flops and bytes. The views are in the backend's memory.
std::string op_text(const Op& op, const std::string& label, Backend& backend);

}  // namespace qeng
