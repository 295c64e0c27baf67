// Operations: weights that are streamed. Conventions: kernels/ops.h.
#pragma once
#include "kernels/ops/access.h"

namespace qeng {

// What the operations around belong to: a forward pass with nothing behind it, one that a backward pass follows, or
// that.
enum class Pass : uint8_t { inference, forward, backward };

// Weights that are not all in the device's memory, in units that are used one after the other (engine/stream). Called
// where a UseWeights runs, in the order of the operations, or once for each recorded one; Error("memory" | "io").
class WeightStream {
 public:
  static constexpr int kNoUnit = -1;  // the pass is over
  virtual ~WeightStream() = default;
  virtual void use(int unit, Pass pass) = 0;
};

// From here to the next one of the same stream, operations read the weights of `unit`, which are there from now on, and
// not those of other units, whose memory may be used again. What comes next follows from the pass and is brought
// meanwhile. stream: null does nothing; whoever runs the op, or keeps it to run it again, keeps the stream. It is an op
// of a captured program like any other, so that replays stream as well.
struct UseWeights {
  static constexpr const char* name = "use_weights";
  WeightStream* stream = nullptr;
  int unit = 0;
  Pass pass = Pass::inference;
  template <class F>
  void views(F) {}
};

// clang-format off
#define QENG_STREAM_OPERATIONS(OP) OP(UseWeights)
// clang-format on

}  // namespace qeng
