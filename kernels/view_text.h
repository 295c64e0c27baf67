// Views in words, apart from view.h: <string> would cost each file of kernels a second of compilation.
#pragma once
#include <string>

#include "kernels/view.h"

namespace qeng {

DType dtype_from_name(const std::string& name);  // in lower or upper case; throws Error("dtype")
std::string shape_text(const View& view);        // "bf16 [512, 14, 64]"

}  // namespace qeng
