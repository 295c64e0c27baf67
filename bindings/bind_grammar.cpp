// q.grammar and q.json_schema: what output has to follow, matchers of it, and the masks that q.sampler takes.
#include "bindings/json.h"
#include "bindings/register.h"
#include "bindings/sampling.h"
#include "engine/grammar/grammar.h"

QENG_LUA_CLASS(qeng::grammar::OutputGrammar, "Grammar")
QENG_LUA_CLASS(qeng::grammar::Matcher, "Matcher")
QENG_LUA_CLASS(const qeng::Tokenizer, "Tokenizer")

namespace qeng {
namespace {
using grammar::Matcher;
using grammar::OutputGrammar;
using lua::Call;

int from_text(Call& call) {
  const auto schemas = lua::Options(call, 2, {"schemas"}).get("schemas", std::map<std::string, std::string>{});
  return call.push(OutputGrammar::from_gbnf(call.arg<std::string>(1), schemas));
}

int from_schema(Call& call) {
  const bool text = lua_type(call.L, call.index(1)) == LUA_TSTRING;
  return call.push(OutputGrammar::from_schema(text ? call.arg<std::string>(1)
                                                   : json_text(call.L, call.index(1), {.ordered = true})));
}

int matcher(Call& call) {
  const auto self = call.self<OutputGrammar>();
  const auto tokenizer = call.arg<std::shared_ptr<const Tokenizer>>(1);
  const lua::Options options(call, 2, {"ends", "spoken"});
  const auto ends = options.get("ends", std::vector<int32_t>{}), spoken = options.get("spoken", std::vector<int32_t>{});
  return call.push(std::make_shared<Matcher>(self->constraint(tokenizer, ends, spoken)));
}

int mask(Call& call) { return call.push(call.self<Matcher>()->mask()); }
int allows(Call& call) { return call.push(call.self<Matcher>()->allows(call.arg<int32_t>(1))); }
int complete(Call& call) { return call.push(call.self<Matcher>()->complete()); }
int finished(Call& call) { return call.push(call.self<Matcher>()->finished()); }
int clone(Call& call) { return call.push(std::make_shared<Matcher>(*call.self<Matcher>())); }

int accept(Call& call) {
  call.self<Matcher>()->accept(call.arg<int32_t>(1));
  return 0;
}

int reset(Call& call) {
  call.self<Matcher>()->reset();
  return 0;
}

int mask_allows(Call& call) { return call.push(call.self<const TokenMask>()->allows(call.arg<int64_t>(1))); }
int mask_count(Call& call) { return call.push(call.self<const TokenMask>()->count()); }
int mask_length(Call& call) { return call.push(call.arg<std::shared_ptr<const TokenMask>>(1)->vocab); }

int mask_ids(Call& call) {
  const auto self = call.self<const TokenMask>();
  std::vector<int64_t> ids;
  for (int64_t id = 0; id < self->vocab; ++id) {
    if (self->allows(id)) ids.push_back(id);
  }
  return call.push(ids);
}
}  // namespace

void register_grammar(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"grammar", fn<from_text>}, {"json_schema", fn<from_schema>}});
  lua::methods<OutputGrammar>(L, {{"matcher", fn<matcher>}});
  lua::methods<Matcher>(L, {{"mask", fn<mask>},
                            {"allows", fn<allows>},
                            {"accept", fn<accept>},
                            {"complete", fn<complete>},
                            {"finished", fn<finished>},
                            {"clone", fn<clone>},
                            {"reset", fn<reset>}});
  lua::methods<const TokenMask>(
      L, {{"allows", fn<mask_allows>}, {"count", fn<mask_count>}, {"ids", fn<mask_ids>}, {"__len", fn<mask_length>}});
}

}  // namespace qeng
