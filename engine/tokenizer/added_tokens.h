// Finds added tokens in a text: leftmost first, longest first at one place. One of single_word that stands in a word is
// passed over.
#pragma once
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace qeng {

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }

  // Calls on_text(piece) for each non-empty stretch between tokens and on_token(id) for each token, in order.
  // with_special = false passes over tokens that are special.
  template <class OnText, class OnToken>
  void split(std::string_view text, bool with_special, OnText on_text, OnToken on_token) const {
    size_t done = 0, from = 0;
    while (const AddedToken* token = find(text, with_special, from)) {
      size_t begin = from, end = from + token->content.size();
      if (token->lstrip) begin = std::max(done, before_white_space(text, begin));
      if (token->rstrip) end = after_white_space(text, end);
      if (begin > done) on_text(text.substr(done, begin - done));
      on_token(token->id);
      done = from = end;
    }
    if (done < text.size()) on_text(text.substr(done));
  }

 private:
  // The first token at or after `from`, and moves `from` to it; nullptr if none follows.
  const AddedToken* find(std::string_view text, bool with_special, size_t& from) const;
  // The longest that text begins with, of those spelled alike the first; nullptr if none. text is not empty.
  const AddedToken* longest(std::string_view text, bool with_special) const;
  static size_t before_white_space(std::string_view text, size_t at);
  static size_t after_white_space(std::string_view text, size_t at);

  std::vector<AddedToken> tokens_;     // by content
  std::array<uint32_t, 257> first_{};  // tokens_[first_[b] .. first_[b + 1]) begin with byte b
  int only_first_byte_ = -1;           // the first byte of all of them, if they share it (usually '<')
};

}  // namespace qeng
