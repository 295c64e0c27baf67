// A model's parameters of which each rank owns some, in the units of a stream (engine/stream): embedding, layers, head. A
// gradient is kept by the rank that owns the parameter (ZeRO-2), and with `weights` the weight as well (ZeRO-3, Rajbhandari
// et al. 2020, arXiv 1910.02054). Those of all ranks are there only while their unit is used, at the two ends
// of a buffer by turns:
//   weights    come from their owners before the unit's forward and its backward pass; the next unit's meanwhile
//   gradients  of this rank's micro-batch begin as zeros, and are sent to their owners when the unit's backward pass is
//              over, while the next unit's is computed
// A parameter of two units (a tied head) is whole on each rank, and so is its gradient until it is sent; its sum is the
// owner's. Sums are those of GradientSum, to the bit.
//
// All ranks use the units in the same order: one that has no micro-batch follows those that have (follow()).
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "engine/ranks/bucket_sums.h"
#include "engine/ranks/courier.h"
#include "engine/stream/streamed_weights.h"

namespace qeng {

class Shards : public StreamedWeights {
 public:
  // owners: of each unit's tensors, a rank. Takes the tensors' memory: what stays of a weight is its owner's copy.
  Shards(Ranks& ranks, Device& device, std::vector<StreamUnit> units, const std::vector<std::vector<int>>& owners,
         bool weights);

  // A parameter of the units is trained from now on, with a gradient of this dtype: in place of set_requires_grad.
  void learn(const TensorPtr& parameter, DType gradient);

  // A round of a step, as GradientSum's; after the last one owners have the sums. In it a rank with a micro-batch runs one
  // forward and one backward pass, the others none.
  void begin(int present, bool first, bool last);
  void finish();
  void follow();  // a forward pass without gradients, which other ranks compute
  void rest();    // after such a pass: weights are where their owners keep them
  // Gives the ranks what their owners have changed, where it is whole on each of them.
  void share();
  // All weights come together on rank 0, to be read there, until release(). All ranks call both.
  void gather();
  void release();

  Courier& courier() { return courier_; }

  void use(int unit, Pass pass) override;
  void show(int unit) override;
  StreamFigures figures() override { return figures_; }
  size_t resident() override;
  size_t total() const override { return total_; }
  size_t process() const override { return 0; }
  size_t filed() const override { return 0; }
  bool recordable() const override { return false; }  // what is exchanged is no part of a recording
  void close() override {}

 private:
  struct Part {
    TensorPtr tensor;
    int owner;
    size_t weight_at = 0, gradient_at = 0;  // in the buffers
    char* kept_weight = nullptr;            // where they are when the unit is not used: this rank's, or out of reach
    char* kept_gradient = nullptr;
  };
  struct Unit {
    std::string name;
    std::vector<Part> parts;            // in the order of owners
    std::vector<size_t> weight_bytes;   // of each rank's
    std::shared_ptr<Buffer> own;        // this rank's weights
    size_t weights = 0, gradients = 0;  // bytes of all
    size_t first_bucket = 0, last_bucket = 0;
  };
  void take_weights();
  void lay_out();
  void add_buckets(Unit& unit);
  void place(int unit);
  void bring(int unit);
  void clear_gradients(int unit);
  size_t send_gradients(const std::string& what, size_t first, size_t end);  // of these buckets; the job
  size_t largest_pair(size_t Unit::*bytes) const;
  char* place_in(const std::shared_ptr<Buffer>& buffer, size_t unit, size_t Unit::*bytes) const;
  View gradient_memory(const Part& part, size_t unit) const;
  size_t last() const { return units_.size() - 1; }
  bool owns(const Part& part) const { return part.owner == ranks_.rank(); }

  Ranks& ranks_;
  const bool gathers_;  // weights too
  std::vector<Unit> units_;
  std::vector<Part> whole_;  // of two units
  size_t total_ = 0, away_used_ = 0;
  std::shared_ptr<void> away_;                      // address space of what other ranks have
  std::shared_ptr<Buffer> weights_, gradients_;     // of two units, the u-th of them at end u % 2
  std::array<int, 2> holds_ = {-1, -1};             // units whose weights are there
  std::array<size_t, 2> brought_ = {}, sent_ = {};  // jobs
  bool laid_out_ = false, open_ = false, passed_ = false;
  int at_ = kNoUnit, shown_ = kNoUnit;
  Pass pass_ = Pass::inference;
  BucketSums::Round round_;
  size_t whole_bucket_ = 0;
  std::vector<std::shared_ptr<Buffer>> gathered_;  // what weights lay in before gather(), in the order of parts
  StreamFigures figures_;
  std::vector<char> staging_[2];  // of a device that the host does not reach
  BucketSums sums_;
  Transport& transport_;
  Courier courier_;  // the last member: its thread uses the others
};

}  // namespace qeng
