#include "bindings/repl.h"

#include <editline/readline.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

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
  static std::vector<std::string> words;
  if (state == 0) {
    lua_State* L = completing;
    const int top = lua_gettop(L);
    words.clear();
    if (push_repl_function(L, "complete")) {
      lua_pushstring(L, text);
      if (protected_call(L, 1, 1) && lua_istable(L, -1)) {
        for (int i = static_cast<int>(lua_objlen(L, -1)); i >= 1; --i) {
          lua_rawgeti(L, -1, i);
          words.emplace_back(lua_tostring(L, -1));
          lua_pop(L, 1);
        }
      }
    }
    lua_settop(L, top);
  }
  if (words.empty()) return nullptr;
  char* word = strdup(words.back().c_str());
  words.pop_back();
  return word;
}

char** complete(const char* text, int, int) {
  rl_attempted_completion_over = 1;  // no file names
  rl_completion_append_character = '\0';
  return rl_completion_matches(text, next_completion);
}

// One byte from the terminal; -1 at its end and when Ctrl-C was pressed, which makes readline() give up the line.
int read_byte() {
  unsigned char byte = 0;
  return read(0, &byte, 1) == 1 ? byte : -1;
}

// One character for libedit, decoded from UTF-8: what it takes from here is wide.
int read_character(FILE*) {
  const int first = read_byte();
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  if (more == 0) return first;
  int character = first & (0x3f >> more);
  for (int i = 0; i < more; ++i) {
    const int next = read_byte();
    if (next < 0) return -1;
    character = character << 6 | (next & 0x3f);
  }
  return character;
}

enum class Input { line, interrupted, end };

Input end_or_interrupt(lua_State* L) { return take_interrupt(L) && !told_to_end() ? Input::interrupted : Input::end; }

// One line without its newline.
Input read_line(lua_State* L, bool terminal, const char* prompt, std::string* line) {
  line->clear();
  prompt_interrupts(true);
  if (terminal) {
    completing = L;
    char* text = readline(prompt);
    prompt_interrupts(false);
    if (!text) return end_or_interrupt(L);
    *line = text;
    std::free(text);
    return Input::line;
  }
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
Input read_chunk(lua_State* L, bool terminal, int* status) {
  std::string text, line;
  Input input = read_line(L, terminal, "> ", &text);
  while (input == Input::line) {
    const std::string expression = "return " + text;
    *status = luaL_loadbuffer(L, expression.data(), expression.size(), "=stdin");
    if (*status == 0) break;
    lua_pop(L, 1);
    *status = luaL_loadbuffer(L, text.data(), text.size(), "=stdin");
    if (!unfinished(L, *status)) break;
    input = read_line(L, terminal, ">> ", &line);
    if (input == Input::end) return Input::line;  // with the message that it is unfinished
    lua_pop(L, 1);
    text += "\n" + line;
  }
  if (input == Input::line && terminal && !text.empty()) add_history(text.c_str());
  return input;
}
}  // namespace

int run_repl(lua_State* L) {
  const bool terminal = isatty(0) && isatty(1);
  luaJIT_setmode(L, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);  // a compiled loop would not see Ctrl-C
  const std::string history = history_file();
  if (terminal) {
    std::printf("qeng %s. help() tells more, Ctrl-D leaves.\n", QENG_VERSION);
    std::setlocale(LC_CTYPE, "");  // libedit reads and shows UTF-8
    rl_catch_signals = 0;
    rl_getc_function = read_character;
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
  while (!told_to_end()) {
    lua_settop(L, 0);
    int status = 0;
    const Input input = read_chunk(L, terminal, &status);
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
  return told_to_end() ? interrupt_status() : kExitDone;
}

}  // namespace qeng
