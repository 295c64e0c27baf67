// Byte-level BPE as a Tokenizer: added tokens, normal form C, pieces of a grammar, merges; with a cache of short
// pieces.
#pragma once
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/pretokenizer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/vocabulary.h"

namespace qeng {

class ByteBpeTokenizer final : public Tokenizer {
 public:
  ByteBpeTokenizer(TokenizerProperties properties, TokenBytes bytes, Bpe bpe, const Grammar& grammar,
                   bool normalize_nfc);
  Vocabulary vocabulary() const override;

 protected:
  void encode_valid(std::string_view text, std::vector<int32_t>& ids, bool parse_special, bool goes_on) const override;

 private:
  void encode_pieces(std::string_view text, std::vector<int32_t>& ids) const;
  Bpe bpe_;
  const Grammar& grammar_;
  bool nfc_;
  AddedTokenFinder raw_, normalized_;  // looked for before and after normalising
  uint32_t serial_;                    // tells apart the tokenizers that share a thread's cache; 30 bits
};

// GPT-2's spelling of bytes as printable characters, in which tokenizer.json writes byte-level tokens.
std::string bytes_to_printable(std::string_view bytes);
bool printable_to_bytes(std::string_view printable, std::string& bytes);  // false if some character stands for no byte

// Error("format") unless every byte is a token; otherwise fills ids[b].
void find_byte_tokens(const std::string& file, const TokenBytes& bytes, int32_t (&ids)[256]);

}  // namespace qeng
