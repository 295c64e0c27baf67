// Stand-in for CUDA's <cuda_runtime.h>: kernels and host code of kernels/cuda compile against it with g++ and run on
// the CPU, each thread of a block as a fiber. README.md says what it checks. Only what that folder may use is here.
#pragma once
#ifndef QENG_EMULATED
#error "tests/emulator/cuda_runtime.h needs -DQENG_EMULATED"
#endif
#include "tests/emulator/block.h"
#include "tests/emulator/device_functions.h"
#include "tests/emulator/runtime_api.h"
#include "tests/emulator/vector_types.h"
