#include "kernels/view.h"

#include "kernels/error.h"

namespace qeng {

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
  }
  return "?";
}

DType dtype_from_name(const std::string& name) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8})
    if (name == dtype_name(dtype)) return dtype;
  fail("dtype", "unknown dtype '", name, "': one of f32, bf16, f16, i32, i64, u8");
}

std::string shape_text(const View& view) {
  std::string text = std::string(dtype_name(view.dtype)) + " [";
  for (int i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.shape[i]);
  return text + "]";
}

}  // namespace qeng
