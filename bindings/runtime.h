// Which runtime (engine/runtime) a call from Lua runs on, and the scopes that tensors live in.
//
// A call that is given tensors runs on theirs: tape_of() and device_of() tell, and refuse tensors of two runtimes. A
// call that is given none (q.zeros, q.capture, q.memory, a file that is loaded) runs on the runtime in use, which
// runtime(), device() and tape() are: that of the innermost runtime:use(fn), else the process' default one, which
// q.device{...} describes and the first such call makes.
//
// The default runtime lives until the process ends. Another one lives as long as Lua has its handle (models keep it as
// model.runtime) or a tensor of it; then its memory is given back. A rehearsal (engine/program/rehearsal.h) is a
// runtime in use like any other.
#pragma once
#include <memory>
#include <string>

#include "bindings/lua.h"
#include "engine/runtime/runtime.h"

QENG_LUA_CLASS(qeng::Tensor, "Tensor")
QENG_LUA_CLASS(qeng::Runtime, "Runtime")

namespace qeng {

class Rehearsal;

struct RuntimeChoice {
  std::string device = "auto";  // as find_device (kernels/backends.h) takes it; ranks of a machine take turns
  int threads = 0;              // 0: the cores this process may use
  std::string isa;              // "": the best
  size_t budget = 0;            // bytes that tensors may take on it, 0: any number
};
void choose_device(const RuntimeChoice& choice);  // of the default runtime; Error("value") once that is in use
bool device_in_use();                             // the default runtime is made, or another one in use
std::shared_ptr<Runtime> make_runtime(const RuntimeChoice& choice);
Runtime& runtime();
Device& device();
Tape& tape();

// Before exit(), which ends a driver's libraries while its threads may still compile and compute: what is queued ends,
// also on runtimes whose handles os.exit() leaves behind. The second one ends the default runtime too.
void finish_runtimes();
void end_runtimes();

// The device or tape of these tensors, null ones aside. Error("value") where they are of two runtimes, Error("closed")
// where theirs is gone.
Device& device_of(const lua::Call& call, std::initializer_list<const Tensor*> tensors);
template <class... T>
Device& device_of(const lua::Call& call, const std::shared_ptr<T>&... tensors) {
  return device_of(call, {tensors.get()...});
}
template <class... T>
Tape& tape_of(const lua::Call& call, const std::shared_ptr<T>&... tensors) {
  return device_of(call, {tensors.get()...}).runtime()->tape();
}
Device& device_of(const lua::Call& call, const std::vector<TensorPtr>& tensors);  // the one in use where there are none

// RAII: the runtime in use.
struct Using {
  explicit Using(std::shared_ptr<Runtime> runtime);
  ~Using();
  Using(const Using&) = delete;
  std::shared_ptr<Runtime> before;
};

// RAII: while it lives, a rehearsal of the device in use is in use. Tensors made meanwhile may be dropped later, and
// used no more.
struct Rehearsing {
  explicit Rehearsing(const Limits& limits, bool for_gpu = false);
  ~Rehearsing();
  std::shared_ptr<Runtime> real;
  Using use;
};
const Rehearsal& rehearsal();  // Error("value") outside of one

namespace scopes {
// Tensors pushed to Lua from now on belong to a new scope, until leave(). The results of the scope are the top
// `results` values of the stack: tensors among them, and in tables among them, move to the scope around; the others are
// closed.
void enter(lua_State* L);
void leave(lua_State* L, int results);
}  // namespace scopes

namespace lua {

// What a Tensor's userdata holds where its runtime is not the default one; else a TensorPtr alone.
struct HeldTensor {
  TensorPtr tensor;
  std::shared_ptr<Runtime> runtime;
};
template <>
int collect<Tensor>(lua_State* L);
void close_tensor(lua_State* L, int index);  // the Tensor at index

// A tensor whose scope has ended, or that was freed, reads as an error that says so; pushing registers it with its
// scope.
template <>
struct Value<TensorPtr> {
  static TensorPtr read(lua_State* L, int index);
  static void push(lua_State* L, const TensorPtr& tensor);
};

// The tensor as it is, computed or pending (engine/autograd/expression.h); read() has it computed.
TensorPtr pending_tensor(lua_State* L, int index);

// Pushes a handle that belongs to no scope.
void push_kept(lua_State* L, const TensorPtr& tensor);

TensorPtr self_tensor(const Call& call);

}  // namespace lua
}  // namespace qeng
