// The formulas of kernels/math as OpenCL C, so that there is one copy of them. Drivers need not know C++, so its words
// are replaced, by rules of the text that fit how these headers are written (clang-format's layout, and plain code):
//   taken        structs, enums, constants, and functions of devices (QENG_HD); of templates those for
//                Block::kFromGrid, once for each such format; all else is left out
//   const T& b   of a block format: a pointer to global memory; of another struct: its value
//   T& b         a pointer
//   const T* p   points to global memory, unless the function writes by a reference: then it is the caller's own
//   casts, braces that make values, constexpr and names that OpenCL C reserves: as C has them
// What these rules do not know, a driver's compiler refuses, and the conformance test with it.
#pragma once
#include <set>
#include <string>

namespace qeng::opencl {

class Translator {
 public:
  std::string translate(const std::string& header);  // each header after those it includes; includes are left out

 private:
  std::string item(const std::string& text);
  std::string structure(std::string text);
  std::string function(std::string text) const;
  std::set<std::string> blocks_, grids_;  // structs that are block formats, and those from grids
};

}  // namespace qeng::opencl
