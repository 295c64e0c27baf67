// Reverse-mode differentiation. A differentiable function runs its ops at once and records how to run the gradient's
// ops; backward() plays the records in reverse. What a record keeps alive is dropped as soon as it has been played.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/autograd/pending.h"

namespace qeng {

class Tape {
 public:
  explicit Tape(Device& device);
  ~Tape();
  Tape(const Tape&) = delete;
  Device& device() { return device_; }

  bool recording() const { return recording_; }
  // Dropout is active: recording, or running the part of a checkpoint that backward will run again.
  bool training() const { return training_; }
  // True where a function of these inputs has to record. Null pointers count as absent.
  bool wants(std::initializer_list<TensorPtr> inputs) const;
  // Whether x was computed, in this part of the tape, from what requires a gradient.
  bool flows(const Tensor& x) const { return x.tracked == part_; }
  // After the forward ops: marks outputs as tracked. play() finds the gradient of an output in output->grad and adds to
  // those of its inputs by gradient_of(input) or pass(input, gradient).
  void record(const std::vector<TensorPtr>& outputs, std::function<void()> play);

  // play() is called where the backward pass gets here, whatever gradients there are. Nothing where nothing is
  // recorded.
  void mark(std::function<void()> play);
  // True while backward() plays, also where it runs a checkpoint's function again.
  bool playing() const { return playing_; }

  // Where an op of the backward pass writes the gradient of x: `acc` tells it to add. Only if x->needs_grad(). A
  // parameter is marked as reached. Error("state") for an x of an earlier part of the tape.
  struct Target {
    View view;
    bool acc;
  };
  Target gradient_of(const TensorPtr& x);
  // Adds gradient g, which the caller gives away, to x's: shares it where x has none yet. Nothing if x needs none.
  void pass(const TensorPtr& x, const TensorPtr& g);

  // Values of x were changed. backward() is Error("state") where the gradient of an operation before needs the old ones.
  // What writes to tensors that a program may have used calls this afterwards.
  void wrote(const TensorPtr& x);

  // Gradients of the sum of scalar losses [1] f32 are added to every parameter it depends on; empties the tape, whose
  // next part begins: no gradient reaches what was computed before.
  void backward(const std::vector<TensorPtr>& losses);
  void clear();

  // Runs fn(inputs) with nothing kept but inputs and outputs; backward runs it again, recording. The same ops run in
  // the same order with the same dropout subsequences, so the bits are those of a run without it.
  using Function = std::function<std::vector<TensorPtr>(const std::vector<TensorPtr>&)>;
  std::vector<TensorPtr> checkpoint(const std::string& label, Function fn, const std::vector<TensorPtr>& inputs);

  // Parameters that count as ones that require no gradient.
  using Parameters = std::shared_ptr<const std::vector<TensorPtr>>;
  struct Frozen {  // RAII: these and no others do, also when what is recorded while it lives plays
    Frozen(Tape& t, Parameters parameters) : tape(t), before(t.frozen_) { tape.set_frozen(std::move(parameters)); }
    ~Frozen() { tape.set_frozen(std::move(before)); }
    Frozen(const Frozen&) = delete;
    Tape& tape;
    Parameters before;
  };
  Parameters frozen_and(const Parameters& others) const;  // those that are frozen, and others

  // Dropout: {seed, step} on the device, and a number for each site of the step in order of execution.
  const TensorPtr& rng() const { return rng_; }
  void set_rng(uint64_t seed, uint64_t step);
  uint64_t seed() const { return seed_; }
  uint32_t next_subsequence() { return subsequence_++; }

  PendingTensors& pending() { return pending_; }

  struct Recording {  // RAII: whether functions record
    Recording(Tape& t, bool on) : tape(t), before(t.recording_) { tape.recording_ = on; }
    ~Recording() { tape.recording_ = before; }
    Recording(const Recording&) = delete;
    Tape& tape;
    bool before;
  };
  struct NoGrad {  // RAII: nothing records while it lives
    explicit NoGrad(Tape& t, bool training = false) : tape(t), recording(t.recording_), trained(t.training_) {
      tape.recording_ = false;
      tape.training_ = training;
    }
    ~NoGrad() {
      tape.recording_ = recording;
      tape.training_ = trained;
    }
    Tape& tape;
    bool recording, trained;
  };

 private:
  struct Record {
    std::string label;
    std::vector<TensorPtr> outputs;
    std::function<void()> play;
    Parameters frozen;
  };
  struct Written {
    std::weak_ptr<Buffer> buffer;
    View view;
    size_t records;  // so many there were
  };
  class Checked;  // RAII: operations do not read what was written to after the record at_
  void play_back(std::vector<Record>& records, bool outer);
  void set_frozen(Parameters parameters);
  void check_part(const Tensor& x) const;

  Device& device_;
  std::vector<Record> records_;
  std::vector<Written> written_;
  uint64_t part_ = 1;  // of the tape: Tensor::tracked
  Parameters frozen_;
  size_t at_ = 0;  // the record that plays
  PendingTensors pending_;
  bool recording_ = true, training_ = true, playing_ = false;
  TensorPtr rng_;
  uint64_t seed_ = 0;
  uint32_t subsequence_ = 0;
};

}  // namespace qeng
