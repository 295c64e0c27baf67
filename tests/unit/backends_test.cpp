// Backends that register themselves: a toy one, which nothing but this file knows, is found, listed and computed on by
// its name.
#include "kernels/backends.h"

#include "bindings/state.h"
#include "kernels/error.h"
#include "tests/catch.h"

namespace qeng {
namespace {

// The CPU under another name.
class Toy : public Backend {
 public:
  explicit Toy(int index) : index_(index), cpu_(make_cpu_backend(1)) {}
  std::string name() const override { return "toy:" + std::to_string(index_); }
  std::string description() const override { return "a toy"; }
  void run(const Op& op) override { cpu_->run(op); }
  void synchronize() override { cpu_->synchronize(); }
  void* allocate(size_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* memory, size_t bytes) override { cpu_->release(memory, bytes); }
  void upload(void* device, const void* host, size_t bytes) override { cpu_->upload(device, host, bytes); }
  void download(void* host, const void* device, size_t bytes) override { cpu_->download(host, device, bytes); }
  Memory memory() override { return cpu_->memory(); }
  double limit(Limit which) override { return cpu_->limit(which); }

 private:
  int index_;
  std::unique_ptr<Backend> cpu_;
};

std::vector<DeviceInfo> list_toys(std::string*) { return {{"toy:0", "a toy", 1}, {"toy:1", "a toy", 1}}; }
std::unique_ptr<Backend> make_toy(int index, const BackendOptions&) { return std::make_unique<Toy>(index); }

std::string message_of(const std::string& device) {
  try {
    find_device(device);
  } catch (const Error& error) {
    return error.code + ": " + error.what();
  }
  return "found";
}

}  // namespace

QENG_BACKEND(toy, -2, list_toys, make_toy)  // the last; auto takes the CPU

TEST_CASE("a backend that registers itself is found by name and number") {
  CHECK(find_device("toy").make()->name() == "toy:0");
  CHECK(find_device("toy:1").make()->name() == "toy:1");
  CHECK(find_device("cpu").make({1, ""})->name() == "cpu");
  for (int process = 0; process < 5; ++process) {  // of those that share a machine
    CHECK(find_device("toy", process).make()->name() == "toy:" + std::to_string(process % 2));
    CHECK(find_device("toy:1", process).index == 1);
    CHECK(find_device("cpu", process).index == 0);
  }
  CHECK(find_device("auto").kind->name != "toy");
  CHECK(backend_kinds().back().name == "toy");
}

TEST_CASE("a device that is not there is refused with the names of those that are") {
  for (const char* name : {"tpu", "toy:", "toy:x", "toy:-1", "toy:1000", "", ":1"})
    CHECK(message_of(name) == "value: device: '" + std::string(name) +
                                  "'; expected auto, cuda, cpu, opencl, toy, or one of several as NAME:1");
  const std::string missing = message_of("toy:2");
  CHECK(missing.find("unsupported: device toy:2: there is none of this number; this machine has ") == 0);
  CHECK(missing.find("cpu, toy:0, toy:1") != std::string::npos);
}

TEST_CASE("Lua computes on a registered backend by its name, with the CPU's bits") {
  LuaState L;
  const int status = luaL_dostring(L, R"(
    local q = require "qeng.core"
    local toy = q.runtime { device = "toy:1" }
    local function run()
      local a, w = q.randn({ 4, 32 }, { seed = 1 }), q.randn({ 8, 32 }, { seed = 2 })
      return q.linear(q.rmsnorm(a, q.randn({ 32 }, { seed = 3 }), 1e-6), w)
    end
    local there = toy:use(run)
    assert(there:runtime() == toy and tostring(toy) == "Runtime on toy:1: a toy")
    local used = {}
    for _, device in ipairs(q.devices()) do used[device.name] = device.in_use end
    assert(used["toy:1"] and used["toy:0"] == false)
    assert(there:hash() == q.runtime { device = "cpu", threads = 1 }:use(run):hash())
  )");
  INFO((status ? lua_tostring(L, -1) : ""));
  CHECK(status == 0);
}

}  // namespace qeng
