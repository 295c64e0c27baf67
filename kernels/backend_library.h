// What libqeng_NAME.so, a backend in a shared library, shows to the executable that opens it: one function, found by
// name.
#pragma once
#include <string>
#include <vector>

#include "kernels/backends.h"

namespace qeng {

// Changes with what both sides must agree on. (Sizes stand for the layouts: the two are built from one checkout.)
constexpr size_t kBackendLibraryLayout = sizeof(Op) * 1000 + std::variant_size_v<Op>;

struct BackendLibrary {
  size_t layout = 0;
  std::vector<DeviceInfo> (*devices)(std::string* why) = nullptr;  // empty, with the reason, where there are none
  Backend* (*open)(int index) = nullptr;                           // throws Error; the caller owns it
};
using BackendLibraryEntry = BackendLibrary (*)();
constexpr const char* kBackendLibraryEntry = "qeng_backend_library";

}  // namespace qeng

#define QENG_BACKEND_LIBRARY(devices, open)                                                          \
  extern "C" __attribute__((visibility("default"))) qeng::BackendLibrary qeng_backend_library() {    \
    return {qeng::kBackendLibraryLayout, devices, [](int index) -> qeng::Backend* { return open; }}; \
  }
