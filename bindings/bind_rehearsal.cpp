// q.rehearsal.run: runs a function on a device that computes nothing.
// q.rehearsal.cost: what its operations would have cost so far.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/program/rehearsal.h"

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

int rehearse(Call& call) {
  lua_State* L = call.L;
  if (!lua_isfunction(L, 1)) call.bad_argument(1, "function expected, got " + lua::type_text(L, 1));
  Options opt(call, 2, {"bandwidth", "flops_f32", "flops_bf16", "gpu"});
  const Limits limits{opt.get<double>("bandwidth", 0), opt.get<double>("flops_f32", 0),
                      opt.get<double>("flops_bf16", 0)};
  const bool for_gpu = opt.get<bool>("gpu", false);
  lua_settop(L, 1);
  Rehearsing rehearsing(limits, for_gpu);
  scopes::enter(L);
  try {
    lua::call(L, 0, LUA_MULTRET);
  } catch (...) {
    scopes::leave(L, 0);
    throw;
  }
  scopes::leave(L, 0);  // no tensor outlives the device it lies on
  return lua_gettop(L);
}

int work(Call& call) {
  const Rehearsal::Work& work = rehearsal().work();
  lua_newtable(call.L);
  lua::set_field(call.L, "device", rehearsal().name());
  lua::set_field(call.L, "seconds", work.seconds);
  lua::set_field(call.L, "flops_f32", work.flops_f32);
  lua::set_field(call.L, "flops_bf16", work.flops_bf16);
  lua::set_field(call.L, "bytes", work.bytes);
  return 1;
}
}  // namespace

void register_rehearsal(lua_State* L) {
  using lua::fn;
  lua::functions(L, "rehearsal", {{"run", fn<rehearse>}, {"cost", fn<work>}});
}

}  // namespace qeng
