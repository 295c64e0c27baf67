// q.host.line_editor: lines from the terminal, edited.
#include "bindings/interrupt.h"
#include "bindings/line_editor.h"
#include "bindings/lua.h"
#include "bindings/register.h"
#include "kernels/error.h"

QENG_LUA_CLASS(qeng::LineEditor, "LineEditor")

namespace qeng {
namespace {
using lua::Call;

int line_editor(Call& call) {
  lua::Options opt(call, 1, {"history", "complete"});
  LineEditor::Complete complete = [](const std::string&, const std::string&) { return std::vector<std::string>{}; };
  if (opt.has("complete")) {
    opt.push("complete");
    const lua::Ref given(call.L, -1);
    lua_pop(call.L, 1);
    complete = [given](const std::string& word, const std::string& before) {
      return given.call<std::vector<std::string>>(word, before);
    };
  }
  return call.push(std::make_shared<LineEditor>(opt.get("history", std::string()), " \t\n", std::move(complete)));
}

int read_text(Call& call) {
  std::string text;
  const auto self = call.self<LineEditor>();
  const Input input = self->read(call.L, call.arg<std::string>(1), call.arg<std::string>(2, ""), &text);
  if (told_to_end()) fail("interrupted", "ended by ", interrupt_name());
  if (input == Input::line) return call.push(text);
  lua_pushnil(call.L);
  lua_pushstring(call.L, input == Input::interrupted ? "interrupted" : "end");
  return 2;
}

int remember(Call& call) {
  call.self<LineEditor>()->remember(call.arg<std::string>(1));
  return 0;
}
}  // namespace

void register_line_editor(lua_State* L) {
  using lua::fn;
  lua::functions(L, "host", {{"line_editor", fn<line_editor>}});
  lua::methods<LineEditor>(L, {{"read", fn<read_text>}, {"remember", fn<remember>}});
}

}  // namespace qeng
