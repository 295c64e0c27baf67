// The order in which a model's units of weights are used, from where a pass stands: what streaming brings next and
// gives up. Unit 0 is the embedding, 1 .. units - 2 are the layers, units - 1 is the head. Inference goes up and begins
// again; training goes up and down. At the ends that is an approximation: the head is not used in the way down.
#pragma once
#include "kernels/ops.h"

namespace qeng {

// The unit that is used `steps` >= 1 after `at`.
inline int unit_after(int at, int steps, int units, Pass pass) {
  if (pass == Pass::inference) return (at + steps) % units;
  const int span = 2 * (units - 1);  // up and down, from the bottom
  if (span == 0) return 0;
  const int position = ((pass == Pass::forward ? at : span - at) + steps) % span;
  return position < units ? position : span - position;
}

// Steps until `unit` is used again, the one at `at` having begun; of `at` itself, a whole way.
inline int steps_until(int unit, int at, int units, Pass pass) {
  const int most = pass == Pass::inference ? units : 2 * (units - 1);
  for (int steps = 1; steps < most; ++steps)
    if (unit_after(at, steps, units, pass) == unit) return steps;
  return most;
}

}  // namespace qeng
