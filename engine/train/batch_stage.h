// Batches on their way to a device whose memory the host cannot use. The frames of the next batch travel as they are
// stored, and are decoded there, while the device computes on this one.
#pragma once
#include "engine/packets/batches.h"
#include "engine/tensor/tensor.h"

namespace qeng {

class BatchStage {
 public:
  // For batches of the shape of this one, made with BatchOptions::stored.
  BatchStage(Device& device, const Batch& batch);
  bool fits(const Batch& batch) const;

  // Starts. Of two that were sent and not yet loaded a third takes no room: it stays with the host until load().
  void send(std::shared_ptr<const Batch> batch);

  // Leaves the batch in these tensors ([slots] i32 each, cu_seqlens [max_documents + 1] i32): from where send() brought
  // it, else now.
  struct Tensors {
    TensorPtr tokens, targets, positions, cu_seqlens;
  };
  void load(const Batch& batch, const Tensors& tensors);

 private:
  struct Place {
    Tensors tensors;
    TensorPtr frames, pieces;
    std::shared_ptr<const Batch> holds;  // sent and not yet loaded
  };
  void fill(Place& place, const Batch& batch);

  Device& device_;
  Place places_[2];
  size_t next_ = 0;
};

}  // namespace qeng
