// q.ranks: the processes of a job that train one model together.
#include "bindings/lua.h"
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/span.h"
#include "bindings/standard_streams.h"
#include "engine/ranks/gradient_sum.h"
#include "engine/ranks/ranks.h"
#include "engine/ranks/shards.h"

QENG_LUA_CLASS(qeng::Ranks, "Ranks")
QENG_LUA_CLASS(qeng::GradientSum, "GradientSum")
QENG_LUA_CLASS(qeng::Shards, "Shards")
QENG_LUA_CLASS(qeng::StreamedWeights, "WeightStream")
QENG_LUA_CLASS(qeng::Program, "Program")

namespace qeng {
namespace {
using lua::Call;

int join(Call& call) {
  Ranks* const job = Ranks::of_job();
  if (!job) return 0;
  if (job->rank() > 0)
    speak_of_errors_only("rank " + std::to_string(job->rank()) + " of " + std::to_string(job->size()));
  return call.push(std::shared_ptr<Ranks>(job, [](Ranks*) {}));  // the process's, as long as it lives
}

int imagined(Call& call) { return call.push(std::shared_ptr<Ranks>(Ranks::imagined(call.arg<int>(1)))); }

int rank(Call& call) { return call.push(call.self<Ranks>()->rank()); }
int size(Call& call) { return call.push(call.self<Ranks>()->size()); }
int barrier(Call& call) {
  call.self<Ranks>()->barrier();
  return 0;
}
int tell(Call& call) { return call.push(call.self<Ranks>()->tell(call.arg<std::string>(1))); }
int texts(Call& call) { return call.push(call.self<Ranks>()->texts(call.arg<std::string>(1))); }
int sum(Call& call) { return call.push(call.self<Ranks>()->sum(call.arg<std::vector<double>>(1))); }
int sent(Call& call) { return call.push(call.self<Ranks>()->sent()); }
int leave(Call&) {
  Ranks::leave();
  return 0;
}

int share(Call& call) {
  share_tensors(*call.self<Ranks>(), call.arg<std::vector<TensorPtr>>(1), call.arg<std::vector<int>>(2));
  return 0;
}

int gradients(Call& call) {
  auto job = call.self<Ranks>();
  return call.push(std::make_shared<GradientSum>(*job, runtime().device(), call.arg<std::vector<TensorPtr>>(1)));
}
int watch(Call& call) {
  const auto program = call.arg<std::shared_ptr<Program>>(1);
  if (!program) fail("closed", call.name, ": this Program was freed");
  call.self<GradientSum>()->watch(*program);
  return 0;
}

// shards({unit}, weights): a unit is {name, {parameter}, {owner}}, as three lists.
int shards(Call& call) {
  auto job = call.self<Ranks>();
  const auto names = call.arg<std::vector<std::string>>(1);
  const auto parameters = call.arg<std::vector<std::vector<TensorPtr>>>(2);
  if (names.size() != parameters.size())
    fail("value", "shards: ", names.size(), " names of ", parameters.size(), " units");
  std::vector<StreamUnit> units;
  for (size_t i = 0; i < names.size(); ++i) units.push_back({.name = names[i], .weights = parameters[i]});
  return call.push(std::make_shared<Shards>(*job, runtime().device(), std::move(units),
                                            call.arg<std::vector<std::vector<int>>>(3), call.arg<bool>(4)));
}
int learn(Call& call) {
  const auto parameter = call.arg<TensorPtr>(1);
  call.self<Shards>()->learn(parameter, call.arg<DType>(2, parameter->grad ? parameter->grad->view.dtype : DType::f32));
  return 0;
}
int stream(Call& call) { return call.push(std::static_pointer_cast<StreamedWeights>(call.self<Shards>())); }
template <void (Shards::*method)()>
int shards_do(Call& call) {
  (call.self<Shards>().get()->*method)();
  return 0;
}

// Of GradientSum and Shards.
template <class Sums>
int begin(Call& call) {
  call.self<Sums>()->begin(call.arg<int>(1), call.arg<bool>(2), call.arg<bool>(3));
  return 0;
}
template <class Sums>
int finish(Call& call) {
  call.self<Sums>()->finish();
  return 0;
}
template <class Sums>
int figures(Call& call) {
  const Courier::Figures figures = call.self<Sums>()->courier().figures();
  lua_newtable(call.L);
  lua::set_field(call.L, "exchanging", figures.exchanging);
  lua::set_field(call.L, "waiting", figures.waiting);
  for (const auto& [name, spans] : {std::pair{"jobs", &figures.jobs}, std::pair{"waits", &figures.waits}}) {
    lua_newtable(call.L);
    for (size_t i = 0; i < spans->size(); ++i) {
      push_span(call.L, (*spans)[i]);
      lua_rawseti(call.L, -2, static_cast<int>(i) + 1);
    }
    lua_setfield(call.L, -2, name);
  }
  return 1;
}
template <class Sums>
int trace(Call& call) {
  call.self<Sums>()->courier().trace(call.arg<bool>(1));
  return 0;
}

}  // namespace

void register_ranks(lua_State* L) {
  using namespace lua;
  functions(L, "ranks", {{"join", fn<join>}, {"imagined", fn<imagined>}});
  methods<Ranks>(L, {{"rank", fn<rank>},
                     {"size", fn<size>},
                     {"barrier", fn<barrier>},
                     {"tell", fn<tell>},
                     {"texts", fn<texts>},
                     {"sum", fn<sum>},
                     {"sent", fn<sent>},
                     {"share", fn<share>},
                     {"leave", fn<leave>},
                     {"gradients", fn<gradients>},
                     {"shards", fn<shards>}});
  methods<GradientSum>(L, {{"begin", fn<begin<GradientSum>>},
                           {"finish", fn<finish<GradientSum>>},
                           {"watch", fn<watch>},
                           {"figures", fn<figures<GradientSum>>},
                           {"trace", fn<trace<GradientSum>>}});
  methods<Shards>(L, {{"learn", fn<learn>},
                      {"stream", fn<stream>},
                      {"begin", fn<begin<Shards>>},
                      {"finish", fn<finish<Shards>>},
                      {"follow", fn<shards_do<&Shards::follow>>},
                      {"rest", fn<shards_do<&Shards::rest>>},
                      {"share", fn<shards_do<&Shards::share>>},
                      {"gather", fn<shards_do<&Shards::gather>>},
                      {"release", fn<shards_do<&Shards::release>>},
                      {"figures", fn<figures<Shards>>},
                      {"trace", fn<trace<Shards>>}});
}

}  // namespace qeng
