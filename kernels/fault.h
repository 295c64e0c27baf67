// What a kernel found wrong with the values it was given. The first report is kept, and the next synchronisation throws
// it as Error("value"), in the words of fault_text.h. The kernel goes on with values that keep it within its memory.
#pragma once
#include <cstdint>

namespace qeng {

enum class FaultKind : int32_t {
  none,
  token,
  target,
  bounds,
  piece,
  slot,
  pair,
  page,
  queries,
  length,
  index,
  experts,
  trained
};

struct Fault {
  FaultKind kind;
  int32_t unused;
  int64_t place, value, limit;
};

}  // namespace qeng
