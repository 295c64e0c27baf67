#include "bindings/runtime.h"

#include <cstdlib>

#include "engine/program/rehearsal.h"
#include "engine/train/batch_stage.h"

namespace qeng {

namespace {

// Bytes that Lua's dropped tensors may hold before its collector is told to run: it sees 50 bytes where there are megabytes.
constexpr size_t kCollectEvery = size_t{256} << 20;

struct Runtime {
  explicit Runtime(std::unique_ptr<Backend> backend) : device(std::move(backend)), tape(device) {}
  Device device;
  Tape tape;
  std::unique_ptr<BatchStage> stage;
};

// Compiled code keeps the objects that it was compiled with; what has a finalizer is freed by the second collection.
void collect_garbage() {
  lua_State* L = lua::current();
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH);
  lua_gc(L, LUA_GCCOLLECT, 0);
  lua_gc(L, LUA_GCCOLLECT, 0);
}

DeviceChoice chosen;
std::unique_ptr<Runtime> current_runtime;
std::unique_ptr<Runtime> real_runtime;            // during a rehearsal
std::vector<std::unique_ptr<Runtime>> rehearsed;  // a handle that Lua has yet to collect may point to them

std::unique_ptr<Backend> make_backend() {
  if (chosen.name == "cpu" || (chosen.name == "auto" && cuda_devices().empty()))
    return make_cpu_backend(chosen.threads, chosen.isa);
  const size_t colon = chosen.name.find(':');
  return make_cuda_backend(colon == std::string::npos ? 0 : std::stoi(chosen.name.substr(colon + 1)));
}

void close_runtimes() {
  current_runtime.reset();  // before the device that it may rehearse
  rehearsed.clear();
  real_runtime.reset();
}

Runtime& runtime() {
  if (!current_runtime) {
    current_runtime = std::make_unique<Runtime>(make_backend());
    // exit() goes backwards: this is done before CUDA's libraries end, which registered when the device was opened.
    std::atexit(close_runtimes);
    current_runtime->device.set_budget(chosen.budget);
    current_runtime->device.set_collect(collect_garbage);
  }
  return *current_runtime;
}

constexpr const char* kScopes = "qeng.scopes";  // registry: an array of arrays of tensor userdata

// Pushes the innermost scope's array, or nothing (and false) outside of all scopes.
bool push_scope(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, kScopes);
  const int depth = lua_istable(L, -1) ? static_cast<int>(lua_objlen(L, -1)) : 0;
  if (depth == 0) {
    lua_pop(L, 1);
    return false;
  }
  lua_rawgeti(L, -1, depth);
  lua_remove(L, -2);
  return true;
}

}  // namespace

void choose_device(const DeviceChoice& choice) {
  if (current_runtime) fail("value", "device: choose it before the first tensor");
  const std::string& name = choice.name;
  const bool numbered = name.rfind("cuda:", 0) == 0 && name.size() > 5 && name.size() < 9 &&
                        name.find_first_not_of("0123456789", 5) == std::string::npos;
  if (name != "auto" && name != "cpu" && name != "cuda" && !numbered)
    fail("value", "device: '", name, "'; expected auto, cpu, cuda or cuda:N");
  if (name == "cuda" || numbered) {  // said at once, not when the first tensor is made
    std::string why;
    if (cuda_devices(&why).empty()) fail("unsupported", "device ", name, ": ", why, ". --device cpu runs without a GPU");
  }
  chosen = choice;
}
Device& device() { return runtime().device; }
Tape& tape() { return runtime().tape; }
BatchStage& batch_stage(const Batch& batch) {
  std::unique_ptr<BatchStage>& stage = runtime().stage;
  if (!stage || !stage->fits(batch)) stage = std::make_unique<BatchStage>(device(), batch);
  return *stage;
}
Rehearsing::Rehearsing(const Limits& limits, bool for_gpu) {
  if (real_runtime) fail("value", "rehearse: a rehearsal is going on already");
  if (runtime().device.capturing()) fail("value", "rehearse: a program is being captured");
  auto stage = std::make_unique<Runtime>(std::make_unique<Rehearsal>(runtime().device.backend(), limits, for_gpu));
  real_runtime = std::move(current_runtime);
  current_runtime = std::move(stage);
}
Rehearsing::~Rehearsing() {
  current_runtime->tape.clear();
  current_runtime->device.trim();
  rehearsed.push_back(std::move(current_runtime));
  current_runtime = std::move(real_runtime);
}
const Rehearsal& rehearsal() {
  if (!real_runtime)
    fail("value", "rehearsed: nothing is being rehearsed; call it in the function given to q.rehearse");
  return static_cast<const Rehearsal&>(current_runtime->device.backend());
}
bool device_in_use() { return current_runtime != nullptr; }

