// Hopper's instructions (sm_90a), one function each: tensor copies into shared memory (TMA), mbarriers, and wgmma, the
// product that four warps start together and that runs on while they do other things. As in ptx.h, and the twins are in
// tests/emulator/ptx_sm90_emulated.h.
//
// A warpgroup is 128 threads, the first of them a multiple of 128. Shared tiles are panels: [rows][64] bf16 with 128
// bytes to a row, the 16-byte chunk c of row r stored at chunk c ^ (r % 8), each panel aligned to 1024 bytes. This is
// what TMA writes and wgmma reads with the 128-byte swizzle; a tile wider than 64 is several panels one after another.
#pragma once
#include "kernels/cuda/ptx/ptx.h"
#include "kernels/cuda/ptx/tensor_map.h"

// Only sm_90a has these instructions; for other targets the kernels give up, and nobody launches them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || defined(QENG_EMULATED)
#define QENG_SM90 1
#else
#define QENG_SM90 0
#endif

namespace qeng {
#if defined(QENG_HAS_SM90A) || defined(QENG_EMULATED)
constexpr bool kHopperCompiled = true;
#else
constexpr bool kHopperCompiled = false;  // for other architectures than 9.0 only
#endif
}  // namespace qeng

#ifdef QENG_EMULATED
#include "ptx_sm90_emulated.h"
#else

