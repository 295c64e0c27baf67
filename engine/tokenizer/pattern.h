// Regular expressions of tokenizer files, by PCRE2 and its compiler, as Hugging Face's tokenizers read them: Oniguruma
// with Ruby's syntax, in which ^ and $ stand at each line.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace qeng {

class Pattern {
 public:
  // Error("unsupported") naming what PCRE2 would read differently, or does not take.
  explicit Pattern(const std::string& text);
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;
  ~Pattern();

  // The first match in text, which is valid UTF-8, that begins at `from` or later: its begin and end. It may be empty.
  // Error("value") where matching takes more steps than any text of a person needs.
  bool find(std::string_view text, size_t from, size_t& begin, size_t& end) const;
  const std::string& text() const { return text_; }

 private:
  struct Code;
  std::string text_;
  std::unique_ptr<Code> code_;
};

}  // namespace qeng
