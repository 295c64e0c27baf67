// How a device rounds where the emulator is more exact. With QENG_EMULATOR_ROUNDING=1 sums of tensor cores and
// approximate functions are as inexact as a GPU's, so that a tolerance that is too tight fails here.
//
// Tensor cores (Fasi, Higham, Mikaitis & Pranesh 2021, Numerical behavior of NVIDIA tensor cores; Khattak & Mikaitis 2025,
// arXiv 2512.07004): products are exact; blocks of 8 of them (8.x), or 16 (9.0), are added to the sum at once, aligned to
// the largest exponent, each cut off 1 bit, or 2, below the last of f32; the result is cut off, too.
// Approximate functions are off by what PTX's manual allows, up or down as the bits of the operand say.
#pragma once

namespace emulator {

bool device_rounding();  // whether it is asked for

// c plus the products of a[k] and b[k * stride], k < 16.
float tensor_sum(float c, const float* a, const float* b, int stride);

// y = f(x), off by at most so many units of its last place; 0, 1 and what is not finite stay as they are.
float off_by(float x, float y, float units);

}  // namespace emulator
