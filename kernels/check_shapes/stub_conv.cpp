#include "kernels/check_shapes.h"
namespace qeng {
void check_shapes(const LayerNorm&) {}
void check_shapes(const LayerNormGrad&) {}
void check_shapes(const CausalConv&) {}
void check_shapes(const CausalConvGrad&) {}
}  // namespace qeng
