// What libqeng_cuda.so shows to the executable that opens it: one function, found by name.
#pragma once
#include <string>
#include <vector>

#include "kernels/backends.h"

namespace qeng {

// Changes with what both sides must agree on. (Sizes stand for the layouts: the two are built from one checkout.)
constexpr size_t kCudaLibraryLayout = sizeof(Op) * 1000 + std::variant_size_v<Op>;

struct CudaLibrary {
  size_t layout = 0;
  std::vector<DeviceInfo> (*devices)(std::string* why) = nullptr;  // empty, with the reason, where there are none
  Backend* (*open)(int index) = nullptr;                           // throws Error; the caller owns it
};
using CudaLibraryEntry = CudaLibrary (*)();
constexpr const char* kCudaLibraryEntry = "qeng_cuda_library";

}  // namespace qeng
