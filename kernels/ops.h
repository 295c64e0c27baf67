// The operations: each a plain value of non-owning views and scalars. The headers of kernels/ops are the table of
// contents of what a backend can do. `Backend::run(op)` executes one (an Op, op.h, which is any of them); tape, program,
// profiler and conformance test are lists of them.
//
// Conventions. Views are dense and row-major. "float" views are f32 or bf16; unless an op says otherwise, all float
// views of one op share a dtype, and sums accumulate in f32. `acc` on a gradient means dst += result instead of dst =
// result. Views named in brackets may be absent (a null View). Backends check shapes and throw Error("shape" |
// "dtype"). No output may overlap an input except where the op says "in place allowed".
//
// Every op has   static constexpr const char* name;
//                void views(F f)  calling f("label", View&, Access) on each view that is present or may be;
// and may have   int64_t flops() const  what it must compute, from the shapes (without: nothing worth counting).
// kernels/cost.cpp has those that do not move each view just once, or whose flops depend on values.
#pragma once
#include "kernels/ops/attention.h"
#include "kernels/ops/delta.h"
#include "kernels/ops/layers.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/one_bit.h"
#include "kernels/ops/stream.h"
#include "kernels/ops/tensor.h"
#include "kernels/ops/training.h"

namespace qeng {

// Every operation, once, from the list at the end of each header. What has to know of each follows from this one: the
// variant, the declarations of check_shapes and of run on each backend, the conformance test's table, and the names of
// CTest's runs of it.
// clang-format off
#define QENG_OPERATIONS(OP) \
  QENG_LINEAR_OPERATIONS(OP) QENG_TENSOR_OPERATIONS(OP) QENG_LAYERS_OPERATIONS(OP) QENG_ATTENTION_OPERATIONS(OP) \
  QENG_DELTA_OPERATIONS(OP) QENG_TRAINING_OPERATIONS(OP) QENG_ONE_BIT_OPERATIONS(OP) QENG_STREAM_OPERATIONS(OP)
// clang-format on

}  // namespace qeng
