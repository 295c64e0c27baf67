#include "tests/conformance/table.h"
namespace qeng::conformance {
template <class T>
void reference(const LayerNorm&, Sheet<T>&) {}
QENG_CONFORMANCE(LayerNorm, .make = nullptr);
template <class T>
void reference(const LayerNormGrad&, Sheet<T>&) {}
QENG_CONFORMANCE(LayerNormGrad, .make = nullptr);
template <class T>
void reference(const CausalConv&, Sheet<T>&) {}
QENG_CONFORMANCE(CausalConv, .make = nullptr);
template <class T>
void reference(const CausalConvGrad&, Sheet<T>&) {}
QENG_CONFORMANCE(CausalConvGrad, .make = nullptr);
}
