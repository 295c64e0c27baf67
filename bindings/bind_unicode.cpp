// q.unicode: text as Python's str has it (engine/tokenizer/python_text.h).
#include "bindings/lua.h"
#include "bindings/register.h"
#include "engine/tokenizer/python_text.h"

namespace qeng {
namespace {
using lua::Call;

template <TextCase to>
int cased(Call& call) {
  return call.push(to_case(call.arg<std::string>(1), to));
}
int quote(Call& call) { return call.push(quoted(call.arg<std::string>(1))); }

int is(Call& call) {
  static constexpr std::pair<const char*, TextClass> kClasses[] = {
      {"alpha", TextClass::alpha}, {"digit", TextClass::digit}, {"alnum", TextClass::alnum},
      {"space", TextClass::space}, {"upper", TextClass::upper}, {"lower", TextClass::lower}};
  const std::string name = call.arg<std::string>(2);
  for (const auto& [known, wanted] : kClasses)
    if (name == known) return call.push(is_class(call.arg<std::string>(1), wanted));
  call.bad_argument(2, "alpha, digit, alnum, space, upper or lower expected, got " + name);
}
}  // namespace

void register_unicode(lua_State* L) {
  using lua::fn;
  lua::functions(L, "unicode",
                 {{"lower", fn<cased<TextCase::lower>>},
                  {"upper", fn<cased<TextCase::upper>>},
                  {"capitalize", fn<cased<TextCase::capitalize>>},
                  {"title", fn<cased<TextCase::title>>},
                  {"quoted", fn<quote>},
                  {"is", fn<is>}});
}

}  // namespace qeng
