// The instruction sets of aarch64 (isa_choice.cpp).
#pragma once
#include <asm/hwcap.h>
#include <sys/auxv.h>

#include "kernels/cpu/isa/table.h"

namespace qeng::isa {

namespace baseline {
void fill(Table& table);
}
namespace neon {
void fill(Table& table);
}

namespace dotprod {
void fill_block_dots(Table& table);
void fill_block_tiles(Table& table);
void fill_interleaved_dots(Table& table);
void fill_sign_dots(Table& table);
}  // namespace dotprod

namespace armv86 {
void fill_bf16_tiles(Table& table);
void fill_block_tiles(Table& table);
void fill_interleaved_dots(Table& table);
}  // namespace armv86

// How many of the tables this processor runs; every one has NEON.
inline int count_that_run() {
  constexpr unsigned long kMatrices = HWCAP2_I8MM | HWCAP2_BF16;
  if ((::getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return 2;
  return (::getauxval(AT_HWCAP2) & kMatrices) == kMatrices ? 4 : 3;
}

inline void fill(int i, Table& table) {
  switch (i) {
    case 0: return baseline::fill(table);
    case 1: return neon::fill(table);
    case 2:
      dotprod::fill_block_dots(table);
      dotprod::fill_block_tiles(table);
      dotprod::fill_interleaved_dots(table);
      return dotprod::fill_sign_dots(table);
    default:
      armv86::fill_bf16_tiles(table);
      armv86::fill_block_tiles(table);
      return armv86::fill_interleaved_dots(table);
  }
}

}  // namespace qeng::isa
