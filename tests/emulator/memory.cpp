// Memory, copies, errors, the device's properties and the launch of kernels.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_map>

#include "tests/emulator/banks.h"
#include "tests/emulator/block.h"
#include "tests/emulator/runtime.h"

// Present where the program is linked with the address sanitizer.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* address, size_t size);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, size_t size);
}

namespace emulator {
int capability() {
  static const int value = [] {
    const char* text = std::getenv("QENG_EMULATOR_CC");
    return text ? static_cast<int>(std::strtod(text, nullptr) * 10 + 0.5) : 90;
  }();
  return value;
}

namespace {

constexpr size_t kMargin = 256;
constexpr unsigned char kMarginByte = 0xa5;
size_t margin() { return __asan_poison_memory_region ? 0 : kMargin; }

struct Allocation {
  size_t bytes;
  Kind kind;
};
std::map<uintptr_t, Allocation>& allocations() {
  static auto* map = new std::map<uintptr_t, Allocation>;
  return *map;
}
std::unordered_map<const void*, int>& shared_limits() {
  static auto* map = new std::unordered_map<const void*, int>;
  return *map;
}
size_t allocated = 0;
uint64_t version = 0;  // of the list of allocations
size_t total_memory() {
  static const size_t bytes = [] {
    const char* text = std::getenv("QENG_EMULATOR_MB");
    return (text ? std::strtoull(text, nullptr, 10) : 16384) << 20;
  }();
  return bytes;
}

int device_count() {  // their memory is one, so a process may use one of them
  static const int count = [] {
    const char* text = std::getenv("QENG_EMULATOR_DEVICES");
    return text ? std::atoi(text) : 1;
  }();
  return count;
}
thread_local int current_device = 0;
thread_local cudaError_t last = cudaSuccess;
cudaError_t stuck = cudaSuccess;
bool device_open = false;

int shared_optin() {  // compute capability 12 is that of smaller GPUs, after 10
  const int of = capability();
  return (of < 80 ? 64 : of == 80 || of == 87 ? 163 : of >= 90 && of < 120 ? 227 : 99) * 1024;
}
constexpr int kSharedDefault = 48 * 1024;

cudaError_t allocate(void** pointer, size_t bytes, Kind kind) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  if (!pointer) return result(cudaErrorInvalidValue);
  *pointer = nullptr;
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  if (bytes == 0) return cudaSuccess;
  if (kind == Kind::device && bytes > total_memory() - allocated) return result(cudaErrorMemoryAllocation);
  void* memory = nullptr;
  if (posix_memalign(&memory, kind == Kind::device ? 256 : 4096, bytes + margin()) != 0)
    return result(cudaErrorMemoryAllocation);
  std::memset(memory, 0xff, bytes);
  std::memset(static_cast<char*>(memory) + bytes, kMarginByte, margin());
  allocations()[reinterpret_cast<uintptr_t>(memory)] = {bytes, kind};
  ++version;
  if (kind == Kind::device) {
    allocated += bytes;
    if (__asan_poison_memory_region && !device_open) __asan_poison_memory_region(memory, bytes);
  }
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t release(void* pointer, Kind kind) {
  const std::lock_guard guard(lock());
  if (!pointer) return sticky() ? result(sticky()) : cudaSuccess;
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  const cudaError_t status = finish_all();
  const auto found = allocations().find(reinterpret_cast<uintptr_t>(pointer));
  if (found == allocations().end() || found->second.kind != kind) return result(cudaErrorInvalidValue);
  if (kind == Kind::device) allocated -= found->second.bytes;
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(pointer, found->second.bytes);
  allocations().erase(found);
  ++version;
  std::free(pointer);
  return status;
}

cudaError_t check_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, Kind* to_kind, Kind* from_kind) {
  bool to_valid = false, from_valid = false;
  *to_kind = kind_of(to, bytes, &to_valid), *from_kind = kind_of(from, bytes, &from_valid);
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (!to_valid || !from_valid || kind < 0 || kind > cudaMemcpyDefault) return cudaErrorInvalidValue;
  if (kind != cudaMemcpyDefault &&
      (to_device != (*to_kind == Kind::device) || from_device != (*from_kind == Kind::device)))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

}  // namespace

// Every call comes by here. As with CUDA, the first one asks exit() to end the runtime; what is called after that is
// lost.
std::recursive_mutex& lock() {
  static auto* mutex = new std::recursive_mutex;
  static bool ended = false;
  [[maybe_unused]] static const int asked = std::atexit([] { ended = true; });
  if (ended) {
    std::fputs("emulator: the CUDA runtime was called after exit() had ended it\n", stderr);
    std::_Exit(139);  // as after the crash that a device has then
  }
  return *mutex;
}
cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) last = error;
  return error;
}
cudaError_t sticky() { return stuck; }
void set_sticky(cudaError_t error) { stuck = error; }

