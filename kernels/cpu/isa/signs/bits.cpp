// Numbers of set bits, a 64-bit word at a time: an instruction each where the instruction set has one.
#include "kernels/cpu/isa/table.h"

namespace qeng::isa::QENG_ISA {
namespace {

uint64_t word_at(const char* p, int64_t bytes) {
  uint64_t word = 0;
  __builtin_memcpy(&word, p, static_cast<size_t>(bytes));
  return word;
}

int64_t count_bits(const void* a, const void* b, int64_t bytes) {
  const auto* x = static_cast<const char*>(a);
  const auto* y = static_cast<const char*>(b);
  int64_t count = 0;
  for (int64_t i = 0; i + 8 <= bytes; i += 8)
    count += __builtin_popcountll(word_at(x + i, 8) ^ (y ? word_at(y + i, 8) : 0));
  const int64_t done = bytes / 8 * 8;
  return count + __builtin_popcountll(word_at(x + done, bytes - done) ^ (y ? word_at(y + done, bytes - done) : 0));
}

}  // namespace

void fill_bits(Table& table) { table.count_bits = count_bits; }

}  // namespace qeng::isa::QENG_ISA
