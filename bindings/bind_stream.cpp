// q.weight_stream: a model's weights within a limit of memory (scripts/qeng/stream.lua makes one).
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/stream/mapped_stream.h"

QENG_LUA_CLASS(qeng::MappedStream, "WeightStream")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

// The stream of units names[i], weights[i]; the first unit is the embedding.
int make(Call& call) {
  const auto names = call.arg<std::vector<std::string>>(1);
  const auto weights = call.arg<std::vector<std::vector<TensorPtr>>>(2);
  Options opt(call, 3, {"limit", "option", "slack"});
  if (names.size() != weights.size() || names.size() < 2)
    fail("value", "weight_stream: ", names.size(), " names and ", weights.size(), " lists of weights; expected one list a name, for an embedding, layers and a head");
  if (!device().backend().host_memory())
    fail("unsupported", "weight_stream: ", device().backend().name(), " does not read the host's memory");
  std::vector<StreamUnit> units;
  for (size_t i = 0; i < names.size(); ++i) units.push_back({names[i], weights[i], i == 0});
  return call.push(std::make_shared<MappedStream>(device(), std::move(units), opt.get<size_t>("limit", 0),
                                                  opt.get<std::string>("option", "the machine's memory"),
                                                  opt.get<size_t>("slack", size_t{64} << 20)));
}

int use(Call& call) {
  const Pass pass = tape().playing() ? Pass::backward : tape().training() ? Pass::forward : Pass::inference;
  device().run(UseWeights{call.self<MappedStream>(), call.arg<int>(1), pass});
  return 0;
}

int mark(Call& call) {
  tape().mark([stream = call.self<MappedStream>(), unit = call.arg<int>(1)] {
    device().run(UseWeights{stream, unit, Pass::backward});
  });
  return 0;
}

int figures(Call& call) {
  const auto stream = call.self<MappedStream>();
  const StreamFigures now = stream->figures();
  lua_newtable(call.L);
  lua::set_field(call.L, "bytes", now.bytes);
  lua::set_field(call.L, "fetch_ms", now.fetch_seconds * 1e3);
  lua::set_field(call.L, "stall_ms", now.stalled_seconds * 1e3);
  lua::set_field(call.L, "fetches", now.fetches);
  lua::set_field(call.L, "depth", now.depth);
  lua::set_field(call.L, "resident", static_cast<int64_t>(stream->resident()));
  lua::set_field(call.L, "total", static_cast<int64_t>(stream->total()));
  lua::set_field(call.L, "process", static_cast<int64_t>(stream->process()));
  return 1;
}

int close(Call& call) {
  call.self<MappedStream>()->close();
  return 0;
}
}  // namespace

void register_stream(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"weight_stream", fn<make>}});
  lua::methods<MappedStream>(L, {{"use", fn<use>}, {"mark", fn<mark>}, {"figures", fn<figures>}, {"close", fn<close>}});
}

}  // namespace qeng
