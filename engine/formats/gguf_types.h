// The tensor types of GGUF files by number, with the sizes of their blocks; the engine reads some of them. The numbers
// are those of ggml.h; 142 and 143 are PrismML's.
#pragma once
#include <cstdint>
#include <optional>

#include "kernels/view.h"

namespace qeng {

struct GgufTensorType {
  uint32_t id;
  const char* name;
  int elements, bytes;  // of a block
  std::optional<DType> dtype;
};

// Q2_0 is two formats under one number: 64 elements in 18 bytes, and 128 in 34 in PrismML's older files, which is
// PQ2_0. Which of them a file holds is seen from the bytes it keeps for a tensor (gguf.cpp).
inline constexpr uint32_t kGgufQ2 = 42;
// Read as f16 (engine/formats/nvfp4.h).
inline constexpr uint32_t kGgufNvfp4 = 40;

inline constexpr GgufTensorType kGgufTensorTypes[] = {
    {0, "F32", 1, 4, DType::f32},
    {1, "F16", 1, 2, DType::f16},
    {2, "Q4_0", 32, 18, DType::q4_0},
    {3, "Q4_1", 32, 20, DType::q4_1},
    {6, "Q5_0", 32, 22, DType::q5_0},
    {7, "Q5_1", 32, 24, DType::q5_1},
    {8, "Q8_0", 32, 34, DType::q8_0},
    {9, "Q8_1", 32, 36, std::nullopt},
    {10, "Q2_K", 256, 84, DType::q2_k},
    {11, "Q3_K", 256, 110, DType::q3_k},
    {12, "Q4_K", 256, 144, DType::q4_k},
    {13, "Q5_K", 256, 176, DType::q5_k},
    {14, "Q6_K", 256, 210, DType::q6_k},
    {15, "Q8_K", 256, 292, std::nullopt},
    {16, "IQ2_XXS", 256, 66, DType::iq2_xxs},
    {17, "IQ2_XS", 256, 74, DType::iq2_xs},
    {18, "IQ3_XXS", 256, 98, DType::iq3_xxs},
    {19, "IQ1_S", 256, 50, DType::iq1_s},
    {20, "IQ4_NL", 32, 18, DType::iq4_nl},
    {21, "IQ3_S", 256, 110, DType::iq3_s},
    {22, "IQ2_S", 256, 82, DType::iq2_s},
    {23, "IQ4_XS", 256, 136, DType::iq4_xs},
    {24, "I8", 1, 1, std::nullopt},
    {25, "I16", 1, 2, std::nullopt},
    {26, "I32", 1, 4, DType::i32},
    {27, "I64", 1, 8, DType::i64},
    {28, "F64", 1, 8, std::nullopt},
    {29, "IQ1_M", 256, 56, DType::iq1_m},
    {30, "BF16", 1, 2, DType::bf16},
    {34, "TQ1_0", 256, 54, DType::tq1_0},
    {35, "TQ2_0", 256, 66, DType::tq2_0},
    {39, "MXFP4", 32, 17, DType::mxfp4},
    {kGgufNvfp4, "NVFP4", 64, 36, std::nullopt},
    {41, "Q1_0", 128, 18, DType::q1_0},
    {kGgufQ2, "Q2_0", 64, 18, DType::q2_0},
    {142, "PQ2_0", 128, 34, DType::pq2_0},
    {143, "PTQ1_0", 128, 28, DType::ptq1_0},
};

inline const GgufTensorType* find_gguf_type(uint32_t id) {
  for (const GgufTensorType& type : kGgufTensorTypes)
    if (type.id == id) return &type;
  return nullptr;
}

inline const GgufTensorType* find_gguf_type(DType dtype) {
  for (const GgufTensorType& type : kGgufTensorTypes)
    if (type.dtype == dtype) return &type;
  return nullptr;
}

}  // namespace qeng
