// q.tokenizer: text to token ids and back.
#include <cstdio>
#include <filesystem>

#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/tokenizer/bpe_train.h"
#include "engine/tokenizer/tokenizer.h"

QENG_LUA_CLASS(const qeng::Tokenizer, "Tokenizer")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;

int tokenizer(Call& call) { return call.push(load_tokenizer(call.arg<std::string>(1))); }

int encode(Call& call) {
  const auto self = call.self<const Tokenizer>();
  const auto text = call.arg<std::string>(1);
  return call.push(self->encode(text, Options(call, 2, {"special"}).get("special", false)));
}

int decode(Call& call) {
  const auto self = call.self<const Tokenizer>();
  const auto ids = call.arg<std::vector<int32_t>>(1);
  return call.push(self->decode(ids, Options(call, 2, {"skip_special"}).get("skip_special", false)));
}

// The id of argument 1, checked against the vocabulary.
int32_t token(const Call& call, const Tokenizer& self) {
  const auto id = call.arg<int64_t>(1);
  if (id < 0 || id >= self.vocab_size()) {
    fail("value", call.name, ": token ", id, " is outside the vocabulary [0, ", self.vocab_size(), ")");
  }
  return static_cast<int32_t>(id);
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
  lua::set_field(L, "add_bos", self->add_bos());
  if (!self->chat_template().empty()) lua::set_field(L, "chat_template", self->chat_template());
  return 1;
}

int tostring(Call& call) {
  const auto self = call.arg<std::shared_ptr<const Tokenizer>>(1);
  return call.push("Tokenizer " + self->name() + ", " + std::to_string(self->vocab_size()) + " tokens");
}

int train(Call& call) {
  const auto texts = call.arg<std::vector<std::string>>(1);
  Options opt(call, 2, {"vocab", "specials", "out"});
  const auto folder = opt.get<std::string>("out");
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("io", folder, ": ", error.message());
  train_bpe(texts, opt.get<int>("vocab"), opt.get<std::vector<std::string>>("specials"), folder + "/tokenizer.json");
  return 0;
}
}  // namespace

void register_tokenizer(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"tokenizer", fn<tokenizer>}, {"train_bpe", fn<train>}});
  lua::methods<const Tokenizer>(L, {{"encode", fn<encode>},
                                    {"decode", fn<decode>},
                                    {"bytes", fn<bytes>},
                                    {"id", fn<id>},
                                    {"is_special", fn<is_special>},
                                    {"vocab_size", fn<vocab_size>},
                                    {"hash", fn<hash>},
                                    {"info", fn<info>},
                                    {"__tostring", fn<tostring>}});
}

}  // namespace qeng
