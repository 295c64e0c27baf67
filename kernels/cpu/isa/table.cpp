#include "kernels/cpu/isa/table.h"

#define QENG_TEXT_(x) #x
#define QENG_TEXT(x) QENG_TEXT_(x)

namespace qeng::isa::QENG_ISA {

void fill_elementwise(Table& table);

void fill(Table& table) {
  table.name = QENG_TEXT(QENG_ISA);
  fill_elementwise(table);
}

}  // namespace qeng::isa::QENG_ISA