Kind kind_of(const void* pointer, size_t bytes, bool* valid) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  auto next = allocations().upper_bound(address);
  *valid = pointer != nullptr || bytes == 0;
  if (next == allocations().begin()) return Kind::pageable;
  const auto& [begin, allocation] = *--next;
  if (address - begin >= allocation.bytes) return Kind::pageable;
  *valid = bytes <= allocation.bytes - (address - begin);
  return allocation.kind;
}

uint64_t allocation_version() { return version; }
bool find_allocation(uintptr_t address, uintptr_t* begin, uintptr_t* end) {
  auto next = allocations().upper_bound(address);
  if (next == allocations().begin()) return false;
  --next;
  *begin = next->first, *end = next->first + next->second.bytes;
  return address < *end;
}

void open_device_memory(bool open) {
  if (!__asan_poison_memory_region || open == device_open) return;
  device_open = open;
  for (const auto& [begin, allocation] : allocations()) {
    if (allocation.kind != Kind::device) continue;
    const void* memory = reinterpret_cast<const void*>(begin);
    open ? __asan_unpoison_memory_region(memory, allocation.bytes)
         : __asan_poison_memory_region(memory, allocation.bytes);
  }
}

bool check_margins(const char* doing) {
  if (margin() == 0) return true;
  for (const auto& [begin, allocation] : allocations()) {
    const auto* memory = reinterpret_cast<const unsigned char*>(begin);
    for (size_t byte = allocation.bytes; byte < allocation.bytes + kMargin; ++byte)
      if (memory[byte] != kMarginByte) {
        set_report(std::string(doing) + ": wrote byte " + std::to_string(byte) + " of an allocation of " +
                   std::to_string(allocation.bytes) + " bytes");
        std::fprintf(stderr, "emulator: %s\n", last_report().c_str());
        return false;
      }
  }
  return true;
}

