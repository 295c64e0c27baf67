// The kinds of backends that this program has. Each registers itself in a file of its own, before main():
//
//     QENG_BACKEND(tpu, 5, list_devices, make)
//
// and is then known to users as "tpu" or "tpu:1"; nobody else names it. A static library's file that nothing calls is
// kept by the linker where CMakeLists.txt lists it in QENG_BACKENDS.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace qeng {

struct DeviceInfo {
  std::string name;         // as the backend's name(): "cpu", "cuda:1"
  std::string description;  // "NVIDIA H200"
  size_t bytes = 0;         // of its memory
  bool one_memory = false;  // that is the host's: Backend::reads_host_memory()
  bool streams = true;      // weights may be streamed to it: Backend::side_copies()
};

// For backends that run on the host's cores; others have no use for them.
struct BackendOptions {
  int threads = 0;  // 0: the cores this process may use
  std::string isa;  // "": the best
};

struct BackendKind {
  std::string name;
  int priority;  // `auto` takes a device of the highest that has one
  // In order of their index; empty with the reason in *why, which may be null.
  std::vector<DeviceInfo> (*devices)(std::string* why);
  std::unique_ptr<Backend> (*make)(int index, const BackendOptions& options);  // of a device that is there
};

bool register_backend(BackendKind kind);
const std::vector<BackendKind>& backend_kinds();  // by falling priority

// "auto", "tpu" or "tpu:1". Error("value") lists the names that there are, Error("unsupported") says why the device is
// not there and which are. process: of several that share a machine's devices out, the number, from 0: a name without a
// number is the first device of its kind to process 0, the second to process 1, and so on in turn.
struct FoundDevice {
  const BackendKind* kind;
  int index;
  std::unique_ptr<Backend> make(const BackendOptions& options = {}) const { return kind->make(index, options); }
};
FoundDevice find_device(const std::string& name, int process = 0);

}  // namespace qeng

#define QENG_BACKEND(name, priority, devices, make)                                    \
  extern "C" {                                                                         \
  bool qeng_backend_##name = qeng::register_backend({#name, priority, devices, make}); \
  }
