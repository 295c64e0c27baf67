// What g++'s -fsanitize=thread calls at each load and store of a kernel, answered by the race check instead of by its
// own runtime. Linked only where such code is.
#include "tests/emulator/banks.h"
#include "tests/emulator/races.h"

using emulator::Touch;
using emulator::touch_at;

#define QENG_HOOKS(size)                                                                                       \
  void __tsan_read##size(void* p) { touch_at(p, size, Touch::read, __builtin_return_address(0), true); }       \
  void __tsan_write##size(void* p) { touch_at(p, size, Touch::write, __builtin_return_address(0), true); }     \
  void __tsan_unaligned_read##size(void* p) { touch_at(p, size, Touch::read, __builtin_return_address(0)); }   \
  void __tsan_unaligned_write##size(void* p) { touch_at(p, size, Touch::write, __builtin_return_address(0)); } \
  void __tsan_volatile_read##size(void* p) { touch_at(p, size, Touch::read, __builtin_return_address(0)); }    \
  void __tsan_volatile_write##size(void* p) { touch_at(p, size, Touch::write, __builtin_return_address(0)); }

#define QENG_ATOMICS(bits, T)                                                                                       \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }           \
  void __tsan_atomic##bits##_store(volatile T* p, T x, int) { __atomic_store_n(p, x, __ATOMIC_SEQ_CST); }           \
  T __tsan_atomic##bits##_exchange(volatile T* p, T x, int) { return __atomic_exchange_n(p, x, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T x, int) { return __atomic_fetch_add(p, x, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T x, int) { return __atomic_fetch_sub(p, x, __ATOMIC_SEQ_CST); } \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* expected, T x, int, int) {                   \
    return __atomic_compare_exchange_n(p, expected, x, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                  \
  }                                                                                                                 \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* expected, T x, int, int) {                     \
    return __atomic_compare_exchange_n(p, expected, x, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                   \
  }

extern "C" {
QENG_HOOKS(1)
QENG_HOOKS(2)
QENG_HOOKS(4)
QENG_HOOKS(8)
QENG_HOOKS(16)
void __tsan_read_range(void* p, unsigned long size) { touch_at(p, size, Touch::read, __builtin_return_address(0)); }
void __tsan_write_range(void* p, unsigned long size) { touch_at(p, size, Touch::write, __builtin_return_address(0)); }
void __tsan_init() { emulator::check_races = !emulator::banks_wanted(); }
void __tsan_func_entry(void*) {}
void __tsan_func_exit(void*) {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// Atomics of the host's code: shared pointers, guards of static variables. A kernel has none but CUDA's.
QENG_ATOMICS(8, unsigned char)
QENG_ATOMICS(16, unsigned short)
QENG_ATOMICS(32, unsigned)
QENG_ATOMICS(64, unsigned long)
}
