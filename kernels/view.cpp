#include <cctype>

#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

DType dtype_from_name(const std::string& name) {
  std::string lower = name, known;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (int i = 0; i < kDTypeCount; ++i) {
    if (lower == kDTypes[i].name) return static_cast<DType>(i);
    known += (i ? ", " : "") + std::string(kDTypes[i].name);
  }
  fail("dtype", "unknown dtype '", name, "': one of ", known);
}

std::string shape_text(const View& view) {
  std::string text = std::string(dtype_name(view.dtype)) + " [";
  for (int i = 0; i < view.rank; ++i) text += (i ? ", " : "") + std::to_string(view.shape[i]);
  return text + "]";
}

}  // namespace qeng
