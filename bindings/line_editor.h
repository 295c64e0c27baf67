// Lines from the terminal, edited by libedit: history in a file, completion, and text of several lines, which comes by
// pasting it (bracketed paste), by Alt-Enter, or from history. A line end inside the text is shown as U+23CE; a long
// paste as "[pasted 40 lines #1]". libedit has one state: of several editors, the latest one counts.
#pragma once
#include <functional>
#include <lua.hpp>
#include <map>
#include <string>
#include <vector>

namespace qeng {

enum class Input { line, interrupted, end };

class LineEditor {
 public:
  // The words that may stand in place of `word`, which follows `before` on its line.
  using Complete = std::function<std::vector<std::string>(const std::string& word, const std::string& before)>;
  // word_breaks: what ends a word for completion. history: a file, "" for none.
  LineEditor(std::string history, std::string word_breaks, Complete complete);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // initial: text to begin with. Ctrl-C gives up the line (interrupted); SIGTERM and SIGHUP are an end.
  Input read(lua_State* L, const std::string& prompt, const std::string& initial, std::string* text);
  void remember(const std::string& text);  // in history, and its file

 private:
  static char* next_completion(const char* word, int state);
  static char** completions(const char* word, int start, int end);
  static int next_character();
  int character();  // decoded; -1 at the end and when Ctrl-C was pressed
  int escaped();    // what follows an escape
  void paste(const std::string& text);
  void type(const std::string& text);  // as if it were typed
  std::string whole(const std::string& line) const;

  static LineEditor* current_;
  const std::string history_, word_breaks_;
  const Complete complete_;
  std::vector<std::string> words_;             // left of a completion, from the last
  std::string latest_;                         // of history
  std::u32string ahead_;                       // characters to come before those of the terminal, from the last
  std::map<std::string, std::string> blocks_;  // what stands for a paste, and the paste
};

// The input's end, or a Ctrl-C that was noted while it was read.
Input end_or_interrupt(lua_State* L);

}  // namespace qeng
