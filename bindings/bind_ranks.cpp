// q.ranks: the processes of a job that train one model together.
#include "bindings/lua.h"
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "bindings/standard_streams.h"
#include "engine/ranks/gradient_sum.h"
#include "engine/ranks/ranks.h"

QENG_LUA_CLASS(qeng::Ranks, "Ranks")
QENG_LUA_CLASS(qeng::GradientSum, "GradientSum")
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

int rank(Call& call) { return call.push(call.self<Ranks>()->rank()); }
int size(Call& call) { return call.push(call.self<Ranks>()->size()); }
int barrier(Call& call) {
  call.self<Ranks>()->barrier();
  return 0;
}
int tell(Call& call) { return call.push(call.self<Ranks>()->tell(call.arg<std::string>(1))); }
int sum(Call& call) { return call.push(call.self<Ranks>()->sum(call.arg<std::vector<double>>(1))); }
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
int begin(Call& call) {
  call.self<GradientSum>()->begin(call.arg<int>(1), call.arg<bool>(2), call.arg<bool>(3));
  return 0;
}
int finish(Call& call) {
  call.self<GradientSum>()->finish();
  return 0;
}
int watch(Call& call) {
  const auto program = call.arg<std::shared_ptr<Program>>(1);
  if (!program) fail("closed", call.name, ": this Program was freed");
  call.self<GradientSum>()->watch(*program);
  return 0;
}
int figures(Call& call) {
  const GradientSum::Figures figures = call.self<GradientSum>()->figures();
  lua_newtable(call.L);
  lua::set_field(call.L, "exchanging", figures.exchanging);
  lua::set_field(call.L, "waiting", figures.waiting);
  return 1;
}

}  // namespace

void register_ranks(lua_State* L) {
  using namespace lua;
  functions(L, "ranks", {{"join", fn<join>}});
  methods<Ranks>(L, {{"rank", fn<rank>},
                     {"size", fn<size>},
                     {"barrier", fn<barrier>},
                     {"tell", fn<tell>},
                     {"sum", fn<sum>},
                     {"share", fn<share>},
                     {"leave", fn<leave>},
                     {"gradients", fn<gradients>}});
  methods<GradientSum>(L,
                       {{"begin", fn<begin>}, {"finish", fn<finish>}, {"watch", fn<watch>}, {"figures", fn<figures>}});
}

}  // namespace qeng
