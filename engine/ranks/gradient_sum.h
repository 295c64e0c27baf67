// The sum of the gradients of a step's micro-batches, whichever ranks they were computed by: ((g0 + g1) + g2) + ..., in
// f32. So a step has the same bits on any number of ranks. Each rank sums a part of the elements: it gets that part of
// every rank's gradients, and after the last of them all ranks get all parts.
#pragma once
#include <vector>

#include "engine/ranks/ranks.h"
#include "engine/tensor/tensor.h"

namespace qeng {

class GradientSum {
 public:
  // parameters: of f32 or bf16 gradients, the same on every rank.
  GradientSum(Ranks& ranks, Device& device, std::vector<TensorPtr> parameters);

  // Adds what lies in the gradients of ranks 0 .. present - 1, a micro-batch each, in that order. The step's first round
  // begins the sum. After the last, the gradients of every rank are the sum, and a parameter is reached that one rank's
  // is; before it they are zeroed, for the next micro-batch.
  void add(int present, bool first, bool last);

 private:
  struct Span {  // elements of one gradient
    View view;
    int64_t first, count;
  };
  struct Bucket {
    std::vector<Span> spans;
    int64_t elements = 0, mine = 0;  // all; where those that this rank sums begin, in sum_
  };
  void read(const Bucket& bucket);
  void write(const Bucket& bucket);
  void share_reached();

  Ranks& ranks_;
  Device& device_;
  std::vector<TensorPtr> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<float> own_, received_, sum_;
  std::vector<uint16_t> halves_;
};

// Gives all ranks each tensor, of plain elements, as the rank owners[i] has it.
void share_tensors(Ranks& ranks, const std::vector<TensorPtr>& tensors, const std::vector<int>& owners);

}  // namespace qeng
