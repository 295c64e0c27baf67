// AdamW over a list of parameters: moments in f32 or 8 bits, an f32 master of each bf16 parameter, clipping by the global
// norm.
// Everything happens on the device but for reading the norm. Parameters may be in groups, of which a step updates some:
// the others keep weights, moments and count of steps as they are.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/tensor/tensor.h"

namespace qeng {

struct AdamWOptions {
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  float decay = 0;            // of parameters of rank 2 and more; vectors (norm weights, biases) are not decayed
  int moment_bits = 32;       // or 8, for parameters of kLeastCoded elements and more (kernels/math/adamw_codes.h)
  bool allow_unused = false;  // a step may update parameters that no backward pass has reached yet
};

class AdamWState {
 public:
  // rates: what the rate of a step is multiplied by, for each group; none: 1. Each parameter has to require a gradient;
  // f32 or bf16. groups: 0 .. kMaxGroups - 1 for each; none: all are of group 0. own: which parameters a step updates
  // (none: all): the others count for the norm, and have neither moments nor master here but on another rank. sum: gives
  // all ranks the sums of their numbers. With it the gradients of the others are not here either, but on that rank.
  static constexpr int kMaxGroups = 64;
  using Sum = std::function<std::vector<double>(const std::vector<double>&)>;
  AdamWState(Device& device, std::vector<TensorPtr> parameters, AdamWOptions options,
             const std::vector<int>& groups = {}, const std::vector<double>& rates = {},
             const std::vector<bool>& own = {}, Sum sum = nullptr);

  struct Result {
    double grad_norm;
    bool skipped;  // the norm was not finite: no parameter changed
  };
  // One update of the groups whose bit is set, from the gradients, which are zeroed; those of the other groups have to
  // be zero. clip <= 0: none. Error("value") names a parameter of them whose gradient no backward pass has ever written
  // to.
  static constexpr uint64_t kAllGroups = UINT64_MAX;
  Result step(double lr, double clip, uint64_t groups = kAllGroups);

  const std::vector<int64_t>& steps() const { return steps_; }  // of each group
  void set_steps(const std::vector<int64_t>& steps);            // Error("value") for another number of groups
  // Smaller ones (norms, biases) keep f32 moments: they are few, and their elements differ most.
  static constexpr int64_t kLeastCoded = 4096;
  // What a checkpoint holds of parameter i, nothing where it is another rank's: moments "m" and "v", "scales" where these
  // are in 8 bits, and "master" for a bf16 parameter.
  struct Part {
    std::string name;
    TensorPtr tensor;
  };
  std::vector<Part> parts(size_t i) const;
  size_t size() const { return entries_.size(); }
  const TensorPtr& parameter(size_t i) const { return entries_[i].parameter; }
  size_t group(size_t i) const { return entries_[i].group; }
  void refresh_master(size_t i);  // after a parameter was overwritten from outside

 private:
  struct Entry {
    TensorPtr parameter, grad, master, m, v, scales;  // but for the first two null where it is another rank's
    size_t group;
  };
  void check_reached(uint64_t groups) const;
  void sum_squares();  // of all parameters, from the ranks that have them
  void run_ops(float clip, uint64_t groups);

  Device& device_;
  AdamWOptions options_;
  std::vector<Entry> entries_;
  Sum sum_;
  TensorPtr partials_, clip_;
  std::vector<TensorPtr> hyper_;  // of each group: rate and count of steps
  std::vector<double> rates_;     // of each group
  std::vector<int64_t> steps_;
  std::map<uint64_t, std::unique_ptr<Program>>
      programs_;             // run_ops for program_clip_ by groups, captured so that a GPU
  double program_clip_ = 0;  // replays it as one
};

}  // namespace qeng
