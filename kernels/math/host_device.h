// Formulas in kernels/math are written once and compiled for the host (several instruction sets) and for CUDA devices.
// They have internal linkage, so that a copy built with AVX-512 never stands in for the one a plain file asked for.
#pragma once
#ifdef __CUDACC__
#define QENG_HD static __host__ __device__ inline
#else
#define QENG_HD static inline
#endif
