// A tokenizer as lists, the way GGUF files hold one: what a file is written from, and what a tokenizer is made of.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/gguf.h"
#include "engine/tokenizer/tokenizer.h"

namespace qeng {

enum class TokenType : int32_t { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };

struct Vocabulary {
  std::string model;                // "gpt2": byte-level BPE; "llama": SentencePiece's BPE
  std::string pre;                  // gpt2: the label of how text is cut (kPreTokenizers); llama: "default"
  std::vector<std::string> tokens;  // gpt2: in GPT-2's spelling of bytes, but added ones as they are
  std::vector<TokenType> types;
  std::vector<float> scores;        // llama
  std::vector<std::string> merges;  // gpt2: "left right", best first
  bool add_space_prefix = false;    // llama
};

// The labels of tokenizer.ggml.pre that are known, and what each of them stands for. llama.cpp never normalises; the
// models' own tokenizers do where nfc is set, and so do we.
struct PreTokenizer {
  const char* pre;
  const char* grammar;  // engine/tokenizer/pretokenizer.h
  bool nfc, ignore_merges, add_bos;
};
inline constexpr PreTokenizer kPreTokenizers[] = {
    {"qwen2", "qwen2", true, false, false},       {"deepseek-r1-qwen", "qwen2", false, false, false},
    {"qwen35", "qwen3.5", true, false, false},    {"llama-bpe", "llama3", false, true, true},
    {"llama3", "llama3", false, true, true},      {"llama-v3", "llama3", false, true, true},
    {"smaug-bpe", "llama3", false, false, false}, {"gpt-2", "gpt2", false, false, false},
    {"phi-2", "gpt2", false, false, false},       {"olmo", "gpt2", false, false, false},
    {"gpt-4o", "o200k", false, false, false},     {"tekken", "tekken", false, true, true},
};

// From tokenizer.ggml.* of a file. Error("format") | Error("unsupported"), naming the file and the entry.
std::shared_ptr<const Tokenizer> load_gguf_tokenizer(const Gguf& file);

}  // namespace qeng
