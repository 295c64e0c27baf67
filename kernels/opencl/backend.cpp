// A device with OpenCL as a Backend.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/backend_library.h"
#include "kernels/fault_text.h"
#include "kernels/lm_head.h"
#include "kernels/opencl/opencl.h"
#include "kernels/view_text.h"

namespace qeng::opencl {

namespace {

template <class T>
T device_info(cl_device_id device, cl_device_info what) {
  T value{};
  clGetDeviceInfo(device, what, sizeof value, &value, nullptr);
  return value;
}
std::string device_text(cl_device_id device, cl_device_info what) {
  char text[512] = {};
  clGetDeviceInfo(device, what, sizeof text - 1, text, nullptr);
  return text;
}

// What a device lacks that this backend needs; empty for most.
std::string lacks(cl_device_id device) {
  const auto memory = device_info<cl_device_svm_capabilities>(device, CL_DEVICE_SVM_CAPABILITIES);
  if (!(memory & CL_DEVICE_SVM_COARSE_GRAIN_BUFFER)) return "shared virtual memory";
  if (device_info<size_t>(device, CL_DEVICE_MAX_WORK_GROUP_SIZE) < kLanes) return "work groups of 64 items";
  if (device_info<cl_ulong>(device, CL_DEVICE_LOCAL_MEM_SIZE) < 32768) return "32 KB of local memory";
  if (!device_info<cl_bool>(device, CL_DEVICE_COMPILER_AVAILABLE)) return "a compiler";
  return "";
}

// Those that can be used come first, and of these GPUs.
std::vector<cl_device_id> all_devices() {
  cl_uint count = 0;
  if (clGetPlatformIDs(0, nullptr, &count) != CL_SUCCESS) return {};
  std::vector<cl_platform_id> platforms(count);
  clGetPlatformIDs(count, platforms.data(), nullptr);
  std::vector<cl_device_id> devices;
  for (cl_platform_id platform : platforms) {
    if (clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    devices.resize(devices.size() + count);
    clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, devices.data() + devices.size() - count, nullptr);
  }
  const auto rank = [](cl_device_id device) {
    const bool is_gpu = device_info<cl_device_type>(device, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_GPU;
    return (lacks(device).empty() ? 0 : 2) + (is_gpu ? 0 : 1);
  };
  std::stable_sort(devices.begin(), devices.end(), [&](auto a, auto b) { return rank(a) < rank(b); });
  return devices;
}

class OpenClBackend : public Backend {
 public:
  explicit OpenClBackend(int index) : index_(index), context_(find(index)) {}
  ~OpenClBackend() override { clFinish(context_.queue); }

  std::string name() const override { return "opencl:" + std::to_string(index_); }
  std::string description() const override {
    return device_text(context_.device, CL_DEVICE_NAME) + ", " + device_text(context_.device, CL_DEVICE_VERSION);
  }

  void run(const Op& op) override {
    std::visit([](const auto& concrete) { check_shapes(concrete); }, op);
    for_each_view(op, [&](const char* label, const View& view, Access) {
      if (view.interleaved)
        fail("dtype", op_name(op), ": ", label, " is ", shape_text(view), ", whose rows are interleaved, as the CPU ",
             "alone reads them: load it for ", name());
    });
    context_.scratch.reset();
    std::visit([this](const auto& concrete) { opencl::run(concrete, context_); }, op);
  }

  void synchronize() override {
    Fault fault{};
    context_.copy(&fault, context_.fault, sizeof fault, true);
    if (fault.kind == FaultKind::none) return;
    const Fault none{};
    context_.copy(context_.fault, &none, sizeof none, true);
    throw_fault(fault);
  }

  std::unique_ptr<SideCopies> side_copies() override {
    fail("unsupported", "opencl: weights are not streamed to this device; keep them in its memory");
  }

  void* allocate(size_t bytes) override {
    void* memory = context_.allocate(bytes);
    if (!memory) {
      if (bytes > context_.most_at_once)
        fail("memory", name(), ": ", bytes, " bytes in one tensor; its driver gives at most ", context_.most_at_once);
      const Memory left = this->memory();
      fail("memory", name(), ": no room for ", bytes, " bytes; about ", left.free, " of ", left.total,
           " are free. Use fewer or shorter rows, or recompute activations");
    }
    return memory;
  }
  void release(void* memory, size_t bytes) override { context_.release(memory, bytes); }
  void set_reclaim(std::function<void()> reclaim) override { context_.scratch.reclaim = std::move(reclaim); }
  void set_on_scratch(std::function<void(size_t)> grows) override { context_.scratch.grows = std::move(grows); }

  void upload(void* device, const void* host, size_t bytes) override { context_.copy(device, host, bytes, true); }
  void download(void* host, const void* device, size_t bytes) override {
    context_.copy(host, device, bytes, true);
    synchronize();
  }
  bool host_memory() const override { return false; }
  int head_chunk(int64_t tokens, int64_t vocab) const override {
    return gpu_head_chunk(tokens, vocab, context_.total_memory);
  }

  // OpenCL does not tell what others use.
  Memory memory() override {
    return {context_.total_memory - std::min(context_.total_memory, context_.allocated), context_.total_memory};
  }

  size_t limit_memory(Limit which) override { return limits_.*which == 0 ? 2 * kMeasured : 0; }
  double limit(Limit which) override {
    if (limits_.*which == 0) limits_.*which = measure(which);
    return limits_.*which;
  }

 private:
  static constexpr size_t kMeasured = size_t{32} << 20;  // bytes: more than caches hold, but of large processors

  static cl_device_id find(int index) {
    const std::vector<cl_device_id> devices = all_devices();
    if (index >= static_cast<int>(devices.size())) fail("unsupported", "opencl:", index, ": there is none");
    cl_device_id device = devices[static_cast<size_t>(index)];
    if (const std::string what = lacks(device); !what.empty())
      fail("unsupported", "opencl:", index, " is ", device_text(device, CL_DEVICE_NAME), ", which lacks ", what);
    return device;
  }

  // The best of three: a copy, or a product of matrices with 512 rows and columns.
  double measure(Limit which) {
    char* memory = static_cast<char*>(allocate(2 * kMeasured));
    const char zero = 0;
    context_.fill(memory, &zero, 1, 2 * kMeasured);
    const bool bandwidth = which == &Limits::bandwidth;
    const DType dtype = which == &Limits::flops_bf16 ? DType::bf16 : DType::f32;
    constexpr int64_t kSize = 512;
    const View a(memory, dtype, {kSize, kSize}), c(memory + kMeasured, dtype, {kSize, kSize});
    const Op op = bandwidth
                      ? Op(Copy{View(memory, DType::u8, {kMeasured}), View(memory + kMeasured, DType::u8, {kMeasured})})
                      : Op(Matmul{.a = a, .b = a, .c = c});
    double best = 0;
    for (int turn = 0; turn < 4; ++turn) {  // the first compiles
      run(op), synchronize();
      const auto begin = std::chrono::steady_clock::now();
      run(op), synchronize();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      best = std::max(best, (bandwidth ? 2.0 * kMeasured : 2.0 * kSize * kSize * kSize) / seconds.count());
    }
    release(memory, 2 * kMeasured);
    return best;
  }

  int index_;
  Context context_;
  Limits limits_;
};

std::vector<DeviceInfo> list_devices(std::string* why) {
  std::vector<DeviceInfo> list;
  for (cl_device_id device : all_devices())
    list.push_back({"opencl:" + std::to_string(list.size()), device_text(device, CL_DEVICE_NAME),
                    device_info<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE), false, false});
  if (list.empty())
    *why =
        "no driver for OpenCL is installed on this machine; a GPU's vendor has one, and Debian's pocl-opencl-icd "
        "is one for the CPU";
  return list;
}

const char* status_name(cl_int status) {
  switch (status) {
    case CL_DEVICE_NOT_AVAILABLE: return "CL_DEVICE_NOT_AVAILABLE";
    case CL_MEM_OBJECT_ALLOCATION_FAILURE: return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case CL_OUT_OF_RESOURCES: return "CL_OUT_OF_RESOURCES";
    case CL_OUT_OF_HOST_MEMORY: return "CL_OUT_OF_HOST_MEMORY";
    case CL_BUILD_PROGRAM_FAILURE: return "CL_BUILD_PROGRAM_FAILURE";
    case CL_INVALID_VALUE: return "CL_INVALID_VALUE";
    case CL_INVALID_KERNEL_NAME: return "CL_INVALID_KERNEL_NAME";
    case CL_INVALID_ARG_INDEX: return "CL_INVALID_ARG_INDEX";
    case CL_INVALID_ARG_VALUE: return "CL_INVALID_ARG_VALUE";
    case CL_INVALID_ARG_SIZE: return "CL_INVALID_ARG_SIZE";
    case CL_INVALID_KERNEL_ARGS: return "CL_INVALID_KERNEL_ARGS";
    case CL_INVALID_WORK_GROUP_SIZE: return "CL_INVALID_WORK_GROUP_SIZE";
    case CL_INVALID_WORK_ITEM_SIZE: return "CL_INVALID_WORK_ITEM_SIZE";
    default: return "a status of its own";
  }
}

}  // namespace

void check_cl(cl_int status, const char* doing) {
  if (status == CL_SUCCESS) return;
  const bool memory = status == CL_MEM_OBJECT_ALLOCATION_FAILURE || status == CL_OUT_OF_HOST_MEMORY;
  fail(memory ? "memory" : "opencl", "opencl: ", doing, ": ", status_name(status), " (", status, ")");
}

Context::Context(cl_device_id of) : device(of) {
  cl_int status = 0;
  context = clCreateContext(nullptr, 1, &device, nullptr, nullptr, &status);
  check_cl(status, "opening the device");
  queue = clCreateCommandQueueWithProperties(context, device, nullptr, &status);
  check_cl(status, "creating a queue");
  programs = std::make_unique<Programs>(context, device);
  total_memory = device_info<cl_ulong>(device, CL_DEVICE_GLOBAL_MEM_SIZE);
  most_at_once = device_info<cl_ulong>(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
  fault = static_cast<Fault*>(allocate(sizeof(Fault)));
  const Fault none{};
  copy(fault, &none, sizeof none, true);
}

Context::~Context() {
  scratch.clear();
  release(fault, sizeof(Fault));
  clFinish(queue);
  programs.reset();
  clReleaseCommandQueue(queue);
  clReleaseContext(context);
}

void* Context::allocate(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + 63) / 64 * 64;
  void* memory = clSVMAlloc(context, CL_MEM_READ_WRITE, rounded, 64);
  if (!memory) {  // what was released is freed when its turn comes
    clFinish(queue);
    memory = clSVMAlloc(context, CL_MEM_READ_WRITE, rounded, 64);
  }
  if (memory) allocated += rounded;
  return memory;
}

void Context::release(void* memory, size_t bytes) {
  if (!memory) return;
  allocated -= (std::max<size_t>(bytes, 1) + 63) / 64 * 64;
  clEnqueueSVMFree(queue, 1, &memory, nullptr, nullptr, 0, nullptr, nullptr);
}

void Context::fill(void* memory, const void* pattern, size_t pattern_bytes, size_t bytes) {
  if (bytes)
    check_cl(clEnqueueSVMMemFill(queue, memory, pattern, pattern_bytes, bytes, 0, nullptr, nullptr), "filling memory");
}

void Context::copy(void* to, const void* from, size_t bytes, bool wait) {
  if (bytes) check_cl(clEnqueueSVMMemcpy(queue, wait, to, from, bytes, 0, nullptr, nullptr), "copying");
}

void* Scratch::take_bytes(size_t bytes) {
  if (used_ == blocks_.size()) blocks_.emplace_back();
  Block& block = blocks_[used_++];
  if (block.bytes < bytes) {
    const size_t rounded = (bytes + 65535) / 65536 * 65536;
    if (grows) grows(rounded);
    context_.release(block.memory, block.bytes);
    block = {};
    void* memory = context_.allocate(rounded);
    if (!memory && reclaim) reclaim(), memory = context_.allocate(rounded);
    if (!memory)
      fail("memory", "opencl: no room for ", rounded, " bytes of scratch memory; the driver gives at most ",
           context_.most_at_once, " at once");
    block = {memory, rounded};
  }
  return block.memory;
}

void Scratch::clear() {
  for (const Block& block : blocks_) context_.release(block.memory, block.bytes);
  blocks_.clear();
}

void set_argument(Context& context, cl_kernel kernel, cl_uint index, const void* memory) {
  const void* some = memory ? memory : context.fault;  // drivers may refuse null; nothing is read there
  check_cl(clSetKernelArgSVMPointer(kernel, index, some), "setting an argument");
}

void enqueue(Context& context, cl_kernel kernel, const Range& range) {
  for (const size_t size : range.global)
    if (size == 0) return;
  check_cl(clEnqueueNDRangeKernel(context.queue, kernel, 3, nullptr, range.global, range.local, 0, nullptr, nullptr),
           "starting a kernel");
}

}  // namespace qeng::opencl

QENG_BACKEND_LIBRARY(&qeng::opencl::list_devices, new qeng::opencl::OpenClBackend(index))
