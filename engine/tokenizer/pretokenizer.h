// Cuts text into the pieces that merging never crosses. Each grammar is one published regular expression, recognised by
// its exact text and scanned by hand; to add one, add its pattern to kGrammars and its scanner beside the others.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace qeng {

struct Grammar {
  const char* name;
  const char* first;  // cuts the text before `pattern` does; nullptr for none. Both as tokenizer.json writes them
  const char* pattern;
  // Cuts the first pieces off [p, end), which is valid UTF-8 of less than 2 GB, until `room` pieces are found or the
  // text ends: lengths[i] is the length of piece i, at least 1. Returns how many there are. The text must go on to its
  // real end: what follows a piece may decide where it stops.
  size_t (*cut)(const char* p, const char* end, uint32_t* lengths, size_t room);
};

// The language of published texts as the library reads them that they are meant for: Oniguruma for a tokenizer.json,
// fancy-regex for a name, which tiktoken's users give. nullptr if unknown. Texts: one pattern, or one after the other.
const Grammar* find_grammar_by_patterns(std::span<const std::string_view> patterns);
const Grammar* find_grammar(
    std::string_view name);    // "qwen2", "qwen3.5", "llama3", "cl100k", "o200k", "tekken", "gpt2", "smollm"
std::string known_grammars();  // "qwen2, qwen3.5, ..." for messages

}  // namespace qeng
