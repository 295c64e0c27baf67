// CUDA's device functions: barriers, shuffles, votes, integer atomics, bit and float intrinsics. Approximate ones are
// computed exactly here; a test's tolerance has to cover what the device does.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>

#include "tests/emulator/block.h"

// ---- barriers and fences

inline void __syncthreads(emulator::Site site = emulator::Site::current()) {
  emulator::barrier("__syncthreads", 0, emulator::threads(), true, 0, site);
}
inline int __syncthreads_count(int predicate, emulator::Site site = emulator::Site::current()) {
  return emulator::barrier("__syncthreads_count", 0, emulator::threads(), true, predicate, site);
}
inline int __syncthreads_or(int predicate, emulator::Site site = emulator::Site::current()) {
  return emulator::barrier("__syncthreads_or", 0, emulator::threads(), true, predicate, site) != 0;
}
inline int __syncthreads_and(int predicate, emulator::Site site = emulator::Site::current()) {
  return emulator::barrier("__syncthreads_and", 0, emulator::threads(), true, predicate, site) == emulator::threads();
}
inline void __syncwarp(unsigned mask = 0xffffffffu, emulator::Site site = emulator::Site::current()) {
  char nothing = 0;
  emulator::meet_warp(
      "__syncwarp", mask, nothing,
      [](char* const* slots) {
        unsigned lanes = 0;
        for (int i = 0; i < 32; ++i)
          if (slots[i]) lanes |= 1u << i;
        emulator::order_warp(lanes);
      },
      site);
}
inline void __threadfence() { emulator::order_fence(); }
inline void __threadfence_block() {}
inline void __threadfence_system() { emulator::order_fence(); }
inline void __nanosleep(unsigned) { emulator::yield(); }
[[noreturn]] inline void __trap(emulator::Site site = emulator::Site::current()) {
  emulator::fail("__trap", "the kernel gave up", site);
}

// ---- shuffles and votes

