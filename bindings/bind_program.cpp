// Captured programs, traces and profiles; and the optimizer's state.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/span.h"
#include "engine/autograd/expression.h"
#include "engine/program/profile.h"
#include "engine/program/program.h"
#include "engine/program/timeline.h"
#include "engine/ranks/ranks.h"
#include "engine/train/adamw.h"
#include "kernels/view_text.h"

QENG_LUA_CLASS(qeng::Program, "Program")
QENG_LUA_CLASS(qeng::AdamWState, "AdamW")
QENG_LUA_CLASS(qeng::Ranks, "Ranks")

namespace qeng {
namespace {

using lua::Call;
using lua::Options;

// RAII: another listener for a device's ops.
struct Listening {
  Listening(Device& d, OpListener& listener) : device(d), before(d.listener()) { device.set_listener(&listener); }
  ~Listening() { device.set_listener(before); }
  Device& device;
  OpListener* before;
};

int call_function(Call& call) {
  if (!lua_isfunction(call.L, 1)) call.bad_argument(1, "function expected, got " + lua::type_text(call.L, 1));
  lua::call(call.L, lua_gettop(call.L) - 1, LUA_MULTRET);
  return lua_gettop(call.L);
}

// ---------------------------------------------------------------- programs

// Has a result of a captured function computed in the program: a tensor, or those in a table. One whose operands have
// been written to is an error when it is read.
void compute_result(lua_State* L, int index) {
  if (lua_istable(L, index)) {
    luaL_checkstack(L, 4, "results");
    for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1))
      if (const int value = lua_gettop(L); !lua_istable(L, value)) compute_result(L, value);
    return;
  }
  if (!lua::is_class(L, index, lua::ClassName<Tensor>::value)) return;
  const TensorPtr& tensor = *static_cast<TensorPtr*>(lua_touserdata(L, index));
  if (tensor && tensor->pending && !tensor->pending->stale) settled(tensor);
}

int capture(Call& call) {
  Runtime& on = runtime();
  int results = 0;
  if (!on.device().capturing() && !on.tape().pending().all().empty()) {
    lua_gc(call.L, LUA_GCCOLLECT, 0);  // temporaries that nobody will read
    settle_pending(on.tape());         // the program may write to what they read
  }
  std::shared_ptr<Program> program = Program::capture(on.device(), [&] {
    scopes::enter(call.L);
    try {
      results = call_function(call);
      for (int i = 1; i <= results; ++i) compute_result(call.L, i);
      scopes::leave(call.L, results);
    } catch (...) {
      scopes::leave(call.L, 0);
      on.tape().clear();
      throw;
    }
  });
  call.push(program);
  lua_insert(call.L, -results - 1);
  return results + 1;
}

std::shared_ptr<Program> live_program(const Call& call) {
  auto program = call.self<Program>();
  if (!program) fail("closed", call.name, ": this Program was freed");
  return program;
}

// Of Program:run and Program:profile.
int64_t trained_rows(const Call& call) { return Options(call, 1, {"trained"}).get<int64_t>("trained", -1); }

int run(Call& call) {
  live_program(call)->run(trained_rows(call));
  return 0;
}

int stats(Call& call) {
  const auto program = live_program(call);
  const Cost total = program->total_cost();
  lua_newtable(call.L);
  lua::set_field(call.L, "ops", static_cast<int64_t>(program->ops().size()));
  lua::set_field(call.L, "variants", static_cast<int64_t>(program->variants()));
  lua::set_field(call.L, "nodes", static_cast<int64_t>(program->nodes()));
  lua::set_field(call.L, "arena_bytes", static_cast<int64_t>(program->arena_bytes()));
  lua::set_field(call.L, "temporary_bytes", static_cast<int64_t>(program->temporaries()));
  lua::set_field(call.L, "bytes", total.bytes);
  lua::set_field(call.L, "flops", total.flops);
  return 1;
}

int free_program(Call& call) {
  if (!lua::is_class(call.L, 1, "Program")) fail("value", "free is a method of Program: call it with a colon");
  static_cast<std::shared_ptr<Program>*>(lua_touserdata(call.L, 1))->reset();
  return 0;
}

