// The sum of kernels/math/crc16.h at the speed of memory: carry-less multiplication where the processor has it (PCLMULQDQ
// of x86, PMULL of Arm, chosen at run time), the portable tables elsewhere. Continues like crc16().
//
// Gopal et al. 2009, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel), without its
// last step: here the constants are powers of x reduced by the polynomial, 16 bits each.
#pragma once
#include <cstddef>
#include <cstdint>

namespace qeng {

uint16_t crc16_fast(uint16_t crc, const void* data, size_t bytes);

// "pclmul", "pmull" or "tables": what crc16_fast does on this machine, for benches and tests.
const char* crc16_method();

}  // namespace qeng