namespace scopes {

void enter(lua_State* L) {
  lua_getfield(L, LUA_REGISTRYINDEX, kScopes);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, kScopes);
  }
  lua_newtable(L);
  lua_rawseti(L, -2, static_cast<int>(lua_objlen(L, -2)) + 1);
  lua_pop(L, 1);
}

void leave(lua_State* L, int results) {
  const int top = lua_gettop(L);
  luaL_checkstack(L, 10, "scope");
  lua_newtable(L);  // kept: userdata -> true
  const int kept = lua_gettop(L);
  const auto keep = [&](int index) {
    if (!lua_isuserdata(L, index)) return;
    lua_pushvalue(L, index);
    lua_pushboolean(L, 1);
    lua_rawset(L, kept);
  };
  for (int i = top - results + 1; i <= top; ++i) {
    keep(i);
    if (!lua_istable(L, i)) continue;
    for (lua_pushnil(L); lua_next(L, i) != 0; lua_pop(L, 1)) keep(lua_gettop(L));
  }
  lua_getfield(L, LUA_REGISTRYINDEX, kScopes);
  const int all = lua_gettop(L), depth = static_cast<int>(lua_objlen(L, all));
  lua_rawgeti(L, all, depth);
  const int scope = lua_gettop(L);
  lua_pushnil(L);
  lua_rawseti(L, all, depth);
  const bool outer = push_scope(L);
  const int around = lua_gettop(L);
  for (int i = 1, n = static_cast<int>(lua_objlen(L, scope)); i <= n; ++i) {
    lua_rawgeti(L, scope, i);
    lua_pushvalue(L, -1);
    lua_rawget(L, kept);
    const bool stays = lua_toboolean(L, -1);
    lua_pop(L, 1);
    if (!stays) {
      static_cast<TensorPtr*>(lua_touserdata(L, -1))->reset();
    } else if (outer) {
      lua_rawseti(L, around, static_cast<int>(lua_objlen(L, around)) + 1);
      continue;
    }
    lua_pop(L, 1);
  }
  lua_settop(L, top);
}

}  // namespace scopes

namespace lua {

TensorPtr Value<TensorPtr>::read(lua_State* L, int index) {
  if (!is_class(L, index, ClassName<Tensor>::value)) expected(L, index, "Tensor");
  const TensorPtr& tensor = *static_cast<TensorPtr*>(lua_touserdata(L, index));
  if (!tensor) throw Problem{"this Tensor is closed: it was freed, or its scope has ended"};
  return tensor;
}

void Value<TensorPtr>::push(lua_State* L, const TensorPtr& tensor) {
  if (!tensor) return lua_pushnil(L);
  if (device_in_use() && device().allocated_since(false) > kCollectEvery) {
    device().allocated_since(true);
    lua_gc(L, LUA_GCCOLLECT, 0);
  }
  push_kept(L, tensor);
  if (push_scope(L)) {
    lua_pushvalue(L, -2);
    lua_rawseti(L, -2, static_cast<int>(lua_objlen(L, -2)) + 1);
    lua_pop(L, 1);
  }
}

void push_kept(lua_State* L, const TensorPtr& tensor) {
  new (lua_newuserdata(L, sizeof(TensorPtr))) TensorPtr(tensor);
  push_class(L, ClassName<Tensor>::value, &collect<Tensor>);
  lua_setmetatable(L, -2);
}

TensorPtr self_tensor(const Call& call) {
  try {
    return Value<TensorPtr>::read(call.L, 1);
  } catch (const Problem& problem) {
    fail("closed", call.name, ": ", problem.text);
  }
}

}  // namespace lua
}  // namespace qeng
