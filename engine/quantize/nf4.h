// The 4-bit weights of bitsandbytes (NormalFloat4; Dettmers et al. 2023, arXiv 2305.14314) as ordinary ones: the
// numbers that its own dequantization gives, w[i] = map[code(i)] * absmax[i / block], an f32 product rounded once to
// the dtype.
//   codes:  u8, element 2 j in the high nibble of byte j, 2 j + 1 in the low one, over the rows end to end
//   absmax: f32 [blocks]; or u8, quantized once more: absmax = nested_map[absmax] * nested_absmax[block / nested_block]
//   + nested_offset
// (bitsandbytes/functional.py: quantize_4bit, QuantState.)
#pragma once
#include "engine/tensor/tensor.h"

namespace qeng {

struct Nf4 {
  TensorPtr codes, map, absmax;
  TensorPtr nested_map, nested_absmax;  // null where absmax is f32
  double nested_offset = 0;
  int64_t block = 64, nested_block = 256;
  std::string name;  // of the weight, for messages
};

// [out, in] of f32, bf16 or f16. Error("shape") or Error("dtype") where the parts do not fit each other,
// Error("unsupported") where rows are no whole blocks.
TensorPtr decode_nf4(const Nf4& packed, int64_t out, int64_t in, DType dtype, const std::string& account = "weights");

}  // namespace qeng
