// The tensors that nothing has read yet (expression.h), by the memory that they would read.
#pragma once
#include <map>
#include <vector>

#include "engine/tensor/tensor.h"

namespace qeng {

class PendingTensors {
 public:
  // The tensor is pending and reads this one.
  void add(const TensorPtr& tensor, const Tensor& read);
  bool empty() const { return readers_.empty(); }
  // Those that read memory of a buffer that the view lies in, and every one; what is not pending any more is left out.
  std::vector<TensorPtr> near(const View& written);
  std::vector<TensorPtr> all();

 private:
  struct Readers {
    size_t bytes = 0;  // of the buffer
    std::vector<std::weak_ptr<Tensor>> tensors;
  };
  using Place = std::map<const char*, Readers>::iterator;
  Place take(Place place, std::vector<TensorPtr>& found);  // the next place

  std::map<const char*, Readers> readers_;  // by where a buffer begins
  size_t added_ = 0, look_at_ = 256;        // how many there may be before those that are gone are left out
};

}  // namespace qeng
