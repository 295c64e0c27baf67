// q.stream.open: a model's weights within a limit of memory (scripts/qeng/model/stream.lua makes one).
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/stream/buffered_stream.h"
#include "engine/stream/mapped_stream.h"
#include "engine/stream/spilled_file.h"

QENG_LUA_CLASS(qeng::StreamedWeights, "WeightStream")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

// The stream of units names[i], weights[i]; the first unit is the embedding.
int make(Call& call) {
  const auto names = call.arg<std::vector<std::string>>(1);
  const auto weights = call.arg<std::vector<std::vector<TensorPtr>>>(2);
  Options opt(call, 3, {"limit", "option", "slack", "keep", "depth", "writable"});
  if (names.size() != weights.size() || names.size() < 2)
    fail("value", "stream.open: ", names.size(), " names and ", weights.size(),
         " lists of weights; expected one list a name, for an embedding, layers and a head");
  const bool writable = opt.get<bool>("writable", false);
  std::vector<StreamUnit> units;
  for (size_t i = 0; i < names.size(); ++i) units.push_back({names[i], weights[i], i == 0, writable});
  const int depth = opt.get<int>("depth", BufferedStream::kDepth);
  if (depth < 1 || depth > 64) fail("value", "stream.open: depth is ", depth, ", expected 1 to 64 units");
  const auto limit = opt.get<size_t>("limit", 0);
  const auto option = opt.get<std::string>("option", "the machine's memory");
  std::vector<TensorPtr> all;
  for (const auto& unit : weights) all.insert(all.end(), unit.begin(), unit.end());
  Device& device = device_of(call, all);
  std::shared_ptr<StreamedWeights> stream;
  const bool in_place = device.backend().reads_host_memory();
  if (in_place && (opt.has("keep") || opt.has("depth")))
    fail("value", "streamed weights: ", device.backend().name(),
         " reads them where they lie in memory: nothing is kept there apart or copied ahead; leave out stream_keep "
         "(--stream-keep) and stream_depth");
  if (in_place)
    stream = std::make_shared<MappedStream>(device, std::move(units), limit, option,
                                            opt.get<size_t>("slack", size_t{64} << 20));
  else
    stream = std::make_shared<BufferedStream>(device, std::move(units), limit, option,
                                              opt.get<size_t>("keep", BufferedStream::kHalf), depth);
  return call.push(stream);
}

int spilled(Call& call) {
  const auto shape = call.arg<Shape>(1);
  const DType dtype = call.arg<DType>(2);
  return call.push(make_spilled(device(), shape, dtype, call.arg<std::string>(3, "weights"), "a spilled tensor"));
}

Tape& tape_of_stream(const Call& call, const StreamedWeights& stream) {
  if (!stream.device().runtime()) fail("closed", call.name, ": the runtime of this stream is gone");
  return stream.device().runtime()->tape();
}

int use(Call& call) {
  const auto stream = call.self<StreamedWeights>();
  const Tape& tape = tape_of_stream(call, *stream);
  const Pass pass = tape.playing() ? Pass::backward : tape.training() ? Pass::forward : Pass::inference;
  use_weights(stream, call.arg<int>(1), pass);
  return 0;
}

// mark() without a unit: there the backward pass ends.
int mark(Call& call) {
  const auto stream = call.self<StreamedWeights>();
  tape_of_stream(call, *stream).mark([stream, unit = call.arg<int>(1, WeightStream::kNoUnit)] {
    use_weights(stream, unit, Pass::backward);
  });
  return 0;
}

int figures(Call& call) {
  const auto stream = call.self<StreamedWeights>();
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
  lua::set_field(call.L, "filed", static_cast<int64_t>(stream->filed()));
  return 1;
}

int close(Call& call) {
  call.self<StreamedWeights>()->close();
  return 0;
}
}  // namespace

void register_stream(lua_State* L) {
  using lua::fn;
  lua::functions(L, "stream", {{"open", fn<make>}, {"spilled", fn<spilled>}});
  lua::methods<StreamedWeights>(L,
                                {{"use", fn<use>}, {"mark", fn<mark>}, {"figures", fn<figures>}, {"close", fn<close>}});
}

}  // namespace qeng
