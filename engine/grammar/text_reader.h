// The text of a grammar or of a regular expression, character by character, with the place for messages.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/tokenizer/unicode.h"

namespace qeng::grammar {

// A position in UTF-8 text. Errors are Error("format") "WHAT, line 2, column 7: ...".
class TextReader {
 public:
  TextReader(std::string_view text, std::string what);  // refuses what is not UTF-8, and over kMaxText bytes
  bool at_end() const { return at_ == text_.size(); }
  char peek() const { return text_[at_]; }  // the byte here; not at the end
  std::string_view rest() const { return text_.substr(at_); }
  size_t position() const { return at_; }
  void seek(size_t position) { at_ = position; }

  uint32_t next();                         // the character here, and past it; not at the end
  bool take(std::string_view expected);    // past it if it is here
  uint32_t hex(size_t begin, int digits);  // of an escape that began at `begin`: a code point that is not a surrogate
  // Past one of * + ? {m} {m,} {m,n} if it is here, with its bounds; max is Expr::kUnlimited where there is none. A
  // bound over `most` is refused.
  bool take_repeat(uint32_t most, int& min, int& max);

  [[noreturn]] void fail_at(size_t position, const std::string& message) const;
  [[noreturn]] void fail_here(const std::string& message) const { fail_at(at_, message); }

 private:
  void bounds(size_t begin, uint32_t most, int& min, int& max);  // of {m,n}, past its {
  std::string_view text_;
  std::string what_;
  size_t at_ = 0;
};

}  // namespace qeng::grammar
