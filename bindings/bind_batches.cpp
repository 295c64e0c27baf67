// PacketFile:batches: packed batches, and their way to the device.
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/packets/batches.h"

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

int batches(Call& call) {
  const auto self = call.self<const PacketFile>();
  Options opt(call, 1,
              {"row_tokens", "rows", "seed", "split", "eval_share", "pad", "long", "lookahead", "once", "vocab"});
  BatchOptions options;
  options.row_tokens = opt.get<int64_t>("row_tokens");
  options.rows = opt.get("rows", options.rows);
  options.seed = opt.get("seed", options.seed);
  options.split = choice<Split>(opt, "split", {{"train", Split::train}, {"eval", Split::eval}});
  options.eval_share = opt.get("eval_share", options.eval_share);
  options.pad = opt.get("pad", options.pad);
  options.long_documents = choice<LongDocuments>(
      opt, "long", {{"split", LongDocuments::split}, {"drop", LongDocuments::drop}, {"error", LongDocuments::error}});
  options.lookahead = opt.get("lookahead", options.lookahead);
  options.epochs = opt.get("once", false) ? 1 : 0;
  options.vocab = opt.get("vocab", options.vocab);
  options.stored = !device().backend().host_memory();
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

// Targets of the first epoch, from the index alone: the first tokens of later pieces of split documents still count.
uint64_t trained_tokens(const Batches& self) {
  const BatchOptions& options = self.options();
  const PacketFile& file = self.file();
  const Sampler sampler(file.records(), static_cast<uint64_t>(options.seed), options.split, options.eval_share);
  const auto order = sampler.order(0);
  uint64_t total = 0;
  for (uint64_t i = 0; i < sampler.size(); ++i) {
    const RecordInfo record = file.info(order(i));
    const bool dropped = options.long_documents == LongDocuments::drop && record.tokens > options.row_tokens;
    if (!dropped) total += record.loss_tokens;
  }
  return total;
}

int plan(Call& call) {
  const auto self = call.self<Batches>();
  const EpochPlan epoch = self->plan_epoch();
  lua_newtable(call.L);
  set_field(call.L, "batches", epoch.batches);
  set_field(call.L, "real_tokens", epoch.counts.real_tokens);
  set_field(call.L, "trained_tokens", trained_tokens(*self));
  set_field(call.L, "documents", epoch.counts.documents);
  set_field(call.L, "split", epoch.counts.split);
  set_field(call.L, "dropped", epoch.counts.dropped);
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
  set_field(call.L, "dropped", self->counts.dropped);
  set_field(call.L, "damaged", self->damaged);
  set_field(call.L, "epoch", self->epoch);
  set_field(call.L, "wait_ms", self->wait_ms);
  set_field(call.L, "max_documents", self->cu_seqlens.size() - 1);
  return 1;
}

int send(Call& call) {
  const auto self = call.self<Batch>();
  if (!device().backend().host_memory()) batch_stage(*self).send(self);
  return 0;
}

// Copies into the slot's tensors, which have the batch's sizes; other fields of the slot are the caller's.
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
  const BatchStage::Slot slot{field("tokens", self->tokens), field("targets", self->targets),
                              field("positions", self->positions), field("cu_q", self->cu_seqlens)};
  if (!device().backend().host_memory()) {
    batch_stage(*self).load(*self, slot);
  } else {
    from_host_i32(*slot.tokens, self->tokens.data(), self->tokens.size());
    from_host_i32(*slot.targets, self->targets.data(), self->targets.size());
    from_host_i32(*slot.positions, self->positions.data(), self->positions.size());
    from_host_i32(*slot.cu_seqlens, self->cu_seqlens.data(), self->cu_seqlens.size());
  }
  return 0;
}
}  // namespace

void register_batches(lua_State* L) {
  using lua::fn;
  lua::methods<const PacketFile>(L, {{"batches", fn<batches>}});
  lua::methods<Batches>(L, {{"next", fn<next>}, {"state", fn<state>}, {"restore", fn<restore>}, {"plan", fn<plan>}});
  lua::methods<Batch>(L, {{"info", fn<batch_info>}, {"send", fn<send>}, {"load", fn<load>}});
}

}  // namespace qeng