namespace emulator {

template <class T>
struct ShuffleSlot {
  T value, result;
  int source;  // lane
};
template <class T>
T shuffle(const char* what, unsigned mask, T value, int source, int width, Site site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "a shuffle moves 32 or 64 bits");
  if (width < 1 || width > 32 || (width & (width - 1)) != 0)
    fail(what, "width is a power of two up to 32, not " + std::to_string(width), site);
  if ((mask >> lane() & 1) && !(mask >> source & 1))
    fail(what, "reads lane " + std::to_string(source) + ", which its mask does not name", site);
  ShuffleSlot<T> slot{value, value, source};
  meet_warp(
      what, mask, slot,
      [](ShuffleSlot<T>* const* slots) {
        for (int i = 0; i < 32; ++i)
          if (slots[i]) slots[i]->result = slots[slots[i]->source]->value;
      },
      site);
  return slot.result;
}
// A vote: the lanes of the mask whose predicate is true.
inline unsigned vote(const char* what, unsigned mask, int predicate, Site site) {
  struct Slot {
    bool predicate;
    unsigned result;
  } slot{predicate != 0, 0};
  meet_warp(
      what, mask, slot,
      [](Slot* const* slots) {
        unsigned lanes = 0;
        for (int i = 0; i < 32; ++i)
          if (slots[i] && slots[i]->predicate) lanes |= 1u << i;
        for (int i = 0; i < 32; ++i)
          if (slots[i]) slots[i]->result = lanes;
      },
      site);
  return slot.result;
}

}  // namespace emulator

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, emulator::Site site = emulator::Site::current()) {
  const int lane = emulator::lane();
  return emulator::shuffle("__shfl_sync", mask, value, (lane & -width) | (source & (width - 1)), width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, emulator::Site site = emulator::Site::current()) {
  const int lane = emulator::lane(), source = lane ^ bits;
  return emulator::shuffle("__shfl_xor_sync", mask, value, source > (lane | (width - 1)) ? lane : source, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 emulator::Site site = emulator::Site::current()) {
  const int lane = emulator::lane(), source = lane - static_cast<int>(delta);
  return emulator::shuffle("__shfl_up_sync", mask, value, source < (lane & -width) ? lane : source, width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   emulator::Site site = emulator::Site::current()) {
  const int lane = emulator::lane(), source = lane + static_cast<int>(delta);
  return emulator::shuffle("__shfl_down_sync", mask, value, source > (lane | (width - 1)) ? lane : source, width, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::current()) {
  return emulator::vote("__ballot_sync", mask, predicate, site);
}
inline int __any_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::current()) {
  return emulator::vote("__any_sync", mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, emulator::Site site = emulator::Site::current()) {
  return emulator::vote("__all_sync", mask, predicate, site) == mask;
}
// Which lanes happen to run together is the device's choice: a kernel may not depend on it.
unsigned __activemask() = delete;

// ---- atomics on integers; floats would make results depend on the order

#define QENG_EMULATOR_ATOMIC(name, expression)                                     \
  template <class T>                                                               \
  T name(T* address, std::type_identity_t<T> value) {                              \
    static_assert(std::is_integral_v<T> && sizeof(T) >= 4);                        \
    emulator::check_aligned(#name, address, sizeof(T), emulator::Site::current()); \
    const emulator::Atomic scope(address, sizeof(T));                              \
    const T old = *address;                                                        \
    *address = static_cast<T>(expression);                                         \
    return old;                                                                    \
  }
QENG_EMULATOR_ATOMIC(atomicAdd, static_cast<std::make_unsigned_t<T>>(old) + static_cast<std::make_unsigned_t<T>>(value))
QENG_EMULATOR_ATOMIC(atomicSub, static_cast<std::make_unsigned_t<T>>(old) - static_cast<std::make_unsigned_t<T>>(value))
QENG_EMULATOR_ATOMIC(atomicMax, value > old ? value : old)
QENG_EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
QENG_EMULATOR_ATOMIC(atomicExch, value)
QENG_EMULATOR_ATOMIC(atomicAnd, old& value)
QENG_EMULATOR_ATOMIC(atomicOr, old | value)
QENG_EMULATOR_ATOMIC(atomicXor, old ^ value)
QENG_EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
#undef QENG_EMULATOR_ATOMIC
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  static_assert(std::is_integral_v<T> && sizeof(T) >= 4);
  emulator::check_aligned("atomicCAS", address, sizeof(T), emulator::Site::current());
  const emulator::Atomic scope(address, sizeof(T));
  const T old = *address;
  if (old == expected) *address = value;
  return old;
}

// ---- loads and stores with a caching hint: one instruction of 1 to 16 bytes, aligned to its size

namespace emulator {
template <class T>
T load(const char* what, const T* pointer, Site site) {
  static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0);
  check_aligned(what, pointer, sizeof(T), site);
  return *pointer;
}
template <class T>
void store(const char* what, T* pointer, const T& value, Site site) {
  static_assert(sizeof(T) <= 16 && (sizeof(T) & (sizeof(T) - 1)) == 0);
  check_aligned(what, pointer, sizeof(T), site);
  *pointer = value;
}
}  // namespace emulator
#define QENG_EMULATOR_LOAD(name)                                              \
  template <class T>                                                          \
  T name(const T* pointer, emulator::Site site = emulator::Site::current()) { \
    return emulator::load(#name, pointer, site);                              \
  }
QENG_EMULATOR_LOAD(__ldg)
QENG_EMULATOR_LOAD(__ldca)
QENG_EMULATOR_LOAD(__ldcg)
QENG_EMULATOR_LOAD(__ldcs)
QENG_EMULATOR_LOAD(__ldlu)
QENG_EMULATOR_LOAD(__ldcv)
#undef QENG_EMULATOR_LOAD
#define QENG_EMULATOR_STORE(name)                                                                         \
  template <class T>                                                                                      \
  void name(T* pointer, std::type_identity_t<T> value, emulator::Site site = emulator::Site::current()) { \
    emulator::store(#name, pointer, value, site);                                                         \
  }
QENG_EMULATOR_STORE(__stwb)
QENG_EMULATOR_STORE(__stcg)
QENG_EMULATOR_STORE(__stcs)
QENG_EMULATOR_STORE(__stwt)
#undef QENG_EMULATOR_STORE

// A shared pointer as the 32-bit address that PTX takes.
inline size_t __cvta_generic_to_shared(const void* pointer, emulator::Site site = emulator::Site::current()) {
  return emulator::shared_address("__cvta_generic_to_shared", pointer, 0, 1, site);
}

// ---- bits

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return x ? std::countr_zero(static_cast<unsigned>(x)) + 1 : 0; }
inline int __ffsll(long long x) { return x ? std::countr_zero(static_cast<unsigned long long>(x)) + 1 : 0; }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int i = 0; i < 32; ++i) y |= (x >> i & 1u) << (31 - i);
  return y;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline int __mulhi(int a, int b) { return static_cast<int>(int64_t{a} * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>(static_cast<Wide>(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((uint64_t{high} << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((uint64_t{high} << 32 | low) >> (shift & 31));
}
// Byte i of the result: byte (selector >> 4i & 7) of {y, x}, or its sign where bit 3 of the selector's nibble is set.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = uint64_t{y} << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> (4 * i) & 15u;
    unsigned byte = static_cast<unsigned>(bytes >> (8 * (nibble & 7u))) & 255u;
    if (nibble & 8u) byte = byte & 128u ? 255u : 0u;
    result |= byte << (8 * i);
  }
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; ++i) c += static_cast<int8_t>(a >> (8 * i)) * static_cast<int8_t>(b >> (8 * i));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 255u) * (b >> (8 * i) & 255u);
  return c;
}

// ---- floats

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(x))); }
inline float __frsqrt_rn(float x) { return rsqrtf(x); }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline void __sincosf(float x, float* sine, float* cosine) { *sine = sinf(x), *cosine = cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __tanhf(float x) { return tanhf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
namespace emulator {
// As the device converts: NaN is 0, values out of range are the nearest that fits.
template <class T>
T saturate(float x) {
  if (x != x) return 0;
  if (static_cast<double>(x) <= static_cast<double>(std::numeric_limits<T>::min()))
    return std::numeric_limits<T>::min();
  if (static_cast<double>(x) >= static_cast<double>(std::numeric_limits<T>::max()))
    return std::numeric_limits<T>::max();
  return static_cast<T>(x);
}
}  // namespace emulator
inline int __float2int_rn(float x) { return emulator::saturate<int>(nearbyintf(x)); }
inline int __float2int_rz(float x) { return emulator::saturate<int>(truncf(x)); }
inline int __float2int_rd(float x) { return emulator::saturate<int>(floorf(x)); }
inline int __float2int_ru(float x) { return emulator::saturate<int>(ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return emulator::saturate<unsigned>(nearbyintf(x)); }
inline unsigned __float2uint_rz(float x) { return emulator::saturate<unsigned>(truncf(x)); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

// ---- min and max, with the overloads that CUDA has: mixed widths are as ambiguous here as there

#define QENG_EMULATOR_MIN_MAX(R, A, B)                                                                             \
  inline R min(A a, B b) { return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); } \
  inline R max(A a, B b) { return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); }
#define QENG_EMULATOR_MIN_MAX_OF(S, U) \
  QENG_EMULATOR_MIN_MAX(S, S, S)       \
  QENG_EMULATOR_MIN_MAX(U, U, U)       \
  QENG_EMULATOR_MIN_MAX(U, S, U)       \
  QENG_EMULATOR_MIN_MAX(U, U, S)
QENG_EMULATOR_MIN_MAX_OF(int, unsigned)
QENG_EMULATOR_MIN_MAX_OF(long, unsigned long)
QENG_EMULATOR_MIN_MAX_OF(long long, unsigned long long)
#undef QENG_EMULATOR_MIN_MAX_OF
#undef QENG_EMULATOR_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
