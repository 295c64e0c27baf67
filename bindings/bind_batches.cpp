// PacketFile:batches: packed batches, and their way to the device.
#include <algorithm>
#include <cstdio>

#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/packets/batches.h"
#include "engine/train/source_loss.h"
#include "kernels/view_text.h"

QENG_LUA_CLASS(const qeng::PacketFile, "PacketFile")
QENG_LUA_CLASS(qeng::Batches, "Batches")
QENG_LUA_CLASS(qeng::Batch, "Batch")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;

template <class T>
T choice(const Options& opt, const char* key, std::initializer_list<std::pair<const char*, T>> values) {
  if (!opt.has(key)) return values.begin()->second;
  const auto word = opt.get<std::string>(key);
  std::string known;
  for (const auto& [name, value] : values) {
    if (word == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  fail("value", "bad option '", key, "' of 'PacketFile:batches': ", word, " is none of ", known);
}

std::string source_text(int64_t source) {
  char text[8];
  std::snprintf(text, sizeof text, "0x%02x", static_cast<unsigned>(source) & 255);
  return text;
}

// {[source] = weight}: the weight at every step; of sources that are not named, 0.
SourceWeights constant_weights(lua_State* L, int table) {
  std::map<int64_t, double> weights;
  for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
    const bool source = lua_type(L, -2) == LUA_TNUMBER && lua_tonumber(L, -2) >= 0 && lua_tonumber(L, -2) <= 255;
    if (!source || lua_type(L, -1) != LUA_TNUMBER)
      fail("value", "bad option 'weights' of 'PacketFile:batches': sources 0 to 255 as keys and numbers expected, got ",
           lua::type_text(L, -2), " and ", lua::type_text(L, -1));
    weights[static_cast<int64_t>(lua_tonumber(L, -2))] = lua_tonumber(L, -1);
  }
  return [weights](int64_t, const std::vector<uint8_t>& sources) {
    for (const auto& [source, weight] : weights)
      if (std::find(sources.begin(), sources.end(), source) == sources.end())
        fail("value", "weights: source ", source_text(source), " has a weight, and no training record");
    std::vector<double> list;
    for (uint8_t source : sources) list.push_back(weights.count(source) ? weights.at(source) : 0);
    return list;
  };
}

// function(step, source) -> weight. What it raises becomes an error that names both, and that no thread but this one's
// Lua has to hold.
SourceWeights weights_of_step(const lua::Ref& function) {
  return [function](int64_t step, const std::vector<uint8_t>& sources) {
    std::vector<double> list;
    for (uint8_t source : sources) {
      std::string code, problem;
      try {
        list.push_back(function.call<double>(step, source));
      } catch (const Error& error) {
        code = error.code, problem = error.what();
      }
      if (!code.empty())
        throw Error(code, "weights(" + std::to_string(step) + ", " + source_text(source) + "): " + problem);
    }
    return list;
  };
}

int batches(Call& call) {
  const auto self = call.self<const PacketFile>();
  Options opt(call, 1,
              {"row_tokens", "rows", "rank", "ranks", "seed", "split", "eval_share", "pad", "long", "lookahead", "once",
               "vocab", "sources", "drop", "weights", "batches_per_step", "route"});
  BatchOptions options;
  options.row_tokens = opt.get<int64_t>("row_tokens");
  options.rows = opt.get("rows", options.rows);
  options.rank = opt.get("rank", options.rank);
  options.ranks = opt.get("ranks", options.ranks);
  options.seed = opt.get("seed", options.seed);
  options.split = choice<Split>(opt, "split", {{"train", Split::train}, {"eval", Split::eval}});
  options.eval_share = opt.get("eval_share", options.eval_share);
  options.pad = opt.get("pad", options.pad);
  options.long_documents = choice<LongDocuments>(opt, "long",
                                                 {{"auto", LongDocuments::automatic},
                                                  {"split", LongDocuments::split},
                                                  {"truncate", LongDocuments::truncate},
                                                  {"drop", LongDocuments::drop},
                                                  {"error", LongDocuments::error}});
  options.lookahead = opt.get("lookahead", options.lookahead);
  options.epochs = opt.get("once", false) ? 1 : 0;
  options.vocab = opt.get("vocab", options.vocab);
  options.sources = opt.get("sources", options.sources);
  options.drop = opt.get("drop", options.drop);
  options.batches_per_step = opt.get("batches_per_step", options.batches_per_step);
  options.route = opt.get("route", options.route);
  if (opt.has("weights")) {
    opt.push("weights");
    const int value = lua_gettop(call.L);
    if (!lua_istable(call.L, value) && !lua_isfunction(call.L, value))
      fail("value", "bad option 'weights' of 'PacketFile:batches': function(step, source) or table expected, got ",
           lua::type_text(call.L, value));
    options.weights =
        lua_istable(call.L, value) ? constant_weights(call.L, value) : weights_of_step(lua::Ref(call.L, value));
  }
  options.stored = !device().backend().reads_host_memory();
  return call.push(std::make_shared<Batches>(self, options));
}

int next(Call& call) {
  const auto self = call.self<Batches>();
  auto batch = std::make_shared<Batch>();
  if (!self->next(*batch)) return 0;
  return call.push(batch);
}

int state(Call& call) { return call.push(call.self<Batches>()->state().integers()); }
int restore(Call& call) {
  call.self<Batches>()->restore(BatchState::from_integers(call.arg<std::vector<int64_t>>(1)));
  return 0;
}

// {[number] = count} of those that occur.
void set_counts(lua_State* L, const char* key, const std::array<uint64_t, 256>& counts) {
  lua_newtable(L);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    lua_pushnumber(L, static_cast<double>(counts[i]));
    lua_rawseti(L, -2, static_cast<int>(i));
  }
  lua_setfield(L, -2, key);
}

