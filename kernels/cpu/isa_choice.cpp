// Chooses among the instruction sets that kernels/cpu/isa is built for.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <iterator>

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

namespace {

constexpr int kTables = std::size(kNames);

// Whether the processor has tiles of bytes and of bf16, and the system lets this process use them.
bool may_use_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kAll = 1u << 22 | 1u << 24 | 1u << 25;  // of leaf 7: bf16, tiles, int8
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & kAll) != kAll) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of Linux 5.16: arch_prctl(2)
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Tables {
  Table table[kTables];  // slowest first
  bool runs[kTables];
  Tables() {
    baseline::fill(table[0]);
    avx2::fill(table[1]);
    avx512::fill(table[2]);
    table[3] = table[2];
    avx512vnni::fill_block_dots(table[3]);
    avx512vnni::fill_block_tiles(table[3]);
    avx512vnni::fill_interleaved_dots(table[3]);
    table[4] = table[3];
    avx512gfni::fill_sign_dots(table[4]);
    table[5] = table[4];
    amx::fill_bf16_tiles(table[5]);
    amx::fill_block_tiles(table[5]);
    for (int i = 0; i < kTables; ++i) table[i].name = kNames[i];
    runs[0] = true;
    runs[1] = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
              __builtin_cpu_supports("bmi2");
    runs[2] = runs[1] && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    runs[3] = runs[2] && __builtin_cpu_supports("avx512vnni");
    runs[4] = runs[3] && __builtin_cpu_supports("gfni");
    runs[5] = runs[4] && may_use_tiles();
  }
};

const Tables& tables() {
  static const Tables all;
  return all;
}

}  // namespace

const Table* find(const char* name) {
  for (int i = 0; i < kTables; ++i)
    if (tables().runs[i] && std::strcmp(tables().table[i].name, name) == 0) return &tables().table[i];
  return nullptr;
}

const Table& best() {
  for (int i = kTables - 1; i > 0; --i)
    if (tables().runs[i]) return tables().table[i];
  return tables().table[0];
}

}  // namespace qeng::isa
