// The sums of gradients of a step's micro-batches, whichever ranks they were computed by: ((g0 + g1) + g2) + ..., in f32,
// bucket by bucket. So a step has the same bits on any number of ranks. Each rank sums a part of a bucket's elements: it
// gets that part of every rank's gradients.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/ranks/ranks.h"
#include "engine/tensor/tensor.h"

namespace qeng {

class BucketSums {
 public:
  struct Span {     // elements of one gradient, f32 or bf16
    View gradient;  // of the micro-batch that this rank computed
    View sum;       // where the sum goes, of the same elements; absent where another rank has it
    int64_t first, count;
  };
  struct Bucket {
    std::vector<Span> spans;
    std::vector<int64_t> begins;  // where the part begins that each rank sums, of all elements; and the end of the last
    bool to_all = false;          // all ranks get the sums, otherwise each those of its part, which are whole spans
  };
  struct Round {  // ranks 0 .. present - 1 have a micro-batch each; it is the step's first round, its last
    int present = 0;
    bool first = false, last = false;
  };

  BucketSums(Ranks& ranks, Device& device);
  ~BucketSums();
  BucketSums(const BucketSums&) = delete;
  size_t add(Bucket bucket);  // its number, from 0
  size_t size() const { return buckets_.size(); }

  // Whether buckets may be exchanged by another thread, while this one computes.
  bool beside() const;
  // Before the buckets of a round. Memory for it is in the account "exchange", unless it is the host's and not the device's.
  void begin(const Round& round);
  // A bucket's part of the round; the sums are there after the last. May run beside the computation.
  void exchange(size_t number);

 private:
  // Numbers on their way, in the memory that the transport carries.
  struct Memory {
    std::vector<float> host;
    std::shared_ptr<Buffer> device;
    bool made = false;
    float* data() { return device ? static_cast<float*>(device->data) : host.data(); }
  };
  void make(Memory& memory, int64_t elements);
  void read(const Bucket& bucket);
  void write(const Span& span, float* values);
  void add_up(const float* addends, int64_t stride, int64_t count, float* sum);
  bool in_place(const Span& span) const;  // sums are added where they are wanted

  Ranks& ranks_;
  Device& device_;
  Transport& transport_;
  const bool on_device_;
  std::vector<Bucket> buckets_;
  std::vector<int64_t> places_;  // of what a bucket keeps from round to round, in kept_
  Memory own_, received_, sum_, kept_;
  std::vector<uint16_t> halves_;
  int64_t keeps_ = 0, most_kept_ = 0, most_own_ = 0, most_received_ = 0;
  size_t held_ = 0;
  Round round_;
};

}  // namespace qeng
