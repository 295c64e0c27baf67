// The backends that are shared libraries, so that one executable runs with and without a GPU, a driver or a vendor's
// libraries: "cuda", NVIDIA GPUs, by libqeng_cuda.so, and "opencl", any device that has OpenCL, by libqeng_opencl.so. A
// library is looked for beside the executable and in its ../lib, or is the file that $QENG_CUDA_LIBRARY names, or
// $QENG_OPENCL_LIBRARY.
#include <dlfcn.h>

#include <cstdlib>

#include "kernels/backend_library.h"
#include "kernels/shared_library.h"

namespace qeng {

namespace {

struct Known {
  const char *title, *file, *variable;
  const char* remedy;  // where there is none
};
constexpr Known kCuda{"CUDA", "libqeng_cuda.so", "QENG_CUDA_LIBRARY",
                      "build where the CUDA toolkit's nvcc is on the PATH"};
constexpr Known kOpenCl{
    "OpenCL", "libqeng_opencl.so", "QENG_OPENCL_LIBRARY",
    "build where OpenCL's headers and loader are, Debian's opencl-c-headers and ocl-icd-opencl-dev"};

struct Library {
  BackendLibrary functions;
  std::string why;  // not empty: there is none, and this is the reason
};

std::string find_library(const Known& known) {
  const char* const named = std::getenv(known.variable);
  return named ? named : own_library(known.file);
}

Library open_library(const Known& known) {
  const std::string path = find_library(known), title = known.title;
  if (path.empty())
    return {{}, "this qeng has no " + title + " backend: " + known.file + " is not beside it (" + known.remedy + ")"};
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: the runtime inside keeps state
  if (!handle) return {{}, "cannot load the " + title + " backend: " + dlerror()};
  const auto entry = reinterpret_cast<BackendLibraryEntry>(dlsym(handle, kBackendLibraryEntry));
  if (!entry) return {{}, path + " is no " + title + " backend of qeng"};
  const BackendLibrary functions = entry();
  if (functions.layout != kBackendLibraryLayout)
    return {{}, path + " was built from other sources than this qeng; build both together"};
  return {functions, ""};
}

template <const Known& known>
const Library& library() {
  static const Library opened = open_library(known);
  return opened;
}

template <const Known& known>
std::vector<DeviceInfo> list_devices(std::string* why) {
  std::string reason = library<known>().why;
  std::vector<DeviceInfo> devices;
  if (reason.empty()) devices = library<known>().functions.devices(&reason);
  if (why) *why = reason;
  return devices;
}

template <const Known& known>
std::unique_ptr<Backend> make(int index, const BackendOptions&) {
  return std::unique_ptr<Backend>(library<known>().functions.open(index));
}

}  // namespace

QENG_BACKEND(cuda, 10, list_devices<kCuda>, make<kCuda>)
// Below the CPU: `auto` does not take what lacks operations, and may be the CPU itself by another way.
QENG_BACKEND(opencl, -1, list_devices<kOpenCl>, make<kOpenCl>)

}  // namespace qeng
