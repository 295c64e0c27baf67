// What shapes and dtypes each operation asks for, the same on every backend, which calls this before anything else:
// Error("shape" | "dtype" | "value") with the operation's name and the view's, and no output touched.
#pragma once
#include "kernels/ops.h"

namespace qeng {

void check_shapes(const Matmul& op);
void check_shapes(const RowLinear& op);
void check_shapes(const Hadamard& op);
void check_shapes(const KvStore& op);
void check_shapes(const CopyPages& op);
void check_shapes(const PagedAttention& op);
void check_shapes(const BiasGrad& op);
void check_shapes(const Embedding& op);
void check_shapes(const EmbeddingGrad& op);
void check_shapes(const RmsNorm& op);
void check_shapes(const AddRmsNorm& op);
void check_shapes(const RmsNormGrad& op);
void check_shapes(const SwiGlu& op);
void check_shapes(const SwiGluGrad& op);
void check_shapes(const Add& op);
void check_shapes(const Scale& op);
void check_shapes(const Cast& op);
void check_shapes(const Copy& op);
void check_shapes(const Fill& op);
void check_shapes(const Dropout& op);
void check_shapes(const EmbeddingNoise& op);
void check_shapes(const DoraScale& op);
void check_shapes(const Rope& op);
void check_shapes(const Attention& op);
void check_shapes(const AttentionGrad& op);
void check_shapes(const LmHeadLoss& op);
void check_shapes(const DecodePackets& op);
void check_shapes(const SumSquares& op);
void check_shapes(const ClipScale& op);
void check_shapes(const AdamW& op);
void check_shapes(const ScaleColumns& op);
void check_shapes(const ScaleColumnsGrad& op);
void check_shapes(const PulseGrad& op);
void check_shapes(const Inertia& op);
void check_shapes(const CountLevels& op);
void check_shapes(const PackSigns& op);
void check_shapes(const ClipToGrid& op);
inline void check_shapes(const UseWeights&) {}

// The sizes of op(a) [m, k] and op(b) [k, n].
struct MatmulSizes {
  int64_t m, n, k;
};
inline MatmulSizes sizes_of(const Matmul& op) {
  return {op.trans_a ? op.a.columns() : op.a.rows(), op.trans_b ? op.b.rows() : op.b.columns(),
          op.trans_a ? op.a.rows() : op.a.columns()};
}

}  // namespace qeng
