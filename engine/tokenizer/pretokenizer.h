// Cuts text into the pieces that merging never crosses. Each grammar is one published regular expression, recognised by
// its exact text and scanned by hand; to add one, add its pattern to kGrammars and its scanner beside the others.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace qeng {

struct Grammar {
  const char* name;
  const char* pattern;  // as tokenizer.json writes it
  // Length of the first piece of [p, end), which is valid UTF-8 and not empty. At least 1.
  size_t (*next)(const char* p, const char* end);
};

const Grammar* find_grammar_by_pattern(std::string_view pattern);  // nullptr if unknown
const Grammar* find_grammar(std::string_view name);  // "qwen2", "qwen3.5", "llama3", "gpt2"; nullptr if unknown
std::string known_grammars();                        // "qwen2, qwen3.5, ..." for messages

}  // namespace qeng
