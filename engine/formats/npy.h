// NumPy's .npy files: one array each. Format: numpy.lib.format, versions 1 to 3. What a file says is checked before
// anything is read: Error("format") names the file and what is wrong, Error("unsupported") what is right and not read.
//
// Of the dtypes, little-endian f4, f2, i4, i8 and u1 are the engine's own. f8 is rounded to f32; b1 becomes u8; i1, i2
// and u2 become i32. `remark` then says so. Fortran's order of elements becomes C's.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "kernels/view.h"

namespace qeng {

struct NpyArray {
  std::vector<int64_t> shape;
  DType dtype;
  std::vector<std::byte> data;  // in C's order
  std::string remark;           // "" where the file's dtype is kept
};

NpyArray read_npy(const std::string& path);

// Writes atomically. Error("dtype") for a dtype that NumPy lacks.
void write_npy(const std::string& path, const std::vector<int64_t>& shape, DType dtype, const void* data);

}  // namespace qeng
