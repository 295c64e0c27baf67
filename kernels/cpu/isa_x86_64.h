// The instruction sets of x86-64 (isa_choice.cpp).
#pragma once
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/isa/table.h"

namespace qeng::isa {

namespace baseline {
void fill(Table& table);
}
namespace avx2 {
void fill(Table& table);
}
namespace avx512 {
void fill(Table& table);
}

namespace avx512vnni {
void fill_block_dots(Table& table);
void fill_block_tiles(Table& table);
void fill_interleaved_dots(Table& table);
}  // namespace avx512vnni

namespace avx512gfni {
void fill_sign_dots(Table& table);
}

namespace amx {
void fill_bf16_tiles(Table& table);
void fill_block_tiles(Table& table);
}  // namespace amx

// Whether the processor has tiles of bytes and of bf16, and the system lets this process use them.
inline bool may_use_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAll = 1u << 22 | 1u << 24 | 1u << 25;  // of leaf 7: bf16, tiles, int8
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & kAll) != kAll) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of Linux 5.16: arch_prctl(2)
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// How many of the tables this processor runs. Code of the others is not even called to fill them: it is compiled with
// their instructions.
inline int count_that_run() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool has[] = {avx2, avx512, __builtin_cpu_supports("avx512vnni") != 0, __builtin_cpu_supports("gfni") != 0};
  int count = 1;
  for (const bool next : has) {
    if (!next) return count;
    ++count;
  }
  return may_use_tiles() ? count + 1 : count;
}

inline void fill(int i, Table& table) {
  switch (i) {
    case 0: return baseline::fill(table);
    case 1: return avx2::fill(table);
    case 2: return avx512::fill(table);
    case 3:
      avx512vnni::fill_block_dots(table);
      avx512vnni::fill_block_tiles(table);
      return avx512vnni::fill_interleaved_dots(table);
    case 4: return avx512gfni::fill_sign_dots(table);
    default: amx::fill_bf16_tiles(table); return amx::fill_block_tiles(table);
  }
}

}  // namespace qeng::isa
