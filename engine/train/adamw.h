// AdamW over a list of parameters: f32 moments, an f32 master of each bf16 parameter, clipping by the global norm.
// Everything happens on the device but for reading the norm.
#pragma once
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/tensor/tensor.h"

namespace qeng {

struct AdamWOptions {
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;
  float decay = 0;  // of parameters of rank 2 and more; vectors (norm weights, biases) are not decayed
};

class AdamWState {
 public:
  // Each parameter has to require a gradient; f32 or bf16.
  AdamWState(Device& device, std::vector<TensorPtr> parameters, AdamWOptions options);

  struct Result {
    double grad_norm;
    bool skipped;  // the norm was not finite: no parameter changed
  };
  // One update from the gradients, which are zeroed. clip <= 0: none.
  Result step(double lr, double clip);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  // What a checkpoint holds of parameter i: moments "m" and "v", and "master" for a bf16 parameter.
  struct Part {
    std::string name;
    TensorPtr tensor;
  };
  std::vector<Part> parts(size_t i) const;
  size_t size() const { return slots_.size(); }
  void refresh_master(size_t i);  // after a parameter was overwritten from outside

 private:
  struct Slot {
    TensorPtr parameter, grad, master, m, v;
  };
  void run_ops(float clip);

  Device& device_;
  AdamWOptions options_;
  std::vector<Slot> slots_;
  TensorPtr partials_, clip_, hyper_;
  int64_t steps_ = 0;
  std::unique_ptr<Program> program_;  // run_ops for program_clip_, captured so that a GPU replays it as one
  double program_clip_ = 0;
};

}  // namespace qeng
