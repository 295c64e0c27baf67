// A tokenizer as lists, the way GGUF files hold one: what a file is written from, and what a tokenizer is made of.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/gguf.h"
#include "engine/tokenizer/cutter.h"
#include "engine/tokenizer/tokenizer.h"

namespace qeng {

enum class TokenType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Vocabulary {
  std::string model;                // "gpt2": byte-level BPE; "llama": SentencePiece's BPE; from files also BPE of
                                    // characters: "gemma4", "whitespace", or "gpt2" and a label of those
  std::string pre;                  // gpt2: the label of how text is cut (pre_tokenizers); llama: "default"
  std::vector<std::string> tokens;  // gpt2: in GPT-2's spelling of bytes, but added ones as they are
  std::vector<TokenType> types;
  std::vector<float> scores;        // llama
  std::vector<std::string> merges;  // gpt2: "left right", best first
  bool add_space_prefix = false;    // llama
};

// A label of tokenizer.ggml.pre and what it stands for. llama.cpp never normalises; the models' own tokenizers do where
// nfc is set, and so do we.
struct PreTokenizer {
  const char* pre;
  const char* cuts;  // a grammar of pretokenizer.h, or a list of patterns (gguf_pretokenizers.cpp)
  bool nfc = false, ignore_merges = false, add_bos = false;
};
std::span<const PreTokenizer> pre_tokenizers();
const PreTokenizer* find_pre_tokenizer(std::string_view pre);  // nullptr if unknown
std::span<const char* const> character_pre_tokenizers();       // labels of BPE of characters (gguf_characters.cpp)
const char* why_refused(std::string_view pre);  // of a label that llama.cpp knows and we cannot follow, or nullptr
Cutter cutter_of(const PreTokenizer& pre);

// From tokenizer.ggml.* of a file. Error("format") | Error("unsupported"), naming the file and the entry.
std::shared_ptr<const Tokenizer> load_gguf_tokenizer(const Gguf& file);

}  // namespace qeng
