// What the Lua functions of tensors work with: the device and its tape, made on first use, and the scopes that tensors live in.
#pragma once
#include <memory>
#include <string>

#include "bindings/lua.h"
#include "engine/autograd/tape.h"

QENG_LUA_CLASS(qeng::Tensor, "Tensor")

namespace qeng {

struct Batch;
class BatchStage;
class Rehearsal;

struct DeviceChoice {
  std::string name = "auto";  // auto (the first GPU, else the CPU), cpu, cuda, cuda:N
  int threads = 0;            // 0: the cores this process may use
  std::string isa;            // "": the best
  size_t budget = 0;          // bytes that tensors may take on it, 0: any number
};
void choose_device(const DeviceChoice& choice);  // Error("value") once the device is in use
Device& device();
Tape& tape();
bool device_in_use();
BatchStage& batch_stage(const Batch& batch);  // the device's, for batches of this shape

// RAII: while it lives, device() and tape() are those of a rehearsal (engine/program/rehearsal.h) of the device in use.
// Tensors made meanwhile may be dropped later, and used no more.
struct Rehearsing {
  explicit Rehearsing(const Limits& limits, bool for_gpu = false);
  ~Rehearsing();
};
const Rehearsal& rehearsal();  // Error("value") outside of one

namespace scopes {
// Tensors pushed to Lua from now on belong to a new scope, until leave(). The results of the scope are the top `results`
// values of the stack: tensors among them, and in tables among them, move to the scope around; the others are closed.
void enter(lua_State* L);
void leave(lua_State* L, int results);
}  // namespace scopes

namespace lua {

// A tensor whose scope has ended, or that was freed, reads as an error that says so; pushing registers it with its scope.
template <>
struct Value<TensorPtr> {
  static TensorPtr read(lua_State* L, int index);
  static void push(lua_State* L, const TensorPtr& tensor);
};

// Pushes a handle that belongs to no scope.
void push_kept(lua_State* L, const TensorPtr& tensor);

TensorPtr self_tensor(const Call& call);

}  // namespace lua
}  // namespace qeng
