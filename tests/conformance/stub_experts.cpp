#include "tests/conformance/table.h"
namespace qeng::conformance {
template <class T>
void reference(const GroupedMatmul&, Sheet<T>&) {}
QENG_CONFORMANCE(GroupedMatmul, .make = nullptr);
template <class T>
void reference(const GroupedMatmulGrad&, Sheet<T>&) {}
QENG_CONFORMANCE(GroupedMatmulGrad, .make = nullptr);
template <class T>
void reference(const Route&, Sheet<T>&) {}
QENG_CONFORMANCE(Route, .make = nullptr);
}
