// The bounds of kernels that take many registers: threads of a block, and blocks of a multiprocessor that ptxas leaves
// room for, 0: as it likes. For compute capability 10.0 and later it likes more of them, and spills for it.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define QENG_BOUNDS(threads, blocks, blocks_since_100) __launch_bounds__(threads, blocks_since_100)
#else
#define QENG_BOUNDS(threads, blocks, blocks_since_100) __launch_bounds__(threads, blocks)
#endif
