// The inner loops that are built once per instruction set, as a table of functions; the rest of the backend calls
// through it.
//
// Files of this folder are compiled three times, into namespaces qeng::isa::baseline, ::avx2 and ::avx512 (QENG_ISA).
// They include intrinsics, <cstdint>, simd.h and kernels/math only: a standard header would emit inline functions whose
// AVX-512 copy the linker may then pick for the whole program. To add a loop: a field here, a static function in a
// file, and an assignment in that file's fill_...(Table&), which table.cpp calls.
//
// Loops are serial; callers split rows or elements among threads (kernels/cpu/parallel.h). Pointers need no alignment.
#pragma once
#include <cstddef>
#include <cstdint>

namespace qeng::isa {

enum class Float : uint8_t { f32, bf16, f16 };  // f16 only where said

struct Table {
  const char* name = nullptr;

  // ---- elementwise (elementwise.cpp)
  void (*add)(Float type, const void* a, const void* b, void* y, int64_t n) = nullptr;
  void (*scale)(Float from, const void* x, Float to, void* y, float alpha,
                int64_t n) = nullptr;  // also casts; f16 allowed
};

// The tables, filled on first use. find: nullptr if this machine cannot run it or there is none of that name.
// best: the fastest that this machine can run.
const Table* find(const char* name);
const Table& best();

}  // namespace qeng::isa