namespace qeng {
namespace ptx {

// ---- mbarriers: 8 bytes of shared memory. A phase ends when the expected arrivals were made and the expected bytes
// came; the next begins at once. wait(parity) returns once the phase of that parity (0 first, then 1, 0, ...) has
// ended, so waiting for parity 1 on a fresh barrier passes.

__device__ inline void mbarrier_init(uint64_t* barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// By the thread that initialised barriers, before the __syncthreads that lets others use them.
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// One arrival, and `bytes` more to come in this phase.
__device__ inline void mbarrier_arrive_expect(uint64_t* barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n"
        "}\n"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}

// ---- TMA

// Starts copying the map's box at (column, head, row) to shared memory, aligned to 1024; its bytes count towards the
// barrier's phase. What lies outside the tensor arrives as zeros and counts as well. By one thread.
__device__ inline void tma_load(void* shared, const TensorMap* map, int column, int head, int row, uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_address(barrier))
      : "memory");
}
// After ordinary stores to shared memory that wgmma or TMA will read: by each thread that stored, before a barrier.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers: a warpgroup gives back all but `count` registers to a thread, or takes up to `count`.
template <int count>
__device__ inline void registers_give() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- wgmma: D[64, n] (+)= A[64, 16] B[16, n], bf16 with f32 sums, by the four warps of a warpgroup.
// Warp w of the group owns rows 16w..16w+15. d[i] of lane (g, t) as in ptx.h: row g + 8 ((i / 2) % 2), column
// 8 (i / 4) + 2t + i % 2. A in registers: the fragment of mma.m16n8k16 of the warp's 16 rows.

// What wgmma wants to know of a tile in shared memory, at its first row and at the k-slice wanted:
//   K-major ([rows][k], the slice's 16 columns 32 bytes further in the panel's rows): panel_bytes is not used
//   MN-major ([k][columns], the slice's 16 rows 2048 bytes further): panel_bytes is the distance of two panels
__device__ __forceinline__ uint64_t tile_descriptor(const void* tile, uint32_t panel_bytes = 16) {
  constexpr uint64_t kSwizzle128 = 1;
  return static_cast<uint64_t>((shared_address(tile) & 0x3ffff) >> 4) | static_cast<uint64_t>(panel_bytes >> 4) << 16 |
         static_cast<uint64_t>(1024 >> 4) << 32 | kSwizzle128 << 62;
}

// The same layout `bytes` further on, a multiple of 16.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t bytes) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

// The compiler knows nothing of products that run on, so these two tell it when registers change: wgmma_start comes
// before the first product of a batch and names its registers, D and A, unless they were named since the last wait;
// wgmma_wait<pending> leaves at most `pending` of the newest batches running and names the D that it finished.
__device__ __forceinline__ void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void pin(uint32_t& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class T, int n>
__device__ __forceinline__ void pin(T (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) pin(x[i]);
}
template <class... Registers>
__device__ __forceinline__ void wgmma_start(Registers&... registers) {
  (pin(registers), ...);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Closes a batch.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending, class... Registers>
__device__ __forceinline__ void wgmma_wait(Registers&... registers) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  (pin(registers), ...);
}
// ptxas moves a wait up over arithmetic that does not need its product, as far as the wait or start before it; then the
// two do not overlap. It moves none over a branch. x: a value of that arithmetic which is never negative, NaN perhaps.
__device__ __forceinline__ void keep_before_wait(float x) {
  if (__builtin_expect(x < 0, 0)) __nanosleep(1);
}

enum class Major { k, mn };  // how B is stored: [n][k], or [k][n]; and A in shared memory: [64][k], or [k][64]

// wgmma<b_major, a_major>(d, a, b, accumulate): d: float[n / 2], a: a descriptor or four registers, b: a descriptor.
// Without accumulate, d's old values count for nothing.
// clang-format off
#define QENG_EIGHT(a, b, c, d, e, f, g, h) "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define QENG_LIST_8 QENG_EIGHT(0, 1, 2, 3, 4, 5, 6, 7)
#define QENG_LIST_24 QENG_LIST_8 ", " \
  QENG_EIGHT(8, 9, 10, 11, 12, 13, 14, 15) ", " \
  QENG_EIGHT(16, 17, 18, 19, 20, 21, 22, 23)
#define QENG_LIST_32 QENG_LIST_24 ", " \
  QENG_EIGHT(24, 25, 26, 27, 28, 29, 30, 31)
#define QENG_LIST_40 QENG_LIST_32 ", " \
  QENG_EIGHT(32, 33, 34, 35, 36, 37, 38, 39)
#define QENG_LIST_48 QENG_LIST_40 ", " \
  QENG_EIGHT(40, 41, 42, 43, 44, 45, 46, 47)
#define QENG_LIST_64 QENG_LIST_48 ", " \
  QENG_EIGHT(48, 49, 50, 51, 52, 53, 54, 55) ", " \
  QENG_EIGHT(56, 57, 58, 59, 60, 61, 62, 63)
#define QENG_LIST_96 QENG_LIST_64 ", " \
  QENG_EIGHT(64, 65, 66, 67, 68, 69, 70, 71) ", " \
  QENG_EIGHT(72, 73, 74, 75, 76, 77, 78, 79) ", " \
  QENG_EIGHT(80, 81, 82, 83, 84, 85, 86, 87) ", " \
  QENG_EIGHT(88, 89, 90, 91, 92, 93, 94, 95)
#define QENG_LIST_128 QENG_LIST_96 ", " \
  QENG_EIGHT(96, 97, 98, 99, 100, 101, 102, 103) ", " \
  QENG_EIGHT(104, 105, 106, 107, 108, 109, 110, 111) ", " \
  QENG_EIGHT(112, 113, 114, 115, 116, 117, 118, 119) ", " \
  QENG_EIGHT(120, 121, 122, 123, 124, 125, 126, 127)
#define QENG_EIGHT_D(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
  "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define QENG_D8 QENG_EIGHT_D(0)
#define QENG_D24 QENG_D8, QENG_EIGHT_D(8), QENG_EIGHT_D(16)
#define QENG_D32 QENG_D24, QENG_EIGHT_D(24)
#define QENG_D40 QENG_D32, QENG_EIGHT_D(32)
#define QENG_D48 QENG_D40, QENG_EIGHT_D(40)
#define QENG_D64 QENG_D48, QENG_EIGHT_D(48), QENG_EIGHT_D(56)
#define QENG_D96 QENG_D64, QENG_EIGHT_D(64), QENG_EIGHT_D(72), QENG_EIGHT_D(80), QENG_EIGHT_D(88)
#define QENG_D128 QENG_D96, QENG_EIGHT_D(96), QENG_EIGHT_D(104), QENG_EIGHT_D(112), QENG_EIGHT_D(120)

// n columns, count = n / 2 registers; p0..p6: the numbers of the operands after d's.
#define QENG_WGMMA(n, count, p0, p1, p2, p3, p4, p5, p6)                                                       \
  template <Major b_major, Major a_major = Major::k>                                                           \
  __device__ __forceinline__ void wgmma(float (&d)[count], uint64_t a, uint64_t b, bool accumulate = true) {   \
    asm volatile(                                                                                              \
        "{\n"                                                                                                  \
        ".reg .pred p;\n"                                                                                      \
        "setp.ne.b32 p, %" #p2 ", 0;\n"                                                                        \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                                            \
        "{" QENG_LIST_##count "}, %" #p0 ", %" #p1 ", p, 1, 1, %" #p4 ", %" #p3 ";\n"                          \
        "}\n"                                                                                                  \
        : QENG_D##count                                                                                        \
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(b_major)),                   \
          "n"(static_cast<int>(a_major)));                                                                     \
  }                                                                                                            \
  template <Major b_major>                                                                                     \
  __device__ __forceinline__ void wgmma(float (&d)[count], const uint32_t (&a)[4], uint64_t b,                 \
                                        bool accumulate = true) {                                              \
    asm volatile(                                                                                              \
        "{\n"                                                                                                  \
        ".reg .pred p;\n"                                                                                      \
        "setp.ne.b32 p, %" #p5 ", 0;\n"                                                                        \
        "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                                            \
        "{" QENG_LIST_##count "}, {%" #p0 ", %" #p1 ", %" #p2 ", %" #p3 "}, %" #p4 ", p, 1, 1, %" #p6 ";\n"    \
        "}\n"                                                                                                  \
        : QENG_D##count                                                                                        \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),               \
          "n"(static_cast<int>(b_major)));                                                                     \
  }
// clang-format on
QENG_WGMMA(16, 8, 8, 9, 10, 11, 12, 13, 14)
QENG_WGMMA(48, 24, 24, 25, 26, 27, 28, 29, 30)
QENG_WGMMA(64, 32, 32, 33, 34, 35, 36, 37, 38)
QENG_WGMMA(80, 40, 40, 41, 42, 43, 44, 45, 46)
QENG_WGMMA(96, 48, 48, 49, 50, 51, 52, 53, 54)
QENG_WGMMA(128, 64, 64, 65, 66, 67, 68, 69, 70)
QENG_WGMMA(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef QENG_WGMMA

}  // namespace ptx
}  // namespace qeng
#endif