int program_text(Call& call) {
  const auto program = live_program(call);
  std::string text;
  for (const LabelledOp& labelled : program->ops())
    text += op_text(labelled.op, labelled.label, program->device().backend()) + "\n";
  return call.push(text);
}

// ---------------------------------------------------------------- trace and profile

class Tracer : public OpListener {
 public:
  explicit Tracer(Device& d) : device(d) {}
  void after(const Op& op, const std::string& label) override { text += op_text(op, label, device.backend()) + "\n"; }
  Device& device;
  std::string text;
};

int trace(Call& call) {
  Tracer tracer(device());
  {
    Listening listening(tracer.device, tracer);
    call_function(call);
  }
  return call.push(tracer.text);
}

void push_rows(lua_State* L, const std::vector<ProfileRow>& rows) {
  lua_createtable(L, static_cast<int>(rows.size()), 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    lua_newtable(L);
    lua::set_field(L, "name", rows[i].name);
    lua::set_field(L, "calls", rows[i].calls);
    lua::set_field(L, "ms", rows[i].seconds * 1e3);
    lua::set_field(L, "bytes", rows[i].bytes);
    lua::set_field(L, "flops", rows[i].flops);
    lua::set_field(L, "share", rows[i].seconds > 0 ? rows[i].ideal / rows[i].seconds : 0.0);
    lua_rawseti(L, -2, static_cast<int>(i) + 1);
  }
}

int push_profile(Call& call, const Profiler& profiler) {
  const ProfileRow total = profiler.total();
  lua_newtable(call.L);
  push_rows(call.L, profiler.by_op());
  lua_setfield(call.L, -2, "ops");
  push_rows(call.L, profiler.by_block());
  lua_setfield(call.L, -2, "blocks");
  lua::set_field(call.L, "total_ms", total.seconds * 1e3);
  lua::set_field(call.L, "share", total.seconds > 0 ? total.ideal / total.seconds : 0.0);
  return 1;
}

int profile(Call& call) {
  Device& on = device();
  Profiler profiler(on);
  {
    Listening listening(on, profiler);
    call_function(call);
  }
  return push_profile(call, profiler);
}

int timeline(Call& call) {
  Timeline timeline(device());
  {
    Listening listening(device(), timeline);
    call_function(call);
  }
  lua_newtable(call.L);
  int i = 0;
  for (const Timeline::Row& row : timeline.rows()) {
    push_span(call.L, row.span);
    lua::set_field(call.L, "block", row.block);
    lua_rawseti(call.L, -2, ++i);
  }
  return 1;
}

int profile_program(Call& call) {
  const auto program = live_program(call);
  Profiler profiler(program->device());
  {
    Listening listening(program->device(), profiler);
    program->run(trained_rows(call));
  }
  return push_profile(call, profiler);
}

// ---------------------------------------------------------------- AdamW

int adamw(Call& call) {
  Options opt(call, 2,
              {"beta1", "beta2", "eps", "decay", "moment_bits", "groups", "rates", "own", "ranks", "allow_unused"});
  AdamWOptions options;
  options.beta1 = opt.get<float>("beta1", options.beta1);
  options.beta2 = opt.get<float>("beta2", options.beta2);
  options.eps = opt.get<float>("eps", options.eps);
  options.decay = opt.get<float>("decay", options.decay);
  options.moment_bits = opt.get("moment_bits", options.moment_bits);
  options.allow_unused = opt.get("allow_unused", false);
  const auto parameters = call.arg<std::vector<TensorPtr>>(1);
  AdamWState::Sum sum;
  if (opt.has("ranks"))
    sum = [job = opt.get<std::shared_ptr<Ranks>>("ranks")](const std::vector<double>& numbers) {
      return job->sum(numbers);
    };
  return call.push(std::make_shared<AdamWState>(
      device_of(call, parameters), parameters, options, opt.get("groups", std::vector<int>()),
      opt.get("rates", std::vector<double>()), opt.get("own", std::vector<bool>()), sum));
}

