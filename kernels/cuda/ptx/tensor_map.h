// What TMA has to know of a tensor in global memory: [tokens, heads, head_dim] in bf16, read in boxes of 64 columns by
// some rows of one head, or of several beside each other, written to shared memory as panels (ptx_sm90.h): a row of the
// box is a token's head, and the heads of a token follow each other.
#pragma once
#include <cstdint>

#ifndef QENG_EMULATED
#include <cuda.h>
#endif

#include "kernels/view.h"

namespace qeng {

#ifndef QENG_EMULATED
using TensorMap = CUtensorMap;
#else
struct alignas(64) TensorMap {
  const char* data;
  int64_t columns, heads, tokens;   // extents
  int64_t head_stride, row_stride;  // bytes
  int64_t box_columns, box_heads, box_rows;
};
#endif

constexpr int kPanelColumns = 64;  // 128 bytes of bf16, the span of the widest swizzle

// Whether TMA can read the tensor: at least one element, addresses and strides multiples of 16 bytes.
bool fits_tensor_map(const View& view);
// rows, of each of `heads` heads: 1 to 256 in all. Throws Error("cuda") where the tensor does not fit, or where the
// driver refuses.
TensorMap panel_map(const View& view, int rows, int heads = 1);

}  // namespace qeng
