#include "bindings/repl.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "bindings/host.h"
#include "bindings/interrupt.h"
#include "bindings/line_editor.h"
#include "bindings/lua.h"
#include "bindings/state.h"

namespace qeng {
namespace {
std::string history_file() {
  if (const char* path = std::getenv("QENG_HISTORY")) return path;
  const char* home = std::getenv("HOME");
  return home ? std::string(home) + "/.qeng_history" : "";
}

// Pushes qeng.repl's function of that name.
bool push_repl_function(lua_State* L, const char* name) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "qeng.console.repl");
  if (!protected_call(L, 1, 1)) return false;
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
  return true;
}

// Words that may stand for `word`, which follows `before`, from qeng.repl's complete.
std::vector<std::string> complete(lua_State* L, const std::string& word, const std::string& before) {
  std::vector<std::string> words;
  const int top = lua_gettop(L);
  if (push_repl_function(L, "complete")) {
    lua_pushstring(L, word.c_str());
    lua_pushstring(L, before.c_str());
    if (protected_call(L, 2, 1) && lua_istable(L, -1)) {
      for (int i = 1; i <= static_cast<int>(lua_objlen(L, -1)); ++i) {
        lua_rawgeti(L, -1, i);
        words.emplace_back(lua_tostring(L, -1));
        lua_pop(L, 1);
      }
    }
  }
  lua_settop(L, top);
  return words;
}

// One line without its newline.
Input read_line(lua_State* L, LineEditor* editor, const char* prompt, std::string* line) {
  if (editor) return editor->read(L, prompt, "", line);
  line->clear();
  prompt_interrupts(true);
  int c = 0;
  while ((c = std::getchar()) != EOF && c != '\n') line->push_back(static_cast<char>(c));
  prompt_interrupts(false);
  if (c == EOF && std::ferror(stdin)) std::clearerr(stdin);  // a read that Ctrl-C cut short
  if (c == EOF && line->empty()) return end_or_interrupt(L);
  return Input::line;
}

void print_error(lua_State* L) {
  std::string code;
  const std::string text = error_report(L, &code);
  std::fflush(stdout);
  std::fprintf(stderr, "%s%s\n", code == "interrupted" ? "\n" : "", text.c_str());
}

// Is the chunk only unfinished? The parser's message then ends in '<eof>'.
bool unfinished(lua_State* L, int status) {
  if (status != LUA_ERRSYNTAX) return false;
  const std::string message = lua_tostring(L, -1);
  const std::string end = "'<eof>'";
  return message.size() >= end.size() && message.compare(message.size() - end.size(), end.size(), end) == 0;
}

// Reads a whole chunk, over as many lines as it takes, and leaves it compiled on the stack, as an expression if it is
// one; *status is lua_load's, with the message on the stack. Only for Input::line.
Input read_chunk(lua_State* L, LineEditor* editor, int* status) {
  std::string text, line;
  Input input = read_line(L, editor, "> ", &text);
  while (input == Input::line) {
    const std::string expression = "return " + text;
    *status = luaL_loadbuffer(L, expression.data(), expression.size(), "=stdin");
    if (*status == 0) break;
    lua_pop(L, 1);
    *status = luaL_loadbuffer(L, text.data(), text.size(), "=stdin");
    if (!unfinished(L, *status)) break;
    input = read_line(L, editor, ">> ", &line);
    if (input == Input::end) return Input::line;  // with the message that it is unfinished
    lua_pop(L, 1);
    text += "\n" + line;
  }
  if (input == Input::line && editor) editor->remember(text);
  return input;
}
}  // namespace

void prepare_repl(lua_State* L) {
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);  // a compiled loop would not see Ctrl-C
  prompt_interrupts(false);
}

bool run_at_prompt(lua_State* L, int arguments, bool is_file) {
  const int first = lua_gettop(L) - arguments;  // the function
  if (!push_repl_function(L, "run")) return false;
  lua_insert(L, first);
  lua_pushboolean(L, is_file);
  lua_insert(L, first + 1);
  if (!protected_call(L, arguments + 2, LUA_MULTRET)) return false;
  const bool done = lua_toboolean(L, first) != 0;
  lua_remove(L, first);
  take_interrupt(L);
  defer_interrupts(false);  // of a run that is paused, or was left
  return done;
}

int run_repl(lua_State* L) {
  const bool terminal = isatty(0) && isatty(1);
  prepare_repl(L);
  std::optional<LineEditor> editor;
  if (terminal) {
    std::printf("qeng %s. help() tells more, Ctrl-D leaves.\n", QENG_VERSION);
    editor.emplace(history_file(), " \t\n\"'`@$><=;|&{(+-*/%^#,[]~",
                   [L](const std::string& word, const std::string& before) { return complete(L, word, before); });
  }
  lua_settop(L, 0);
  if (!push_repl_function(L, "install") || !protected_call(L, 0, 0)) print_error(L);
  while (!told_to_end()) {
    lua_settop(L, 0);
    int status = 0;
    const Input input = read_chunk(L, editor ? &*editor : nullptr, &status);
    take_interrupt(L);
    if (input == Input::end) break;
    if (input == Input::interrupted) {
      if (terminal) std::printf("\n");
      continue;
    }
    if (status != 0) {
      print_error(L);
      continue;
    }
    if (!run_at_prompt(L, 0, false)) {
      print_error(L);
      continue;
    }
    const int results = lua_gettop(L);
    if (results == 0) continue;
    if (!push_repl_function(L, "show")) {
      print_error(L);
      continue;
    }
    lua_insert(L, 1);
    if (!protected_call(L, results, 0)) print_error(L);
    std::fflush(stdout);
  }
  if (terminal) std::printf("\n");
  return told_to_end() ? interrupt_status() : kExitDone;
}

}  // namespace qeng
