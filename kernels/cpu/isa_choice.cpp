// Chooses among the instruction sets that kernels/cpu/isa is built for.
#include <cstring>
#include <iterator>

#include "kernels/cpu/isa/table.h"
#if defined(__aarch64__)
#include "kernels/cpu/isa_aarch64.h"
#else
#include "kernels/cpu/isa_x86_64.h"
#endif

namespace qeng::isa {

namespace {

constexpr int kTables = std::size(kNames);

struct Tables {
  Table table[kTables];  // slowest first
  int count = count_that_run();
  Tables() {
    for (int i = 0; i < count; ++i) {
      if (i >= kFirstVariant) table[i] = table[i - 1];
      fill(i, table[i]);
      table[i].name = kNames[i];
    }
  }
};

const Tables& tables() {
  static const Tables all;
  return all;
}

}  // namespace

const Table* find(const char* name) {
  for (int i = 0; i < tables().count; ++i)
    if (std::strcmp(tables().table[i].name, name) == 0) return &tables().table[i];
  return nullptr;
}

const Table& best() { return tables().table[tables().count - 1]; }

}  // namespace qeng::isa
