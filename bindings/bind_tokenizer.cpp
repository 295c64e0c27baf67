// q.tokenizer: text to token ids and back; q.bpe_trainer: a vocabulary from texts.
#include <cstdio>
#include <filesystem>

#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/tokenizer/batch.h"
#include "engine/tokenizer/bpe_train.h"
#include "engine/tokenizer/save.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

QENG_LUA_CLASS(const qeng::Tokenizer, "Tokenizer")
QENG_LUA_CLASS(const qeng::TokenBatch, "TokenBatch")
QENG_LUA_CLASS(qeng::PieceCounts, "BpeTrainer")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

int tokenizer(Call& call) { return call.push(load_tokenizer(call.arg<std::string>(1))); }

// An id, checked against the vocabulary.
int32_t checked(const Call& call, const Tokenizer& self, int64_t id) {
  if (id < 0 || id >= self.vocab_size()) {
    fail("value", call.name, ": token ", id, " is outside the vocabulary [0, ", self.vocab_size(), ")");
  }
  return static_cast<int32_t>(id);
}

int32_t token(const Call& call, const Tokenizer& self) { return checked(call, self, call.arg<int64_t>(1)); }

int encode(Call& call) {
  const auto self = call.self<const Tokenizer>();
  const auto text = call.arg<std::string>(1);
  const Options opt(call, 2, {"special", "after"});
  std::vector<int32_t> ids;
  if (opt.has("after")) ids.push_back(checked(call, *self, opt.get<int64_t>("after")));
  const size_t before = ids.size();
  self->encode(text, ids, opt.get("special", false), before > 0);
  return call.push(std::vector<int32_t>(ids.begin() + static_cast<ptrdiff_t>(before), ids.end()));
}

int decode(Call& call) {
  const auto self = call.self<const Tokenizer>();
  const auto ids = call.arg<std::vector<int32_t>>(1);
  return call.push(self->decode(ids, Options(call, 2, {"skip_special"}).get("skip_special", false)));
}

int bytes(Call& call) {
  const auto self = call.self<const Tokenizer>();
  return call.push(std::string(self->bytes(token(call, *self))));
}

int id(Call& call) { return call.push(call.self<const Tokenizer>()->id_of(call.arg<std::string>(1))); }

int is_special(Call& call) {
  const auto self = call.self<const Tokenizer>();
  return call.push(self->is_special(token(call, *self)));
}

int vocab_size(Call& call) { return call.push(call.self<const Tokenizer>()->vocab_size()); }

int hash(Call& call) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(call.self<const Tokenizer>()->hash()));
  return call.push(std::string(text));
}

int info(Call& call) {
  const auto self = call.self<const Tokenizer>();
  lua_State* L = call.L;
  lua_newtable(L);
  lua::set_field(L, "name", self->name());
  lua::set_field(L, "bos", self->bos());
  lua::set_field(L, "eos", self->eos());
  lua::set_field(L, "pad", self->pad());
  lua::set_field(L, "add_bos", self->add_bos());
  if (!self->chat_template().empty()) lua::set_field(L, "chat_template", self->chat_template());
  return 1;
}

// The lists of tokenizer.ggml.*.
int vocabulary(Call& call) {
  const Vocabulary lists = call.self<const Tokenizer>()->vocabulary();
  std::vector<int32_t> types;
  for (TokenType type : lists.types) types.push_back(static_cast<int32_t>(type));
  lua_newtable(call.L);
  lua::set_field(call.L, "model", lists.model);
  lua::set_field(call.L, "pre", lists.pre);
  lua::set_field(call.L, "tokens", lists.tokens);
  lua::set_field(call.L, "types", types);
  if (!lists.scores.empty()) lua::set_field(call.L, "scores", lists.scores);
  if (!lists.merges.empty()) lua::set_field(call.L, "merges", lists.merges);
  lua::set_field(call.L, "add_space_prefix", lists.add_space_prefix);
  return 1;
}

int save(Call& call) {
  save_tokenizer(*call.self<const Tokenizer>(), call.arg<std::string>(1));
  return 0;
}

int tostring(Call& call) {
  const auto self = call.arg<std::shared_ptr<const Tokenizer>>(1);
  return call.push("Tokenizer " + self->name() + ", " + std::to_string(self->vocab_size()) + " tokens");
}

// ---------------------------------------------------------------- many documents at once

int encode_many(Call& call) {
  const auto self = call.self<const Tokenizer>();
  Options opt(call, 2, {"special", "threads"});
  if (!lua_istable(call.L, call.index(1)))
    call.bad_argument(1, "table of strings expected, got " + lua::type_text(call.L, call.index(1)));
  const size_t count = lua_objlen(call.L, call.index(1));
  std::vector<std::string_view> texts(count);  // of strings that the table keeps alive
  for (size_t i = 0; i < count; ++i) {
    lua_rawgeti(call.L, call.index(1), static_cast<int>(i) + 1);
    if (lua_type(call.L, -1) != LUA_TSTRING)
      call.bad_argument(1,
                        "element " + std::to_string(i + 1) + ": string expected, got a " + lua::type_text(call.L, -1));
    size_t bytes;
    const char* text = lua_tolstring(call.L, -1, &bytes);
    texts[i] = {text, bytes};
    lua_pop(call.L, 1);
  }
  TokenBatch batch = encode_batch(*self, texts, opt.get("special", false), opt.get("threads", 0));
  return call.push(std::make_shared<const TokenBatch>(std::move(batch)));
}

