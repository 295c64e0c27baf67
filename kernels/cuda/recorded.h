// The operations of a recording, several as one kernel where each would be little more than a launch: a step of decoding.
#pragma once
#include <functional>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda.h"
#include "kernels/op.h"

namespace qeng {

// What a recording is described by, until it is queued. calls: what else is to be queued (side copies), each with the
// number of operations before it.
struct RecordedOps {
  std::vector<Op> ops;
  std::vector<std::pair<size_t, std::function<void()>>> calls;
};

// Queues the operations in their order, with the bits and the results that each on its own leaves. reserve: queues
// nothing, and takes the scratch memory that the other call then needs.
void queue_recorded(const RecordedOps& recorded, bool reserve, CudaContext& context);

}  // namespace qeng
