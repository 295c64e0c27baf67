#include "bindings/repl.h"

#include <editline/readline.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "bindings/host.h"
#include "bindings/interrupt.h"
#include "bindings/lua.h"
#include "bindings/state.h"

namespace qeng {
namespace {
lua_State* completing = nullptr;

std::string history_file() {
  if (const char* path = std::getenv("QENG_HISTORY")) return path;
  const char* home = std::getenv("HOME");
  return home ? std::string(home) + "/.qeng_history" : "";
}

// Pushes qeng.repl's function of that name.
bool push_repl_function(lua_State* L, const char* name) {
  lua_getglobal(L, "require");
  lua_pushstring(L, "qeng.repl");
  if (!protected_call(L, 1, 1)) return false;
  lua_getfield(L, -1, name);
  lua_remove(L, -2);
  return true;
}

// Words that may continue `text`, from qeng.repl's complete(text); libedit asks for one at a time.
char* next_completion(const char* text, int state) {
  lua_State* L = completing;
  if (state == 0) {
    lua_settop(L, 0);
    if (!push_repl_function(L, "complete")) return lua_settop(L, 0), nullptr;
    lua_pushstring(L, text);
    if (!protected_call(L, 1, 1)) return lua_settop(L, 0), nullptr;
  }
  if (!lua_istable(L, 1)) return nullptr;
  lua_rawgeti(L, 1, state + 1);
  char* word = lua_isstring(L, -1) ? strdup(lua_tostring(L, -1)) : nullptr;
  lua_pop(L, 1);
  return word;
}

char** complete(const char* text, int, int) {
  rl_attempted_completion_over = 1;  // no file names
  rl_completion_append_character = '\0';
  return rl_completion_matches(text, next_completion);
}

// One line without its newline; false at the end of input.
bool read_line(lua_State* L, bool terminal, const char* prompt, std::string* line) {
  line->clear();
  if (terminal) {
    completing = L;
    prompt_interrupts(true);
    char* text = readline(prompt);
    prompt_interrupts(false);
    if (!text) return false;
    *line = text;
    std::free(text);
    return true;
  }
  for (int c; (c = std::getchar()) != EOF;) {
    if (c == '\n') return true;
    line->push_back(static_cast<char>(c));
  }
  return !line->empty();
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
// one. Returns false at the end of input; *status is lua_load's, with the message on the stack.
bool read_chunk(lua_State* L, bool terminal, int* status) {
  std::string text, line;
  if (!read_line(L, terminal, "> ", &line)) return false;
  text = line;
  for (;;) {
    const std::string expression = "return " + text;
    if (luaL_loadbuffer(L, expression.data(), expression.size(), "=stdin") == 0)
      return *status = 0, add_history(text.c_str()), true;
    lua_pop(L, 1);
    *status = luaL_loadbuffer(L, text.data(), text.size(), "=stdin");
    if (!unfinished(L, *status)) break;
    if (!read_line(L, terminal, ">> ", &line)) break;
    lua_pop(L, 1);
    text += "\n" + line;
  }
  if (!text.empty()) add_history(text.c_str());
  return true;
}
}  // namespace

int run_repl(lua_State* L) {
  const bool terminal = isatty(0) && isatty(1);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);  // a compiled loop would not see Ctrl-C
  const std::string history = history_file();
  if (terminal) {
    std::printf("qeng %s. help() tells more, Ctrl-D leaves.\n", QENG_VERSION);
    rl_readline_name = const_cast<char*>("qeng");
    rl_initialize();
    rl_attempted_completion_function = complete;
    rl_completer_word_break_characters = const_cast<char*>(" \t\n\"'`@$><=;|&{(+-*/%^#,[]~");
    using_history();
    stifle_history(2000);
    if (!history.empty()) read_history(history.c_str());
  }
  lua_settop(L, 0);
  if (!push_repl_function(L, "install") || !protected_call(L, 0, 0)) print_error(L);
  for (;;) {
    lua_settop(L, 0);
    int status = 0;
    const bool more = read_chunk(L, terminal, &status);
    take_interrupt(L);  // one pressed at the prompt
    if (!more) break;
    if (status != 0) {
      print_error(L);
      continue;
    }
    if (!protected_call(L, 0, LUA_MULTRET)) {
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
  if (terminal) {
    std::printf("\n");
    if (!history.empty()) write_history(history.c_str());
  }
  return kExitDone;
}

}  // namespace qeng
