// The twins of kernels/cuda/ptx/ptx.h: the same names and signatures, doing what the PTX manual says, with its rules
// checked. cp.async lands at the latest legal moment, or the earliest, as the seed draws; until then its destination is
// poison.
#pragma once
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/device.h"
#include "tests/emulator/banks.h"
#include "tests/emulator/block.h"
#include "tests/emulator/rounding.h"

namespace emulator {

struct Copy {
  char* destination;
  const char* source;
  uint32_t bytes;  // of 16; the rest is zero
  Site site;
};
struct CopyQueue {  // of one thread
  std::vector<Copy> copies;
  std::vector<size_t> groups;  // ends of the committed groups, in copies
};
// Byte by byte, so that the sanitizer sees a source that is too short. The compiler's calls at loads and stores would
// name these lines, and come late.
__attribute__((no_sanitize_thread)) inline void land(const Copy& copy) {
  touch(copy.source, copy.bytes, Touch::read, copy.site);
  touch(copy.destination, 16, Touch::write, copy.site);
  char data[16] = {};
  for (uint32_t i = 0; i < copy.bytes; ++i) data[i] = copy.source[i];
  std::memcpy(copy.destination, data, 16);
}
__attribute__((no_sanitize_thread)) inline void poison(void* destination) { std::memset(destination, 0xff, 16); }
inline void land_groups(CopyQueue& queue, size_t pending) {
  if (queue.groups.size() <= pending) return;
  const size_t done = queue.groups.size() - pending, end = queue.groups[done - 1];
  for (size_t i = 0; i < end; ++i) land(queue.copies[i]);
  queue.copies.erase(queue.copies.begin(), queue.copies.begin() + static_cast<std::ptrdiff_t>(end));
  queue.groups.erase(queue.groups.begin(), queue.groups.begin() + static_cast<std::ptrdiff_t>(done));
  for (size_t& group : queue.groups) group -= end;
}

// Slots of the warp's instructions; mma.cpp computes.
struct MatrixLoad {
  const char* row;
  uint32_t* registers;
  Site site;
};
void load_matrices(const char* what, MatrixLoad& slot, bool transposed, Site site);
struct MatrixMultiply {
  float* c;
  const uint32_t* a;
  uint32_t b0, b1;
  bool half;  // IEEE half instead of bf16
};
struct FloatMultiply {
  float* c;
  const float* a;
  float b[2];
};
void multiply_matrices(MatrixMultiply& slot, Site site);
void multiply_floats(FloatMultiply& slot, Site site);  // fails where an operand has more bits than TF32

}  // namespace emulator

namespace qeng {
namespace ptx {

inline uint32_t shared_address(const void* pointer, emulator::Site site = emulator::Site::current()) {
  return emulator::shared_address("shared_address", pointer, 0, 1, site);
}

template <class T>
inline T opaque(T x) {
  return x;
}
inline uint64_t wide_product(uint32_t x, uint32_t y) { return uint64_t{x} * y; }

inline float exp2_approx(float x) {
  const float y = emulator::off_by(x, exp2f(std::fabs(x) < 0x1p-126f ? 0.0f : x), 2);
  return y < 0x1p-126f ? 0.0f : y;
}
inline float rsqrt_approx(float x) { return emulator::off_by(x, rsqrtf(x), 2.9f); }  // 2^-22.4
inline float reciprocal_approx(float x) {
  const float y = emulator::off_by(x, 1.0f / x, 1);
  return std::fabs(y) < 0x1p-126f ? std::copysign(0.0f, y) : y;
}
inline uint32_t pack_bf16(float low, float high) { return uint32_t{to_bf16(high).bits} << 16 | to_bf16(low).bits; }
inline uint32_t pack_f16(float low, float high) { return uint32_t{to_f16(high).bits} << 16 | to_f16(low).bits; }
inline void unpack_f16(uint32_t packed, float& low, float& high) {
  low = to_f32(f16{static_cast<uint16_t>(packed)}), high = to_f32(f16{static_cast<uint16_t>(packed >> 16)});
}

inline void cp_async_16(void* shared, const void* global, uint32_t bytes = 16,
                        emulator::Site site = emulator::Site::current()) {
  emulator::shared_address("cp.async", shared, 16, 16, site);
  emulator::check_aligned("cp.async", global, 16, site);
  if (bytes > 16) emulator::fail("cp.async", "reads at most 16 bytes, not " + std::to_string(bytes), site);
  const emulator::Copy copy{static_cast<char*>(shared), static_cast<const char*>(global), bytes, site};
  emulator::touch(shared, 16, emulator::Touch::write, site);  // from now to the wait
  emulator::note_access(shared, 16, true, site);
  if (emulator::arrives_early()) return emulator::land(copy);
  emulator::poison(shared);
  emulator::per_thread<emulator::CopyQueue>().copies.push_back(copy);
}
inline void cp_async_whole(uint32_t shared, const void* global, emulator::Site site = emulator::Site::current()) {
  cp_async_16(emulator::shared_pointer("cp.async", shared, 16, 16, site), global, 16, site);
}
inline void cp_async_if(int wanted, uint32_t shared, const void* global,
                        emulator::Site site = emulator::Site::current()) {
  if (wanted) cp_async_whole(shared, global, site);
}
inline bool multiplies_bf16() { return emulator::capability() >= 80; }
inline bool from_sm80(emulator::Site site = emulator::Site::current()) {
  if (emulator::capability() < 80)
    emulator::fail("from_sm80", "this device launches no kernel that multiplies bf16", site);
  return true;
}
inline int thread_anew() { return static_cast<int>(threadIdx.x); }
inline void cp_async_commit() {
  auto& queue = emulator::per_thread<emulator::CopyQueue>();
  queue.groups.push_back(queue.copies.size());
}
template <int pending>
void cp_async_wait() {
  static_assert(pending >= 0);
  emulator::land_groups(emulator::per_thread<emulator::CopyQueue>(), pending);
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row, emulator::Site site = emulator::Site::current()) {
  emulator::MatrixLoad slot{static_cast<const char*>(row), r, site};
  emulator::load_matrices("ldmatrix", slot, false, site);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row, emulator::Site site = emulator::Site::current()) {
  emulator::MatrixLoad slot{static_cast<const char*>(row), r, site};
  emulator::load_matrices("ldmatrix.trans", slot, true, site);
}
inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                     emulator::Site site = emulator::Site::current()) {
  emulator::MatrixMultiply slot{c, a, b0, b1, false};
  emulator::multiply_matrices(slot, site);
}
inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    emulator::Site site = emulator::Site::current()) {
  emulator::MatrixMultiply slot{c, a, b0, b1, true};
  emulator::multiply_matrices(slot, site);
}

inline void mma_tf32(float (&c)[4], const float (&a)[4], float b0, float b1,
                     emulator::Site site = emulator::Site::current()) {
  emulator::FloatMultiply slot{c, a, {b0, b1}};
  emulator::multiply_floats(slot, site);
}

inline void begin_ahead() { emulator::begin_ahead(); }
inline void prefetch(const void*) {}

inline void barrier_sync(int id, int threads, emulator::Site site = emulator::Site::current()) {
  if (id == 0) emulator::fail("bar.sync", "barrier 0 is __syncthreads", site);
  emulator::barrier("bar.sync", id, threads, true, 0, site);
}
inline void barrier_arrive(int id, int threads, emulator::Site site = emulator::Site::current()) {
  if (id == 0) emulator::fail("bar.arrive", "barrier 0 is __syncthreads", site);
  emulator::barrier("bar.arrive", id, threads, false, 0, site);
}

}  // namespace ptx
}  // namespace qeng
