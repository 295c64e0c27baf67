// The element types of safetensors, with their widths; the engine computes with some of them.
// The format has no types of less than a byte: a one_bit or ternary tensor is kept as its words, U32 of [..., words of
// a row], and the file's metadata says so: "qeng.dtype:NAME" = "one_bit".
#pragma once
#include <optional>
#include <string_view>

#include "kernels/view.h"

namespace qeng {

struct SafeTensorsType {
  const char* name;
  int bits;
  std::optional<DType> dtype;
};

inline constexpr SafeTensorsType kSafeTensorsTypes[] = {
    {"F32", 32, DType::f32},      {"BF16", 16, DType::bf16},    {"F16", 16, DType::f16},
    {"I32", 32, DType::i32},      {"I64", 64, DType::i64},      {"U8", 8, DType::u8},
    {"BOOL", 8, std::nullopt},    {"I8", 8, std::nullopt},      {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},    {"U64", 64, std::nullopt},
    {"F64", 64, std::nullopt},    {"C64", 64, std::nullopt},    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
};

inline const SafeTensorsType* find_safetensors_type(std::string_view name) {
  for (const SafeTensorsType& type : kSafeTensorsTypes)
    if (name == type.name) return &type;
  return nullptr;
}

inline constexpr const char* kPackedKey = "qeng.dtype:";
constexpr bool is_packed_words(DType dtype) { return dtype == DType::one_bit || dtype == DType::ternary; }
constexpr int64_t word_elements(DType dtype) { return dtype_info(dtype).elements * 4 / dtype_info(dtype).bytes; }

// What an element in the file takes, and what its data is aligned to.
constexpr size_t stored_width(DType dtype) { return is_packed_words(dtype) ? 4 : dtype_size(dtype); }

inline const char* safetensors_type_name(DType dtype) {
  if (is_packed_words(dtype)) return "U32";
  for (const SafeTensorsType& type : kSafeTensorsTypes)
    if (type.dtype == dtype) return type.name;
  return "?";
}

}  // namespace qeng
