// Weights that wait in pinned memory of the host and are copied to a device that has memory of its own, beside its
// operations (SideCopies). As many units as half of the device's free budget holds, or `keep` bytes, stay there for
// good; the others share a few buffers of the largest one's size, the k-th of them buffer k modulo their number, so
// that a unit's place never changes and recorded graphs copy as well. While a unit is used, the next ones of the pass
// are copied to the other buffers. The other half of the budget is for activations, gradients and the optimizer.
//
// Each pass begins with unit 0 and with empty buffers, so that a graph of it does not depend on what ran before.
// Between the forward and the backward pass the last units stay in their buffers.
//
// Weights that learn (Tensor::learner) change while their unit is used in the backward pass, and are copied back to the
// host when that ends: that pass has to end with kNoUnit, or what its last unit learned is lost. A tensor's values are
// those in pinned memory (Buffer::home), which it keeps, and where an operation finds them whose weight is not of the
// unit in use: the device reads there, slowly.
//
// Where the host may not pin as much as that, some of the units, spread evenly, stay in their mapped file and pass
// through one buffer of pinned memory when they are copied: a read of the disk then is part of the copy. Only weights
// that do not learn can, and only operations within their unit's use find them.
#pragma once
#include <cstdint>
#include <memory>

#include "engine/stream/streamed_weights.h"

namespace qeng {

class BufferedStream : public StreamedWeights {
 public:
  // Moves the units' tensors to the buffers, or to memory for good, and points them there; a tensor of two units (a
  // tied head) stays for good. limit: bytes that may be pinned, 0: any number; option: what set it. Error("memory")
  // where what has to be pinned, or the buffers, exceed a budget. depth: units copied ahead.
  static constexpr size_t kHalf = SIZE_MAX;
  // Units that are copied ahead: one ready and one on its way. Where all units take the same time more of them hide
  // nothing more, but a unit that computes longer (the head) finds the next ones ready.
  static constexpr int kDepth = 2;
  BufferedStream(Device& device, std::vector<StreamUnit> units, size_t limit, const std::string& option,
                 size_t keep = kHalf, int depth = kDepth);
  ~BufferedStream() override;
  void use(int unit, Pass pass) override;
  void show(int unit) override;

  StreamFigures figures() override;
  size_t resident() override;
  size_t total() const override { return total_; }
  size_t process() const override { return pinned_bytes_; }
  size_t filed() const override { return filed_bytes_; }
  void repeated(const StreamFigures& copies) override;
  void close() override {}

 private:
  struct Unit {
    std::string name;
    std::vector<TensorPtr> moving;  // tensors that are streamed
    std::vector<size_t> offsets;    // of each in the buffer
    size_t bytes = 0;
    bool writable = false;
    int order = -1;  // among streamed units; -1: for good on the device
    std::shared_ptr<void> pinned;
    std::vector<const char*> sources;  // of its tensors' values, where they are not in pinned memory but in the file
    SideCopies::Fill fill;
    std::string torn;  // what it says where the file is
  };
  void choose_pinned(size_t limit, const std::string& option);
  void lay_out(Unit& unit);  // its tensors, with their values in pinned memory or in the file
  int buffer_of(int order) const { return order % static_cast<int>(buffers_.size()); }
  void bring(int order);                  // unless its buffer has it
  void leave();                           // the unit in use
  void place(int order, bool in_buffer);  // points its tensors there, or to pinned memory

  std::shared_ptr<SideCopies> copies_;
  std::vector<Unit> units_;
  std::vector<int> streamed_;      // units by order
  std::shared_ptr<void> staging_;  // pinned memory that what lies in the file passes through
  std::vector<std::shared_ptr<Buffer>> buffers_;
  std::vector<int> holds_;  // which order each buffer has, -1: none
  int at_ = -1;             // the order in use, -1: none
  int shown_ = -1;          // the order whose tensors are pointed to its buffer, -1: none
  Pass pass_ = Pass::inference;
  size_t total_ = 0, pinned_bytes_ = 0, filed_bytes_ = 0;
  StreamFigures figures_;
};

}  // namespace qeng