cudaError_t launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   std::function<void()> body, bool ahead) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  std::string wrong;
  if (threads == 0 || threads > 1024 || block.z > 64)
    wrong = "a block has 1 to 1024 threads, of which at most 64 along z";
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535)
    wrong = "a grid has at least one block, and at most 65535 along y and z";
  const auto limit = shared_limits().find(kernel);
  const size_t most = limit == shared_limits().end() ? kSharedDefault : static_cast<size_t>(limit->second);
  const bool too_much = shared > most;
  if (too_much)
    wrong = std::to_string(shared) + " bytes of shared memory exceed the " + std::to_string(most) +
            " that cudaFuncSetAttribute allows the kernel";
  if (!wrong.empty()) {
    set_report("kernel " + std::string(name) + ", grid " + std::to_string(grid.x) + "x" + std::to_string(grid.y) + "x" +
               std::to_string(grid.z) + ", " + std::to_string(threads) + " threads: " + wrong);
    std::fprintf(stderr, "emulator: %s\n", last_report().c_str());
    return result(too_much ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration);
  }
  note_launch(kernel);
  return result(enqueue(stream, [text = std::string(name), grid, block, shared, run = std::move(body), ahead, kernel] {
    bank_kernel(kernel);
    return run_grid(text.c_str(), grid, block, shared, run, ahead) && check_margins(("kernel " + text).c_str());
  }));
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaMalloc(void** pointer, size_t bytes) { return allocate(pointer, bytes, Kind::device); }
cudaError_t cudaMallocHost(void** pointer, size_t bytes) { return allocate(pointer, bytes, Kind::pinned); }
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) { return allocate(pointer, bytes, Kind::pinned); }
cudaError_t cudaFree(void* pointer) { return release(pointer, Kind::device); }
cudaError_t cudaFreeHost(void* pointer) { return release(pointer, Kind::pinned); }

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  const std::lock_guard guard(lock());
  bool valid = false;
  if (kind_of(host, 1, &valid) != Kind::pinned) return result(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  const std::lock_guard guard(lock());
  bool valid = false;
  const Kind kind = kind_of(pointer, 1, &valid);
  *attributes = {kind == Kind::device   ? cudaMemoryTypeDevice
                 : kind == Kind::pinned ? cudaMemoryTypeHost
                                        : cudaMemoryTypeUnregistered,
                 0, kind == Kind::pageable ? nullptr : const_cast<void*>(pointer),
                 kind == Kind::pinned ? const_cast<void*>(pointer) : nullptr};
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  Kind to_kind, from_kind;
  if (const cudaError_t error = check_copy(to, from, bytes, kind, &to_kind, &from_kind)) return result(error);
  if (const cudaError_t error =
          enqueue(nullptr, [=] { return bytes == 0 || std::memmove(to, from, bytes) != nullptr; }))
    return result(error);
  return result(finish(nullptr));
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  Kind to_kind, from_kind;
  if (const cudaError_t error = check_copy(to, from, bytes, kind, &to_kind, &from_kind)) return result(error);
  if (bytes == 0) return cudaSuccess;
  const bool pageable = to_kind == Kind::pageable || from_kind == Kind::pageable;
  if (CUstream_st* captured = capturing(stream); captured && pageable)
    return result(spoil(*captured->capture, cudaErrorStreamCaptureUnsupported));
  if (from_kind == Kind::pageable && to_kind == Kind::device) {  // the driver keeps a copy before it returns
    const auto* source = static_cast<const char*>(from);
    return result(enqueue(stream, [to, data = std::vector<char>(source, source + bytes)] {
      std::memcpy(to, data.data(), data.size());
      return true;
    }));
  }
  if (const cudaError_t error = enqueue(stream, [=] { return std::memmove(to, from, bytes) != nullptr; }))
    return result(error);
  return pageable ? result(finish(stream)) : cudaSuccess;  // to pageable memory, the driver waits
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const std::lock_guard guard(lock());
  if (sticky()) return result(sticky());
  bool valid = false;
  if (kind_of(to, bytes, &valid) == Kind::pageable || !valid)
    return result(bytes ? cudaErrorInvalidValue : cudaSuccess);
  return result(enqueue(stream, [=] { return std::memset(to, value, bytes) != nullptr; }));
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  const std::lock_guard guard(lock());
  if (const cudaError_t error = refuse_in_capture()) return result(error);
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

// ---- the device

cudaError_t cudaGetDeviceCount(int* count) { return *count = device_count(), cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  return current_device = device, cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) { return *device = current_device, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const std::lock_guard guard(lock());
  *total = total_memory(), *free = total_memory() - allocated;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->totalGlobalMem = total_memory();
  properties->sharedMemPerBlock = kSharedDefault;
  properties->sharedMemPerBlockOptin = static_cast<size_t>(shared_optin());
  properties->sharedMemPerMultiprocessor = static_cast<size_t>(shared_optin()) + (capability() < 80 ? 0 : 1024);
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  const int block[] = {1024, 1024, 64}, grid[] = {0x7fffffff, 65535, 65535};
  std::memcpy(properties->maxThreadsDim, block, sizeof block);
  std::memcpy(properties->maxGridSize, grid, sizeof grid);
  properties->major = capability() / 10, properties->minor = capability() % 10;
  properties->multiProcessorCount = 4;  // few, so that grids of a wave or more are small
  properties->maxThreadsPerMultiProcessor = capability() < 80 ? 1024 : 2048;
  properties->l2CacheSize = 32 << 20;
  properties->memoryBusWidth = 256;
  properties->canMapHostMemory = properties->unifiedAddressing = properties->concurrentKernels = 1;
  properties->asyncEngineCount = 2;
  const char* one = std::getenv("QENG_EMULATOR_ONE_MEMORY");
  properties->integrated = properties->pageableMemoryAccess = properties->pageableMemoryAccessUsesHostPageTables =
      one && std::string(one) != "0";
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device)) return error;
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = properties.maxThreadsPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = kSharedDefault; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMultiProcessorCount: *value = properties.multiProcessorCount; break;
    case cudaDevAttrL2CacheSize: *value = properties.l2CacheSize; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = properties.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrComputeCapabilityMajor: *value = properties.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = properties.minor; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = shared_optin() + 1024; break;
    case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = shared_optin(); break;
    default: return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

// ---- kernels

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const std::lock_guard guard(lock());
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;  // the carveout is a hint
  if (value < 0 || value > shared_optin()) return result(cudaErrorInvalidValue);
  shared_limits()[kernel] = value;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const std::lock_guard guard(lock());
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->binaryVersion = attributes->ptxVersion = capability();
  const auto limit = shared_limits().find(kernel);
  attributes->maxDynamicSharedSizeBytes = limit == shared_limits().end() ? kSharedDefault : limit->second;
  return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() {
  const std::lock_guard guard(lock());
  return sticky() ? sticky() : last;
}
cudaError_t cudaDeviceReset() {
  const std::lock_guard guard(lock());
  set_sticky(cudaSuccess);
  last = cudaSuccess;
  return cudaSuccess;
}

namespace {
struct ErrorWords {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorWords kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};
}  // namespace
const char* cudaGetErrorName(cudaError_t error) {
  for (const ErrorWords& words : kErrors)
    if (words.error == error) return words.name;
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  static thread_local std::string text;
  for (const ErrorWords& words : kErrors)
    if (words.error == error) {
      text = words.text;
      const std::lock_guard guard(lock());
      if ((error == cudaErrorLaunchFailure || error == cudaErrorInvalidConfiguration) && !last_report().empty())
        text += ": " + last_report();
      return text.c_str();
    }
  return "unrecognized error code";
}
