// The sum of the gradients of a step's micro-batches on every rank (bucket_sums.h). Where the host reads the device's
// memory, gradients are sent while the pass still computes others.
#pragma once
#include <vector>

#include "engine/program/program.h"
#include "engine/ranks/bucket_sums.h"
#include "engine/ranks/courier.h"

namespace qeng {

class GradientSum {
 public:
  // parameters: of f32 or bf16 gradients, the same on every rank. bucket: elements that are sent at once; three times as
  // much lies on the host meanwhile, and where a step has several rounds, this rank's part of the sums.
  static constexpr int64_t kBucket = 4 << 20;
  GradientSum(Ranks& ranks, Device& device, std::vector<TensorPtr> parameters, int64_t bucket = kBucket);
  GradientSum(const GradientSum&) = delete;

  // A round: ranks 0 .. present - 1 compute a micro-batch each between begin() and finish(), with gradients that are
  // zeros before. Their gradients are added, in that order; the step's first round begins the sum. After the last, the
  // gradients of every rank are the sum, and a parameter is reached that one rank's is; before it they are zeroed. Between
  // the two nothing else is exchanged.
  void begin(int present, bool first, bool last);
  void finish();
  // Runs of the program tell which gradients no operation of theirs will change any more.
  void watch(Program& program);
  Courier& courier() { return courier_; }

 private:
  void ready(size_t count);

  Ranks& ranks_;
  Device& device_;
  std::vector<TensorPtr> parameters_;
  std::vector<std::vector<View>> buckets_;  // the gradients that lie in each
  BucketSums sums_;
  BucketSums::Round round_;
  bool open_ = false;
  size_t given_ = 0, last_job_ = 0;  // buckets, from the last one on: backward comes to the last layers first
  Courier courier_;                  // the last member: its thread uses the others
};

// Error("dtype") where sums cannot be of the gradient of this parameter.
void check_gradient(const Tensor& parameter);
// A parameter is reached where it is on one rank.
void share_reached(Ranks& ranks, const std::vector<TensorPtr>& parameters);

// Gives all ranks each tensor, of plain elements, as the rank owners[i] has it.
void share_tensors(Ranks& ranks, const std::vector<TensorPtr>& tensors, const std::vector<int>& owners);

}  // namespace qeng
