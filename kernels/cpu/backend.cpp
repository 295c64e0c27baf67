// The CPU as a Backend: dispatches operations to the overloads of run in cpu.h, and measures what the machine can do.
#include <cstring>
#include <fstream>

#include "kernels/backends.h"
#include "kernels/cpu/cpu.h"
#include "kernels/lm_head.h"
#include "kernels/system_memory.h"

namespace qeng {

namespace {

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "unknown CPU";
}

class CpuBackend : public Backend {
 public:
  CpuBackend(int threads, const isa::Table& table) : context_{threads, &table, {}, {}} {}

  std::string name() const override { return "cpu"; }
  std::string description() const override {
    return cpu_model() + ", " + std::to_string(context_.threads) +
           (context_.threads == 1 ? " thread, " : " threads, ") + context_.isa->name;
  }

  void run(const Op& op) override {
    std::visit([](const auto& concrete) { check_shapes(concrete); }, op);
    repeat(op);
  }
  void repeat(const Op& op) override {
    context_.scratch.reset();
    std::visit([this](const auto& concrete) { qeng::run(concrete, context_); }, op);
  }
  void synchronize() override {}
  void set_on_scratch(std::function<void(size_t)> grows) override { context_.scratch.set_on_grow(std::move(grows)); }

  void* allocate(size_t bytes) override { return allocate_memory(bytes); }
  void release(void* memory, size_t bytes) override { release_memory(memory, bytes); }
  void upload(void* device, const void* host, size_t bytes) override { std::memcpy(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { std::memcpy(host, device, bytes); }

  Memory memory() override { return system_memory(); }

  // Each chunk adds to all of the weight's gradient: as many rows as 512 MB of logits hold, at least 256, at most 1024.
  // They depend on the vocabulary alone, so that other rows of a step change no sum.
  int head_chunk(int64_t, int64_t vocab) const override {
    constexpr int64_t kMostBytes = int64_t{512} << 20;
    int rows = 1024;
    while (rows > 256 && rows * LmHeadParts::row(vocab) * 4 > kMostBytes) rows /= 2;
    return rows;
  }

  size_t limit_memory(Limit which) override { return limits_.*which == 0 ? cpu_limit_memory(which) : 0; }
  double limit(Limit which) override {
    if (limits_.*which == 0) limits_.*which = measure_limit(which, context_);
    return limits_.*which;
  }

 private:
  CpuContext context_;
  Limits limits_;
};

std::vector<DeviceInfo> list_devices(std::string*) {
  const auto cpu = make_cpu_backend();
  return {{cpu->name(), cpu->description(), cpu->memory().total, true}};
}

std::unique_ptr<Backend> make(int, const BackendOptions& options) {
  return make_cpu_backend(options.threads, options.isa);
}

}  // namespace

QENG_BACKEND(cpu, 0, list_devices, make)  // the last that `auto` takes

std::unique_ptr<Backend> make_cpu_backend(int threads, const std::string& isa) {
  if (threads < 0 || threads > 4096)
    fail("value", "cpu backend: ", threads, " threads; expected 0 (all cores) to 4096");
  const isa::Table* table = isa.empty() ? &isa::best() : isa::find(isa.c_str());
  if (!table) {
    std::string known;
    for (const char* name : isa::kNames) known += known.empty() ? name : std::string(", ") + name;
    fail("unsupported", "cpu backend: this machine does not run isa '", isa, "'; known: ", known);
  }
  return std::make_unique<CpuBackend>(threads ? threads : available_threads(), *table);
}

}  // namespace qeng
