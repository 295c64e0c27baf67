// Byte-level BPE as a Tokenizer: added tokens, normal form C, pieces, merges; with a cache of short pieces.
#pragma once
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/cutter.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

namespace qeng {

class ByteBpeTokenizer final : public Tokenizer {
 public:
  struct Text {
    Cutter cutter;
    bool nfc = false;
    bool prefix_space = false;  // in front of each stretch between added tokens that does not begin with one
  };
  ByteBpeTokenizer(TokenizerProperties properties, TokenBytes bytes, Bpe bpe, Text text);
  Vocabulary vocabulary() const override;

 protected:
  void encode_valid(std::string_view text, std::vector<int32_t>& ids, bool parse_special, bool goes_on) const override;

 private:
  void encode_stretch(std::string_view text, std::vector<int32_t>& ids) const;
  void encode_pieces(const char* p, const uint32_t* lengths, size_t count, const char* end,
                     std::vector<int32_t>& ids) const;
  [[noreturn]] void refuse_byte(std::string_view piece) const;
  Bpe bpe_;
  const Text text_;
  AddedTokenFinder raw_, normalized_;  // looked for before and after normalising
  uint32_t serial_;                    // tells apart the tokenizers that share a thread's cache; 30 bits
};

// GPT-2's spelling of bytes as printable characters, in which tokenizer.json writes byte-level tokens.
std::string bytes_to_printable(std::string_view bytes);
bool printable_to_bytes(std::string_view printable, std::string& bytes);  // false if some character stands for no byte

// Fills ids[b] with the token of byte b; where there is none, with `unknown`, or -1: such a text is refused.
void find_byte_tokens(const TokenBytes& bytes, std::optional<int32_t> unknown, int32_t (&ids)[256]);

}  // namespace qeng
