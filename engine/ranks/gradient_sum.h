// The sum of the gradients of a step's micro-batches, whichever ranks they were computed by: ((g0 + g1) + g2) + ..., in
// f32. So a step has the same bits on any number of ranks. Each rank sums a part of the elements: it gets that part of
// every rank's gradients, and after the last of them all ranks get all parts. Where the host reads the device's memory,
// gradients are sent while the pass still computes others.
#pragma once
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/program/program.h"
#include "engine/ranks/ranks.h"
#include "engine/tensor/tensor.h"

namespace qeng {

class GradientSum {
 public:
  // parameters: of f32 or bf16 gradients, the same on every rank. bucket: elements that are sent at once; three times as
  // much lies on the host meanwhile, and where a step has several rounds, this rank's part of the sums.
  GradientSum(Ranks& ranks, Device& device, std::vector<TensorPtr> parameters, int64_t bucket = 4 << 20);
  ~GradientSum();
  GradientSum(const GradientSum&) = delete;

  // A round: ranks 0 .. present - 1 compute a micro-batch each between begin() and finish(), with gradients that are
  // zeros before. Their gradients are added, in that order; the step's first round begins the sum. After the last, the
  // gradients of every rank are the sum, and a parameter is reached that one rank's is; before it they are zeroed. Between
  // the two nothing else is exchanged.
  void begin(int present, bool first, bool last);
  void finish();
  // Runs of the program tell which gradients no operation of theirs will change any more.
  void watch(Program& program);

  struct Figures {                       // seconds since they were last asked for
    double exchanging = 0, waiting = 0;  // the second: of the first, what finish() waited for
  };
  Figures figures();

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
  void exchange(const Bucket& bucket);
  void exchange_all();
  void ready(size_t count);
  void share_reached();

  Ranks& ranks_;
  Device& device_;
  std::vector<TensorPtr> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<float> own_, received_, sum_;
  int64_t mine_ = 0;  // elements that this rank sums, in all buckets
  std::vector<uint16_t> halves_;

  int present_ = 0;  // of the round; 0: between rounds
  bool first_ = false, last_ = false;
  std::thread thread_;  // exchanges, where the host reads the device's memory
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t ready_ = 0;  // buckets that may be sent, from the last one on: backward comes to the last layers first
  std::exception_ptr failure_;
  Figures figures_;
};

// Gives all ranks each tensor, of plain elements, as the rank owners[i] has it.
void share_tensors(Ranks& ranks, const std::vector<TensorPtr>& tensors, const std::vector<int>& owners);

}  // namespace qeng
