// Text to token ids and back. A Tokenizer is immutable: share it between threads.
//
// Input that is not UTF-8 has each ill-formed piece replaced by U+FFFD first (as Python's errors="replace"), so ids are
// defined for any bytes. Sources: a Hugging Face folder or its tokenizer.json, a .tiktoken rank file, a
// SentencePiece .model, a .gguf file. What a file asks for and we do not implement is refused by name when loading,
// never approximated.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

// A token found in the text as written, before any other rule. lstrip, rstrip: takes the white space before, after it
// along. normalized: looked for after normalisation rather than before.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = true, lstrip = false, rstrip = false, normalized = false;
  bool single_word = false;  // only where no letter, digit or underscore stands beside it
};

struct TokenizerProperties {
  std::string name;
  std::vector<AddedToken> added;
  std::optional<int32_t> bos, eos, pad;
  bool add_bos = false;
  std::string chat_template;
};

// Bytes of each token, end to end; ids without a token have none.
struct TokenBytes {
  std::string blob;
  std::vector<uint32_t> ends;  // token id is blob[ends[id - 1] .. ends[id])
  void append(std::string_view token) {
    blob += token;
    ends.push_back(static_cast<uint32_t>(blob.size()));
  }
  std::string_view operator[](size_t id) const {
    uint32_t begin = id ? ends[id - 1] : 0;
    return std::string_view(blob).substr(begin, ends[id] - begin);
  }
  size_t size() const { return ends.size(); }
};

struct Vocabulary;  // engine/tokenizer/vocabulary.h

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Appends the ids of text. parse_special = false treats "<|im_start|>" in it as plain text: use it for whatever a
  // user or a dataset supplies. Added tokens that are not special (such as <tool_call>) are always recognised, as in
  // Hugging Face. No bos is added: see add_bos().
  // goes_on: text continues what the ids before say, so that SentencePiece writes no space between (after an added
  // token it does write it). Ids do not change across the seam: encode a prompt and its answer so, one after the other.
  void encode(std::string_view text, std::vector<int32_t>& ids, bool parse_special, bool goes_on = false) const;
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const;

  // The bytes of ids, end to end: UTF-8 wherever the ids came from encode; ids cut at any place may begin or end inside
  // a character (Utf8Cutter in unicode.h prints those). Error("value") for an id outside [0, vocab_size).
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;
  std::string_view bytes(int32_t id) const;  // lives as long as the tokenizer; empty for an id without a token

  // As lists. Error("unsupported") where they cannot say what this tokenizer does.
  virtual Vocabulary vocabulary() const = 0;

  int vocab_size() const { return static_cast<int>(bytes_.size()); }  // largest id + 1
  std::optional<int32_t> id_of(std::string_view added_token) const;   // "<|im_end|>"
  bool is_special(int32_t id) const;
  const std::vector<AddedToken>& added_tokens() const { return properties_.added; }

  const std::string& name() const { return properties_.name; }  // for messages: the folder's or file's name
  uint64_t hash() const { return hash_; }  // XXH3-64 over all that decides ids: equal hash, equal ids
  std::optional<int32_t> bos() const { return properties_.bos; }
  std::optional<int32_t> eos() const { return properties_.eos; }
  std::optional<int32_t> pad() const { return properties_.pad; }
  bool add_bos() const { return properties_.add_bos; }  // documents of this model begin with bos()
  const std::string& chat_template() const { return properties_.chat_template; }  // Jinja source; "" if there is none

 protected:
  Tokenizer(TokenizerProperties properties, TokenBytes bytes, uint64_t model_hash);
  virtual void encode_valid(std::string_view text, std::vector<int32_t>& ids, bool parse_special,
                            bool goes_on) const = 0;
  const TokenizerProperties properties_;
  const TokenBytes bytes_;

 private:
  uint64_t hash_;
  std::vector<bool> special_;
};

// path: a folder (tokenizer.json, else tokenizer.model; with tokenizer_config.json if there), or one of those files, a
// .gguf file, or a rank file of Qwen's (.tiktoken) or Meta's (tokenizer.model), known by its number of ranks; others
// need load_tiktoken. Error("io") | Error("format") | Error("unsupported"), naming the file and the part that is not
// supported.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path);

struct TiktokenOptions {
  std::string grammar = "qwen2";  // engine/tokenizer/pretokenizer.h
  bool nfc = true;
  std::vector<std::string> specials = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};  // ids follow the last rank
  std::string eos = "<|im_end|>", pad = "<|endoftext|>", bos;                           // "" for none
  bool add_bos = false;
  std::vector<std::string> plain;  // of the specials, those that are found in any text, and printed
};
std::shared_ptr<const Tokenizer> load_tiktoken(const std::string& path, const TiktokenOptions& options = {});

}  // namespace qeng
