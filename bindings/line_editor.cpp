#include "bindings/line_editor.h"

#include <editline/readline.h>
#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "bindings/interrupt.h"
#include "engine/tokenizer/unicode.h"

namespace qeng {
namespace {
constexpr const char* kLineEnd = "\xE2\x8F\x8E";  // U+23CE
constexpr const char* kPasteBegins = "[200~";     // after an escape
constexpr const char* kPasteEnds = "\033[201~";
constexpr size_t kShown = 1000,
                 kShownLines = 20;      // of a paste that is edited: libedit draws the line for each character
constexpr size_t kRemembered = 10'000;  // bytes of a text in history
constexpr int kHistory = 2000;          // texts

int read_byte() {
  unsigned char byte = 0;
  return read(0, &byte, 1) == 1 ? byte : -1;
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

bool knows_paste() {
  const char* terminal = std::getenv("TERM");
  return terminal && std::strcmp(terminal, "dumb") != 0;
}
void bracket_paste(bool on) {
  if (!knows_paste()) return;
  std::fputs(on ? "\033[?2004h" : "\033[?2004l", stdout);
  std::fflush(stdout);
}
}  // namespace

LineEditor* LineEditor::current_ = nullptr;

LineEditor::LineEditor(std::string history, std::string word_breaks, Complete complete)
    : history_(std::move(history)), word_breaks_(std::move(word_breaks)), complete_(std::move(complete)) {
  current_ = this;
  std::setlocale(LC_CTYPE, "");  // libedit reads and shows UTF-8
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  rl_catch_signals = 0;
  rl_getc_function = [](FILE*) { return next_character(); };
  rl_outstream = ::fdopen(::dup(STDOUT_FILENO), "w");  // stdout has no descriptor of its own (standard_streams.cpp)
  rl_readline_name = const_cast<char*>("qeng");
  rl_initialize();
  rl_attempted_completion_function = completions;
  rl_completer_word_break_characters = const_cast<char*>(word_breaks_.c_str());
  using_history();
  clear_history();
  stifle_history(kHistory);
  if (!history_.empty()) read_history(history_.c_str());
}

LineEditor::~LineEditor() {
  if (current_ == this) current_ = nullptr;
}

char* LineEditor::next_completion(const char* word, int state) {
  if (!current_) return nullptr;
  std::vector<std::string>& words = current_->words_;
  if (state == 0) {
    const std::string line = rl_line_buffer;
    const size_t end = std::min(static_cast<size_t>(rl_point), line.size());
    words = current_->complete_(word, line.substr(0, end - std::min(end, std::strlen(word))));
    std::reverse(words.begin(), words.end());
  }
  if (words.empty()) return nullptr;
  char* next = strdup(words.back().c_str());
  words.pop_back();
  return next;
}

char** LineEditor::completions(const char* word, int, int) {
  rl_attempted_completion_over = 1;  // no file names
  rl_completion_append_character = '\0';
  return rl_completion_matches(word, next_completion);
}

int LineEditor::next_character() { return current_ ? current_->character() : -1; }

int LineEditor::character() {
  if (!ahead_.empty()) {
    const auto next = static_cast<int>(ahead_.back());
    ahead_.pop_back();
    return next;
  }
  const int first = read_byte();
  if (first == '\033') return escaped();
  const int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  if (more == 0) return first;
  int code = first & (0x3f >> more);
  for (int i = 0; i < more; ++i) {
    const int next = read_byte();
    if (next < 0) return -1;
    code = code << 6 | (next & 0x3f);
  }
  return code;
}

int LineEditor::escaped() {
  std::string after;
  const auto next = [&] {
    const int byte = read_byte();
    if (byte >= 0) after += static_cast<char>(byte);
    return byte;
  };
  int byte = next();
  if (byte < 0) return -1;
  if (byte == '\r' || byte == '\n') {  // Alt-Enter
    type(kLineEnd);
    return character();
  }
  while (std::string_view(kPasteBegins).starts_with(after) && after != kPasteBegins) {
    if (next() < 0) return -1;
  }
  if (after != kPasteBegins) {  // another key
    for (size_t i = after.size(); i-- > 0;) ahead_.push_back(static_cast<uint8_t>(after[i]));
    return '\033';
  }
  std::string text;
  while (!text.ends_with(kPasteEnds)) {
    if ((byte = read_byte()) < 0) return -1;
    text += static_cast<char>(byte);
  }
  text.resize(text.size() - std::strlen(kPasteEnds));
  paste(text);
  return character();
}

void LineEditor::paste(const std::string& given) {
  std::string text = given;
  replace_all(text, "\r\n", "\n");
  std::replace(text.begin(), text.end(), '\r', '\n');
  const bool plain = std::all_of(text.begin(), text.end(),
                                 [](char c) { return static_cast<uint8_t>(c) >= 0x20 || c == '\n' || c == '\t'; });
  const auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n') + 1);
  if (plain && text.size() <= kShown && lines <= kShownLines && text.find(kLineEnd) == std::string::npos)
    return type(text);
  const std::string block = "[pasted " + std::to_string(lines) + (lines == 1 ? " line #" : " lines #") +
                            std::to_string(blocks_.size() + 1) + "]";
  blocks_[block] = text;
  type(block);
}

void LineEditor::type(const std::string& given) {
  std::string text = given;
  replace_all(text, "\n", kLineEnd);
  replace_all(text, "\t", "\026\t");  // quoted: by itself it completes
  std::u32string codes;
  for (size_t at = 0; at < text.size();) {
    uint32_t code;
    const int length = utf8_length(std::string_view(text).substr(at));
    if (length <= 0) {  // no UTF-8
      code = 0xFFFD, ++at;
    } else {
      at += static_cast<size_t>(decode_utf8(text.data() + at, code));
    }
    codes.push_back(code);
  }
  ahead_.insert(ahead_.end(), codes.rbegin(), codes.rend());
}

std::string LineEditor::whole(const std::string& line) const {
  std::string text = line;
  replace_all(text, kLineEnd, "\n");
  for (const auto& [block, pasted] : blocks_) replace_all(text, block, pasted);
  return text;
}

Input LineEditor::read(lua_State* L, const std::string& prompt, const std::string& initial, std::string* text) {
  current_ = this;
  text->clear();
  ahead_.clear(), blocks_.clear();
  if (!initial.empty()) paste(initial);
  bracket_paste(true);
  prompt_interrupts(true);
  char* line = readline(prompt.c_str());
  prompt_interrupts(false);
  bracket_paste(false);
  if (!line) return end_or_interrupt(L);
  *text = whole(line);
  std::free(line);
  return Input::line;
}

void LineEditor::remember(const std::string& text) {
  if (text.empty() || text == latest_ || text.size() > kRemembered || text.find(kLineEnd) != std::string::npos) return;
  latest_ = text;
  std::string line = text;
  replace_all(line, "\n", kLineEnd);
  add_history(line.c_str());
  if (!history_.empty()) write_history(history_.c_str());
}

Input end_or_interrupt(lua_State* L) { return take_interrupt(L) && !told_to_end() ? Input::interrupted : Input::end; }

}  // namespace qeng
