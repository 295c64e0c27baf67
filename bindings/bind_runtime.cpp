// Runtimes, and what is asked of the one in use: its device, memory, limits, random numbers.
#include <algorithm>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "kernels/backends.h"

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

RuntimeChoice read_choice(Call& call) {
  Options opt(call, 1, {"device", "threads", "isa", "budget"});
  return {opt.get<std::string>("device", "auto"), opt.get<int>("threads", 0), opt.get<std::string>("isa", ""),
          opt.get<size_t>("budget", 0)};
}

int choose(Call& call) {
  choose_device(read_choice(call));
  return 0;
}

// Of options a new one, else the one in use.
int make(Call& call) { return call.push(call.has(1) ? make_runtime(read_choice(call)) : runtime().shared_from_this()); }

std::shared_ptr<Runtime>& runtime_at(const Call& call) {
  if (!lua::is_class(call.L, 1, "Runtime")) fail("value", call.name, " is a method of Runtime: call it with a colon");
  return *static_cast<std::shared_ptr<Runtime>*>(lua_touserdata(call.L, 1));
}

int use(Call& call) {
  if (!runtime_at(call)) fail("closed", call.name, ": this Runtime was freed");
  const Using used(runtime_at(call));
  return lua::call_rest(call, 2);
}

int free(Call& call) {
  runtime_at(call).reset();
  return 0;
}

int text(Call& call) {
  const auto& self = runtime_at(call);
  if (!self) return call.push("Runtime (closed)");
  Backend& backend = self->device().backend();
  return call.push("Runtime on " + backend.name() + ": " + backend.description());
}

bool in_use(const BackendKind& kind) {
  const std::vector<Runtime*>& all = Runtime::all();
  return std::any_of(all.begin(), all.end(), [&](Runtime* each) {
    const std::string name = each->device().backend().name();
    return name.substr(0, name.find(':')) == kind.name;
  });
}

// What this machine has of one backend, or of those that `auto` chooses from and those in use: {name, description,
// memory (bytes), free (of one in use), one_memory, streams, in_use}. Others may load large drivers to answer.
int devices(Call& call) {
  lua_State* L = call.L;
  const auto wanted = call.arg<std::string>(1, "");
  const auto& kinds = backend_kinds();
  if (!wanted.empty() &&
      std::none_of(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.name == wanted; }))
    call.bad_argument(1, "'" + wanted + "' is no backend");
  lua_newtable(L);
  int count = 0;
  for (const BackendKind& kind : kinds) {
    if (wanted.empty() ? kind.priority < 0 && !in_use(kind) : kind.name != wanted) continue;
    for (const DeviceInfo& info : kind.devices(nullptr)) {
      Backend* used = nullptr;
      for (Runtime* each : Runtime::all())
        if (!used && each->device().backend().name() == info.name) used = &each->device().backend();
      lua_newtable(L);
      lua::set_field(L, "name", info.name);
      lua::set_field(L, "description",
                     used ? used->description() : info.description);  // with the threads that were chosen
      lua::set_field(L, "in_use", used != nullptr);
      lua::set_field(L, "memory", static_cast<int64_t>(info.bytes));
      if (used) lua::set_field(L, "free", static_cast<int64_t>(used->memory().free));
      lua::set_field(L, "one_memory", info.one_memory);
      lua::set_field(L, "streams", info.streams);
      lua_rawseti(L, -2, ++count);
    }
  }
  return 1;
}

int limits(Call& call) {
  static constexpr std::pair<const char*, Limit> kEach[] = {
      {"bandwidth", &Limits::bandwidth}, {"flops_f32", &Limits::flops_f32}, {"flops_bf16", &Limits::flops_bf16}};
  Options opt(call, 1, {"if_room", "only"});
  const auto only = opt.get<std::string>("only", "");
  lua_newtable(call.L);
  bool any = false;
  try {
    for (const auto& [name, limit] : kEach) {
      if (!only.empty() && only != name) continue;
      lua::set_field(call.L, name, device().limit(limit));
      any = true;
    }
  } catch (const Error& error) {
    if (error.code != "memory" || !opt.get("if_room", false)) throw;
    return 0;
  }
  if (!any) fail("value", "limits: only = \"", only, "\": expected bandwidth, flops_f32 or flops_bf16");
  return 1;
}

int memory(Call& call) {
  lua_State* L = call.L;
  lua_newtable(L);
  for (const auto& [name, account] : device().accounts()) {
    lua_newtable(L);
    lua::set_field(L, "bytes", static_cast<int64_t>(account.bytes));
    lua::set_field(L, "peak", static_cast<int64_t>(account.peak));
    lua_setfield(L, -2, name.c_str());
  }
  return 1;
}

int seed(Call& call) {
  tape().set_rng(static_cast<uint64_t>(call.arg<int64_t>(1)), 0);
  return 0;
}
int rng_step(Call& call) {
  tape().set_rng(tape().seed(), static_cast<uint64_t>(call.arg<int64_t>(1)));
  return 0;
}

int of_tensor(Call& call) { return call.push(device_of(call, lua::self_tensor(call)).runtime()->shared_from_this()); }

}  // namespace

void register_runtime(lua_State* L) {
  using namespace lua;
  functions(L, "",
            {{"device", fn<choose>},
             {"devices", fn<devices>},
             {"runtime", fn<make>},
             {"limits", fn<limits>},
             {"memory", fn<memory>},
             {"seed", fn<seed>},
             {"rng_step", fn<rng_step>}});
  methods<Runtime>(L, {{"use", fn<use>}, {"free", fn<free>}, {"__tostring", fn<text>}});
  methods<Tensor>(L, {{"runtime", fn<of_tensor>}});
}

}  // namespace qeng
