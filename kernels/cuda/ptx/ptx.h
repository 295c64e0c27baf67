// Instructions that C++ has no word for, one function each; before sm_80 some are several.
// tests/emulator/ptx_emulated.h holds a twin of each, with the same signature, that computes what the PTX manual says.
// Pointers are generic.
//
// Fragments of mma.m16n8k16 (g = lane / 4, t = lane % 4; two bf16 to a register, the lower index in the lower half):
//   a[0]: row g, k 2t..2t+1   a[1]: row g + 8   a[2]: row g, k 2t + 8..   a[3]: row g + 8, k 2t + 8..
//   b0: k 2t..2t+1, column g   b1: k 2t + 8..       c[0], c[1]: row g, columns 2t, 2t + 1   c[2], c[3]: row g + 8
#pragma once
#include "kernels/cuda/device.h"

#ifdef QENG_EMULATED
#include "ptx_emulated.h"
#else

namespace qeng {
namespace ptx {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// x, of which the compiler knows nothing here: what is computed from it is computed after this point, where it would
// otherwise be kept in a register, or spilled, from before a loop.
template <class T>  // int or uint32_t
__device__ inline T opaque(T x) {
  asm volatile("" : "+r"(x));
  return x;
}

// x * y by one instruction, which may also add what is added to it.
__device__ inline uint64_t wide_product(uint32_t x, uint32_t y) {
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
  return product;
}

// 2^x to about 2 ulp; 2^-inf is 0. Results below 2^-126 are flushed to 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// 1 / sqrt(x) to about 1 ulp.
__device__ inline float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x to about 1 ulp. Results below 2^-126 are flushed to 0.
__device__ inline float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Whether tensor cores multiply bf16: not before sm_80.
__device__ inline bool multiplies_bf16() {
#if __CUDA_ARCH__ < 800
  return false;
#else
  return true;
#endif
}
// First in a kernel that GPUs before sm_80 do not launch, as it multiplies bf16: false for them, for which nothing of it
// is compiled.
__device__ inline bool from_sm80() {
#if __CUDA_ARCH__ < 800
  __trap();
#endif
  return multiplies_bf16();
}

// threadIdx.x, read here: what is derived from it before a loop would stay in registers all through.
__device__ inline int thread_anew() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// Two floats rounded to bf16 (nearest, ties to even): low in bits 0 to 15, high in bits 16 to 31.
__device__ inline uint32_t pack_bf16(float low, float high) {
#if __CUDA_ARCH__ < 800
  return uint32_t{to_bf16(high).bits} << 16 | to_bf16(low).bits;
#else
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}

// The same for IEEE half; and the values of such a pair.
__device__ inline uint32_t pack_f16(float low, float high) {
  uint32_t packed;
#if __CUDA_ARCH__ < 800
  asm("{.reg .f16 l, h; cvt.rn.f16.f32 l, %1; cvt.rn.f16.f32 h, %2; mov.b32 %0, {l, h};}"
      : "=r"(packed)
      : "f"(low), "f"(high));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#endif
  return packed;
}
__device__ inline void unpack_f16(uint32_t packed, float& low, float& high) {
  asm("{.reg .f16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(packed));
}

// Starts copying 16 bytes from global to shared memory, both aligned to 16; the first `bytes` (0 to 16) are read, the
// rest of the 16 become zero. The source has to be a valid address also where bytes is 0. Before sm_80 the copy is a load
// and a store, done when this returns.
__device__ inline void cp_async_16(void* shared, const void* global, uint32_t bytes = 16) {
#if __CUDA_ARCH__ < 800
  uint4 words{};
  if (bytes > 0) words = __ldcg(static_cast<const uint4*>(global));
  const auto part = [&](uint32_t word, uint32_t before) {
    const uint32_t there = bytes > before ? bytes - before : 0;
    return there >= 4 ? word : word & ((1u << 8 * there) - 1);
  };
  *static_cast<uint4*>(shared) = {part(words.x, 0), part(words.y, 4), part(words.z, 8), part(words.w, 12)};
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
               : "memory");
#endif
}
// The same of all 16 bytes, to an address that shared_address gave.
__device__ inline void cp_async_whole(uint32_t shared, const void* global) {
#if __CUDA_ARCH__ < 800
  const uint4 words = __ldcg(static_cast<const uint4*>(global));
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(words.x), "r"(words.y), "r"(words.z),
               "r"(words.w)
               : "memory");
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
#endif
}
// The same if it is wanted, without a branch.
__device__ inline void cp_async_if(int wanted, uint32_t shared, const void* global) {
#if __CUDA_ARCH__ < 800
  if (wanted) cp_async_whole(shared, global);
#else
  asm volatile(
      "{\n.reg .pred wanted;\nsetp.ne.b32 wanted, %2, 0;\n@wanted cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(
          shared),
      "l"(global), "r"(wanted)
      : "memory");
#endif
}
// Closes this thread's group of copies (an empty one is legal); waits until at most `pending` of its newest are under
// way. Other threads see the data after a barrier that follows the wait.
__device__ inline void cp_async_commit() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int pending>
__device__ inline void cp_async_wait() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// Four 8x8 matrices of 16-bit elements. Lane 8j + i gives the address of row i of matrix j (16 bytes, aligned to 16).
// r[j]: elements (row g, columns 2t, 2t + 1) of matrix j; transposed: (rows 2t, 2t + 1, column g).
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// c += a b, a: 16 x 16, b: 16 x 8, bf16; c in f32.
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same with a and b in IEEE half, which before sm_80 are two products of half the depth.
__device__ inline void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ < 800
  const auto product = [&](uint32_t upper, uint32_t lower, uint32_t b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(upper), "r"(lower), "r"(b));
  };
  product(a[0], a[1], b0);
  product(a[2], a[3], b1);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// c += a b, a: 16 x 8, b: 8 x 8, floats of at most 11 bits each (TF32), as bf16 and f16 are: products are exact.
// Fragments (g = lane / 4, t = lane % 4): a[0]: row g, k t   a[1]: row g + 8   a[2], a[3]: the same at k t + 4
// b0: k t, column g   b1: k t + 4   c: as of the others
__device__ inline void mma_tf32(float (&c)[4], const float (&a)[4], float b0, float b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
        "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}

// First in a kernel that is launched ahead (QENG_LAUNCH_AHEAD in cuda.h), which may begin while the one before still
// runs: returns once that has ended and what it wrote is seen, and lets the next one begin. By all threads, before they
// touch memory that operations write.
__device__ inline void begin_ahead() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Asks for 128 bytes of global memory to be brought to the second-level cache.
__device__ inline void prefetch(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// Named barrier `id` (1 to 15; 0 is __syncthreads) over `threads` threads, a multiple of 32: sync waits, arrive does
// not.
__device__ inline void barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace ptx
}  // namespace qeng
#endif
