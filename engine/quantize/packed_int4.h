// The 4-bit weights of Hugging Face folders quantized by AWQ and GPTQ, as int4 blocks (kernels/math/blocks/int4.h): the
// same numbers, w = scale (q - zero), in the layout of [out, in] rows. Groups of 32 k inputs share a scale and a zero
// point.
//   awq   (AutoAWQ "gemm")  qweight: [in, out / 8] i32, nibble j of a word is column 8 c + {0, 2, 4, 6, 1, 3, 5, 7}[j]
//                           qzeros:  [groups, out / 8] i32, packed alike
//   gptq  (AutoGPTQ, v1)    qweight: [in / 8, out] i32, nibble j of a word is row 8 r + j
//                           qzeros:  [groups, out / 8] i32, nibble j is column 8 c + j, stored minus one
//   scales: [groups, out] f16 (or another float whose values halves can hold)
//   g_idx: [in] i32, the group of each input
// With a g_idx out of order (GPTQ's act-order, desc_act) no block has one scale: such weights become f16, each the
// product of its f16 scale and q - zero rounded once, which is what the project's own dequantization gives.
// (The packing code of the two projects; Lin et al. 2023, arXiv 2306.00978; Frantar et al. 2022, arXiv 2210.17323.)
#pragma once
#include "engine/tensor/tensor.h"

namespace qeng {

enum class Int4Layout : uint8_t { awq, gptq };
Int4Layout int4_layout_from_name(const std::string& name);  // "awq", "gptq"; Error("value")

struct PackedInt4 {
  TensorPtr qweight, qzeros, scales;
  TensorPtr g_idx;   // or null: input i is of group i / group size
  std::string name;  // of the layer, for messages
};

// [out, in] int4, or f16 for a g_idx out of order. Error("shape") where the parts do not fit each other or groups are
// no multiples of 32; Error("value") for a scale that no half holds, or a group that there is not.
TensorPtr repack_int4(const PackedInt4& packed, Int4Layout layout, const std::string& account = "weights");

}  // namespace qeng
