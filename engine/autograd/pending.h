// The tensors that nothing has read yet (expression.h), by the memory that they would read.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "engine/tensor/tensor.h"

namespace qeng {

class PendingTensors {
 public:
  // The tensor is pending and reads this one.
  void add(const TensorPtr& tensor, const Tensor& read);
  bool empty() const { return readers_.empty(); }
  // Those that read memory of a buffer that the view lies in, and every one, in the order in which they were added; what
  // is not pending any more is left out.
  std::vector<TensorPtr> near(const View& written);
  std::vector<TensorPtr> all();

 private:
  struct Readers {
    size_t bytes = 0;                                                 // of the buffer
    std::vector<std::pair<uint64_t, std::weak_ptr<Tensor>>> tensors;  // and when each was added
  };
  using Place = std::map<const char*, Readers>::iterator;
  using Found = std::vector<std::pair<uint64_t, TensorPtr>>;
  Place take(Place place, Found& found);  // the next place
  static std::vector<TensorPtr> in_order(Found found);

  std::map<const char*, Readers> readers_;  // by where a buffer begins
  uint64_t number_ = 0;
  size_t added_ = 0, look_at_ = 256;  // how many there may be before those that are gone are left out
};

}  // namespace qeng
