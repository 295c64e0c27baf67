// What computations share: a device with its accounts, budget and limits, the tape that records them, the stage of
// batches on their way. A process may have several; bindings/runtime.h says which one runs what. All of them compute
// with one pool of threads.
#pragma once
#include <memory>
#include <vector>

#include "engine/autograd/tape.h"
#include "engine/train/batch_stage.h"

namespace qeng {

// Held by std::shared_ptr. Tensors do not hold it, but their device, which is useful without it to give memory back, no
// more.
class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  explicit Runtime(std::unique_ptr<Backend> backend);
  ~Runtime();
  Runtime(const Runtime&) = delete;

  Device& device() { return *device_; }
  Tape& tape() { return tape_; }
  BatchStage& batch_stage(const Batch& batch);  // for batches of this shape

  static const std::vector<Runtime*>& all();  // that there are, in order of their making

 private:
  std::shared_ptr<Device> device_;
  Tape tape_;
  std::unique_ptr<BatchStage> stage_;
};

}  // namespace qeng
