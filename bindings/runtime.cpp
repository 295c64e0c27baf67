#include "bindings/runtime.h"

#include <cstdlib>
#include <utility>

#include "engine/autograd/expression.h"
#include "engine/program/rehearsal.h"
#include "engine/ranks/ranks.h"
#include "kernels/backends.h"

namespace qeng {

namespace {

// Bytes that Lua's dropped tensors may hold before its collector is told to run: it sees 50 bytes where there are
// megabytes.
constexpr size_t kCollectEvery = size_t{256} << 20;

// Compiled code keeps the objects that it was compiled with; what has a finalizer is freed by the second collection.
void collect_garbage() {
  lua_State* L = lua::current();
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_FLUSH);
  lua_gc(L, LUA_GCCOLLECT, 0);
  lua_gc(L, LUA_GCCOLLECT, 0);
}

RuntimeChoice chosen;                      // of the default runtime
std::shared_ptr<Runtime> default_runtime;  // null until the first use
std::shared_ptr<Runtime> used;             // the runtime in use, null: the default one

// Of a tensor that Lua has: the same as long as it does.
bool holds_runtime(const Tensor& tensor) {
  const Runtime* runtime = tensor.device().runtime();
  return runtime && runtime != default_runtime.get();
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

void finish_runtimes() {
  for (Runtime* left : Runtime::all()) try {
      left->device().backend().synchronize();
    } catch (const std::exception&) {  // nobody waits for it
    }
}

void end_runtimes() {
  default_runtime.reset();
  finish_runtimes();
}

void choose_device(const RuntimeChoice& choice) {
  if (default_runtime) fail("value", "device: choose it before the first tensor");
  if (choice.device != "auto") find_device(choice.device);  // what is wrong with it is said at once
  chosen = choice;
}

std::shared_ptr<Runtime> make_runtime(const RuntimeChoice& choice) {
  auto made =
      std::make_shared<Runtime>(find_device(choice.device, Ranks::of_machine()).make({choice.threads, choice.isa}));
  // exit() goes backwards: this is done before the libraries of devices end, which registered when the device was
  // opened.
  std::atexit(end_runtimes);
  made->device().set_budget(choice.budget);
  made->device().set_collect(collect_garbage);
  return made;
}

bool device_in_use() { return used || default_runtime; }

Runtime& runtime() {
  if (used) return *used;
  if (!default_runtime) default_runtime = make_runtime(chosen);
  return *default_runtime;
}
Device& device() { return runtime().device(); }
Tape& tape() { return runtime().tape(); }

Device& device_of(const lua::Call& call, std::initializer_list<const Tensor*> tensors) {
  Device* found = nullptr;
  for (const Tensor* tensor : tensors) {
    if (!tensor || &tensor->device() == found) continue;
    if (found) {
      const auto text = [](Device& device) {
        return device.backend().name() + " (" + device.backend().description() + ")";
      };
      fail("value", call.name, ": its tensors are on two runtimes, ", text(*found), " and ", text(tensor->device()),
           "; y:copy(x) brings the values of x to y");
    }
    found = &tensor->device();
    if (!found->runtime()) fail("closed", call.name, ": the runtime of a tensor is gone");
  }
  return found ? *found : device();
}
Device& device_of(const lua::Call& call, const std::vector<TensorPtr>& tensors) {
  if (tensors.empty()) return device();
  for (const TensorPtr& tensor : tensors) device_of(call, tensors.front(), tensor);
  return tensors.front()->device();
}

Using::Using(std::shared_ptr<Runtime> runtime) : before(std::exchange(used, std::move(runtime))) {}
Using::~Using() { used = std::move(before); }

Rehearsing::Rehearsing(const Limits& limits, bool for_gpu)
    : real(runtime().shared_from_this()), use([&] {
        if (!real->device().backend().computes()) fail("value", "rehearsal.run: a rehearsal is going on already");
        if (real->device().capturing()) fail("value", "rehearsal.run: a program is being captured");
        return std::make_shared<Runtime>(std::make_unique<Rehearsal>(real->device().backend(), limits, for_gpu));
      }()) {}
Rehearsing::~Rehearsing() {
  used->tape().clear();
  used->device().trim();
}
const Rehearsal& rehearsal() {
  if (!device_in_use() || device().backend().computes())
    fail("value", "rehearsal.cost: nothing is being rehearsed; call it in the function given to q.rehearsal.run");
  return static_cast<const Rehearsal&>(device().backend());
}

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
      lua::close_tensor(L, -1);
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

TensorPtr pending_tensor(lua_State* L, int index) {
  if (!is_class(L, index, ClassName<Tensor>::value)) expected(L, index, "Tensor");
  const TensorPtr& tensor = *static_cast<TensorPtr*>(lua_touserdata(L, index));
  if (!tensor) throw Problem{"this Tensor is closed: it was freed, or its scope has ended"};
  return tensor;
}
TensorPtr Value<TensorPtr>::read(lua_State* L, int index) { return settled(pending_tensor(L, index)); }

void Value<TensorPtr>::push(lua_State* L, const TensorPtr& tensor) {
  if (!tensor) return lua_pushnil(L);
  if (Device& device = tensor->device(); device.allocated_since(false) > kCollectEvery) {
    device.allocated_since(true);
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
  if (holds_runtime(*tensor))
    new (lua_newuserdata(L, sizeof(HeldTensor))) HeldTensor{tensor, tensor->device().runtime()->shared_from_this()};
  else
    new (lua_newuserdata(L, sizeof(TensorPtr))) TensorPtr(tensor);
  push_class(L, ClassName<Tensor>::value, &collect<Tensor>);
  lua_setmetatable(L, -2);
}

void close_tensor(lua_State* L, int index) {
  void* held = lua_touserdata(L, index);
  TensorPtr& tensor = *static_cast<TensorPtr*>(held);
  if (!tensor) return;
  const bool with_runtime = holds_runtime(*tensor);
  tensor.reset();
  if (with_runtime) static_cast<HeldTensor*>(held)->runtime.reset();
}

template <>
int collect<Tensor>(lua_State* L) {
  close_tensor(L, 1);
  return 0;
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