int step(Call& call) {
  Options opt(call, 1, {"lr", "clip", "groups"});
  uint64_t groups = opt.has("groups") ? 0 : AdamWState::kAllGroups;
  for (int group : opt.get("groups", std::vector<int>())) {
    if (group < 0 || group >= AdamWState::kMaxGroups) fail("value", "AdamW:step: there is no group ", group);
    groups |= uint64_t{1} << group;
  }
  const auto adam = call.self<AdamWState>();
  const AdamWState::Result result = adam->step(opt.get<double>("lr"), opt.get<double>("clip", 0), groups);
  for (size_t i = 0; i < adam->size() && !result.skipped; ++i)
    if (groups >> adam->group(i) & 1) tape_of(call, adam->parameter(i)).wrote(adam->parameter(i));
  lua_newtable(call.L);
  lua::set_field(call.L, "grad_norm", result.grad_norm);
  lua::set_field(call.L, "skipped", result.skipped);
  return 1;
}

std::vector<std::string> names_for(const Call& call, int argument, const AdamWState& state) {
  std::vector<std::string> names = call.arg<std::vector<std::string>>(argument);
  if (names.size() != state.size())
    call.bad_argument(argument,
                      std::to_string(names.size()) + " names for " + std::to_string(state.size()) + " parameters");
  return names;
}

// {{name, tensor}...} as q.safetensors.save takes them, and the count of steps of each group.
int state(Call& call) {
  const auto adam = call.self<AdamWState>();
  const std::vector<std::string> names = names_for(call, 1, *adam);
  lua_newtable(call.L);
  int n = 0;
  for (size_t i = 0; i < adam->size(); ++i)
    for (const AdamWState::Part& part : adam->parts(i)) {
      lua_createtable(call.L, 2, 0);
      call.push(names[i] + "." + part.name);
      lua_rawseti(call.L, -2, 1);
      call.push(part.tensor);
      lua_rawseti(call.L, -2, 2);
      lua_rawseti(call.L, -2, ++n);
    }
  call.push(adam->steps());
  return 2;
}

// restore(file, names, steps): file:tensor(name) gives what state() gave.
int restore(Call& call) {
  const auto adam = call.self<AdamWState>();
  const std::vector<std::string> names = names_for(call, 2, *adam);
  const auto steps = call.arg<std::vector<int64_t>>(3);
  lua_State* L = call.L;
  for (size_t i = 0; i < adam->size(); ++i)
    for (const AdamWState::Part& part : adam->parts(i)) {
      lua_getfield(L, call.index(1), "tensor");
      lua_pushvalue(L, call.index(1));
      call.push(names[i] + "." + part.name);
      lua::call(L, 2, 1);
      const TensorPtr saved = lua::Value<TensorPtr>::read(L, lua_gettop(L));
      if (saved->view.dtype != part.tensor->view.dtype)
        fail("dtype", call.name, ": ", names[i], ".", part.name, " was saved as ", shape_text(saved->view),
             ", and here it is ", shape_text(part.tensor->view), ": restore with the moment_bits of the saved run");
      copy_into(*part.tensor, *saved);
      lua_pop(L, 1);
    }
  adam->set_steps(steps);
  return 0;
}

// Whether a backward pass has ever written to the parameter's gradient.
int reached(Call& call) { return call.push(lua::self_tensor(call)->reached); }

}  // namespace

void register_program(lua_State* L) {
  using namespace lua;
  functions(L, "",
            {{"capture", fn<capture>},
             {"trace", fn<trace>},
             {"profile", fn<profile>},
             {"timeline", fn<timeline>},
             {"adamw_state", fn<adamw>}});
  methods<Program>(L, {{"run", fn<run>},
                       {"stats", fn<stats>},
                       {"profile", fn<profile_program>},
                       {"free", fn<free_program>},
                       {"__tostring", fn<program_text>}});
  methods<Tensor>(L, {{"_reached", fn<reached>}});
  methods<AdamWState>(L, {{"step", fn<step>}, {"state", fn<state>}, {"restore", fn<restore>}});
}

}  // namespace qeng