int plan(Call& call) {
  const EpochPlan epoch = call.self<Batches>()->plan_epoch();
  lua_newtable(call.L);
  set_field(call.L, "batches", epoch.batches);
  set_field(call.L, "real_tokens", epoch.counts.real_tokens);
  set_field(call.L, "trained_tokens", epoch.trained_tokens);
  set_field(call.L, "documents", epoch.counts.documents);
  set_field(call.L, "split", epoch.counts.split);
  set_field(call.L, "truncated", epoch.counts.truncated);
  set_field(call.L, "dropped", epoch.counts.dropped);
  set_field(call.L, "crc_dropped", epoch.counts.crc_dropped);
  set_counts(call.L, "sources", epoch.by_source);
  set_counts(call.L, "destinations", epoch.by_destination);
  return 1;
}

int batch_info(Call& call) {
  const auto self = call.self<Batch>();
  lua_newtable(call.L);
  set_field(call.L, "tokens", self->tokens.size());
  set_field(call.L, "real_tokens", self->counts.real_tokens);
  set_field(call.L, "trained_tokens", self->trained_tokens);
  set_field(call.L, "documents", self->counts.documents);
  set_field(call.L, "split", self->counts.split);
  set_field(call.L, "truncated", self->counts.truncated);
  set_field(call.L, "dropped", self->counts.dropped);
  set_field(call.L, "crc_dropped", self->counts.crc_dropped);
  set_field(call.L, "damaged", self->damaged);
  set_field(call.L, "epoch", self->epoch);
  set_field(call.L, "dst", self->dst);
  set_field(call.L, "wait_ms", self->wait_ms);
  set_field(call.L, "max_documents", self->cu_seqlens.size() - 1);
  return 1;
}

// {[source] = {documents=, trained_tokens=, nll=}}: nll is the sum over the source's targets of the tensor given.
int by_source(Call& call) {
  const auto self = call.self<Batch>();
  const auto tensor = call.arg<TensorPtr>(1, nullptr);
  std::vector<float> nll;
  if (tensor) nll = to_host_f32(*tensor);
  if (tensor && nll.size() != self->targets.size())
    fail("shape", "Batch:by_source: nll is ", shape_text(tensor->view), ", expected [", self->targets.size(), "]");
  lua_newtable(call.L);
  for (const auto& [source, sum] : losses_by_source(*self, nll)) {
    lua_newtable(call.L);
    set_field(call.L, "documents", sum.documents);
    set_field(call.L, "trained_tokens", sum.trained_tokens);
    set_field(call.L, "nll", sum.nll);
    lua_rawseti(call.L, -2, source);
  }
  return 1;
}

int send(Call& call) {
  const auto self = call.self<Batch>();
  if (!device().backend().reads_host_memory()) runtime().batch_stage(*self).send(self);
  return 0;
}

// Copies into the tensors of a micro-batch, which have the batch's sizes, and sets `trained`; its other fields are the
// caller's.
int load(Call& call) {
  const auto self = call.self<Batch>();
  lua_State* L = call.L;
  if (!lua_istable(L, call.index(1))) call.bad_argument(1, "table expected, got " + lua::type_text(L, call.index(1)));
  const auto field = [&](const char* key, const std::vector<int32_t>& values) {
    lua_getfield(L, call.index(1), key);
    TensorPtr tensor;
    try {
      tensor = lua::Value<TensorPtr>::read(L, lua_gettop(L));
    } catch (const lua::Problem& problem) {
      call.bad_argument(1, std::string("field '") + key + "': " + problem.text);
    }
    if (tensor->view.dtype != DType::i32 || tensor->view.elements() != static_cast<int64_t>(values.size()))
      fail("shape", "Batch:load: field '", key, "': ", values.size(), " i32 values for ", shape_text(tensor->view));
    lua_pop(L, 1);
    return tensor;
  };
  const BatchStage::Tensors tensors{field("tokens", self->tokens), field("targets", self->targets),
                                    field("positions", self->positions), field("cu_q", self->cu_seqlens)};
  Device& device = device_of(call, tensors.tokens, tensors.targets, tensors.positions, tensors.cu_seqlens);
  if (!device.backend().reads_host_memory()) {
    device.runtime()->batch_stage(*self).load(*self, tensors);
  } else {
    from_host_i32(*tensors.tokens, self->tokens.data(), self->tokens.size());
    from_host_i32(*tensors.targets, self->targets.data(), self->targets.size());
    from_host_i32(*tensors.positions, self->positions.data(), self->positions.size());
    from_host_i32(*tensors.cu_seqlens, self->cu_seqlens.data(), self->cu_seqlens.size());
  }
  lua_pushvalue(L, call.index(1));
  set_field(L, "trained", self->trained_tokens);
  lua_pop(L, 1);
  return 0;
}
}  // namespace

void register_batches(lua_State* L) {
  using lua::fn;
  lua::methods<const PacketFile>(L, {{"batches", fn<batches>}});
  lua::methods<Batches>(L, {{"next", fn<next>}, {"state", fn<state>}, {"restore", fn<restore>}, {"plan", fn<plan>}});
  lua::methods<Batch>(L,
                      {{"info", fn<batch_info>}, {"by_source", fn<by_source>}, {"send", fn<send>}, {"load", fn<load>}});
}

}  // namespace qeng