int decode_many(Call& call) {
  const auto self = call.self<const Tokenizer>();
  Options opt(call, 2, {"skip_special", "threads"});
  std::shared_ptr<const TokenBatch> batch = lua::to_object<const TokenBatch>(call.L, call.index(1));
  if (!batch) {
    TokenBatch lists;
    for (const std::vector<int32_t>& ids : call.arg<std::vector<std::vector<int32_t>>>(1)) {
      lists.ids.insert(lists.ids.end(), ids.begin(), ids.end());
      lists.starts.push_back(static_cast<int64_t>(lists.ids.size()));
    }
    batch = std::make_shared<const TokenBatch>(std::move(lists));
  }
  return call.push(decode_batch(*self, *batch, opt.get("skip_special", false), opt.get("threads", 0)));
}

int batch_ids(Call& call) {
  const auto self = call.self<const TokenBatch>();
  const auto i = call.arg<int64_t>(1);
  if (i < 1 || static_cast<size_t>(i) > self->size())
    fail("value", call.name, ": document ", i, " of a batch of ", self->size());
  std::span<const int32_t> ids = (*self)[static_cast<size_t>(i - 1)];
  return call.push(std::vector<int32_t>(ids.begin(), ids.end()));
}

int batch_tokens(Call& call) { return call.push(static_cast<int64_t>(call.self<const TokenBatch>()->ids.size())); }

int batch_length(Call& call) {
  return call.push(static_cast<int64_t>(call.arg<std::shared_ptr<const TokenBatch>>(1)->size()));
}

// ---------------------------------------------------------------- learning a vocabulary

int bpe_trainer(Call& call) {
  Options opt(call, 1, {"pattern", "nfc", "threads"});
  const auto name = opt.get<std::string>("pattern", "qwen2");
  const Grammar* grammar = find_grammar(name);
  if (!grammar) fail("value", call.name, ": unknown pattern ", name, "; there are ", known_grammars());
  return call.push(std::make_shared<PieceCounts>(*grammar, opt.get("nfc", true), opt.get("threads", 0)));
}

int trainer_add(Call& call) {
  const auto self = call.self<PieceCounts>();
  self->add(call.arg<std::vector<std::string>>(1));
  return 0;
}

int trainer_bytes(Call& call) { return call.push(call.self<PieceCounts>()->bytes()); }

// out: made where it is missing; tokenizer.json goes into it.
int write_tokenizer(Call& call, const PieceCounts& counts, const Options& opt) {
  const auto folder = opt.get<std::string>("out");
  const auto vocab = opt.get<int>("vocab");
  const auto specials = opt.get<std::vector<std::string>>("specials");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("io", folder, ": ", error.message());
  return call.push(train_bpe(counts, vocab, specials, folder + "/tokenizer.json"));
}

int trainer_write(Call& call) {
  return write_tokenizer(call, *call.self<PieceCounts>(), Options(call, 1, {"vocab", "specials", "out"}));
}

int train(Call& call) {
  const auto texts = call.arg<std::vector<std::string>>(1);
  Options opt(call, 2, {"vocab", "specials", "out"});
  PieceCounts counts(*find_grammar("qwen2"), true);
  counts.add(texts);
  return write_tokenizer(call, counts, opt);
}
}  // namespace

void register_tokenizer(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"tokenizer", fn<tokenizer>}, {"bpe_trainer", fn<bpe_trainer>}, {"train_bpe", fn<train>}});
  lua::methods<const Tokenizer>(L, {{"encode", fn<encode>},
                                    {"decode", fn<decode>},
                                    {"encode_batch", fn<encode_many>},
                                    {"decode_batch", fn<decode_many>},
                                    {"bytes", fn<bytes>},
                                    {"id", fn<id>},
                                    {"is_special", fn<is_special>},
                                    {"vocab_size", fn<vocab_size>},
                                    {"hash", fn<hash>},
                                    {"info", fn<info>},
                                    {"vocabulary", fn<vocabulary>},
                                    {"save", fn<save>},
                                    {"__tostring", fn<tostring>}});
  lua::methods<const TokenBatch>(L,
                                 {{"ids", fn<batch_ids>}, {"tokens", fn<batch_tokens>}, {"__len", fn<batch_length>}});
  lua::methods<PieceCounts>(L, {{"add", fn<trainer_add>}, {"bytes", fn<trainer_bytes>}, {"write", fn<trainer_write>}});
}

}  // namespace qeng
