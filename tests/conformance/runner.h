// Runs ops on backends and compares what they leave in memory with the float64 reference.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/conformance/table.h"

namespace qeng::conformance {

struct Named {
  std::string name;
  std::unique_ptr<Backend> backend;
};
// Every backend that this machine can run: the CPU's instruction sets, with one and with two threads; then a GPU, or
// the emulator where $QENG_CUDA_LIBRARY names its library. $QENG_BACKENDS: "cpu", "cuda" or "opencl" for these alone;
// what `auto` does not take runs only so.
std::vector<Named>& backends();

// Whether the backend has no such operation: it refuses it as "unsupported". What is lacking is listed in lacks.cpp,
// and a test compares.
bool lacks(const Named& target, const Op& op);

// The op, each view of host buffer i moved to `places[i]`, which is where the tensor of that buffer lies elsewhere.
Op rebase(Op op, std::deque<Buffer>& buffers, const std::vector<void*>& places);

// Runs the op on a copy of the draw's memory on the backend. Afterwards `memory` holds that copy, and `rebased` shows
// it. Throws what the backend throws.
struct Outcome {
  std::deque<Buffer> memory;
  Op rebased;
};
// run: what to do with the op moved to the backend's memory, if not just to run it.
Outcome run_on(Backend& backend, const Op& op, std::deque<Buffer>& buffers,
               const std::function<void(const Op&)>& run = nullptr);

// An empty text if the outcome is right, else what is wrong: a value, a guard, an input that changed.
std::string disagreement(const Op& op, const Sheet<Real>& expected, const Outcome& outcome, std::deque<Buffer>& before);

// CHECKs that every backend's outcome of the op is right.
void check_everywhere(const Op& op, Draw& draw);

// The op's views with their dtypes, shapes and scalars that matter, for failure messages.
std::string describe(const Op& op);

uint64_t base_seed();  // QENG_SEED or the fixed one

}  // namespace qeng::conformance
