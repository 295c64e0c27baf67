// The backend "cuda": NVIDIA GPUs, by libqeng_cuda.so, so that one executable runs with and without a GPU, a driver or
// CUDA's libraries. The library is looked for beside the executable and in its ../lib, or is the file that
// $QENG_CUDA_LIBRARY names.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "kernels/backends.h"
#include "kernels/cuda/library.h"

namespace qeng {

namespace {

namespace fs = std::filesystem;

struct Library {
  CudaLibrary functions;
  std::string why;  // not empty: there is none, and this is the reason
};

std::string find_library() {
  if (const char* named = std::getenv("QENG_CUDA_LIBRARY")) return named;
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  for (const fs::path& path : {folder / "libqeng_cuda.so", folder / "../lib/libqeng_cuda.so"})
    if (fs::exists(path, ignored)) return path;
  return "";
}

Library open_library() {
  const std::string path = find_library();
  if (path.empty())
    return {{},
            "this qeng has no CUDA backend: libqeng_cuda.so is not beside it (build where the CUDA toolkit's nvcc is "
            "on the PATH)"};
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: the runtime inside keeps state
  if (!handle) return {{}, std::string("cannot load the CUDA backend: ") + dlerror()};
  const auto entry = reinterpret_cast<CudaLibraryEntry>(dlsym(handle, kCudaLibraryEntry));
  if (!entry) return {{}, path + " is no CUDA backend of qeng"};
  const CudaLibrary functions = entry();
  if (functions.layout != kCudaLibraryLayout)
    return {{}, path + " was built from other sources than this qeng; build both together"};
  return {functions, ""};
}

const Library& library() {
  static const Library opened = open_library();
  return opened;
}

std::vector<DeviceInfo> list_devices(std::string* why) {
  std::string reason = library().why;
  std::vector<DeviceInfo> devices;
  if (reason.empty()) devices = library().functions.devices(&reason);
  if (why) *why = reason;
  return devices;
}

std::unique_ptr<Backend> make(int index, const BackendOptions&) {
  return std::unique_ptr<Backend>(library().functions.open(index));
}

}  // namespace

QENG_BACKEND(cuda, 10, list_devices, make)

}  // namespace qeng
