#include "engine/tokenizer/pretokenizer.h"

#include "engine/tokenizer/unicode.h"

namespace qeng {
namespace {

struct Char {
  uint8_t kind;
  int bytes;
};

inline Char char_at(const uint8_t* table, const char* p) {
  uint32_t code;
  int bytes = decode_utf8(p, code);
  return {static_cast<uint8_t>(table[code] & kClassMask), bytes};
}

template <class Belongs>
inline const char* run(const uint8_t* table, const char* p, const char* end, Belongs belongs) {
  while (p < end) {
    Char c = char_at(table, p);
    if (!belongs(c.kind)) break;
    p += c.bytes;
  }
  return p;
}

// 's 't 're 've 'm 'll 'd behind the apostrophe at p; 0 if none. Folding also maps U+017F (long s) to s.
size_t contraction(const char* p, const char* end, bool fold) {
  size_t left = static_cast<size_t>(end - p);
  if (left < 2) return 0;
  auto letter = [&](size_t i) { return fold && p[i] >= 'A' && p[i] <= 'Z' ? p[i] | 0x20 : p[i]; };
  int first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
  if (left < 3) return 0;
  if (fold && p[1] == '\xC5' && p[2] == '\xBF') return 3;
  int second = letter(2);
  return ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l') ? 3 : 0;
}

// \s*[\r\n]+ | \s+(?!\S) | \s+   at a white space; without the first alternative for GPT-2.
size_t white_space(const uint8_t* table, const char* begin, const char* end, bool cut_after_newline) {
  const char* p = begin;
  const char* last = begin;             // the last white space of the run
  const char* after_newline = nullptr;  // behind the last line end of the run
  while (p < end) {
    Char c = char_at(table, p);
    if (c.kind != kSpace && c.kind != kNewline) break;
    last = p;
    p += c.bytes;
    if (c.kind == kNewline) after_newline = p;
  }
  if (cut_after_newline && after_newline) return static_cast<size_t>(after_newline - begin);
  // The last space before a word stays with the word.
  return static_cast<size_t>((p == end || last == begin ? p : last) - begin);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,kDigits} | [ ]?[^\s\p{L}\p{N}]+[\r\n]*
// | \s*[\r\n]+ | \s+(?!\S) | \s+
//
// With kMarks, words are [\p{L}\p{M}]+ and symbols exclude \p{M}. A mark in front of a word is then part of the same
// piece whether it is taken for the optional first character or for the word's own.
template <bool kMarks, int kDigits>
size_t next_modern(const char* p, const char* end) {
  const uint8_t* table = unicode_table();
  auto word = [](uint8_t kind) { return kind == kLetter || (kMarks && kind == kMark); };
  auto symbol = [](uint8_t kind) { return kind == kOther || (!kMarks && kind == kMark); };
  auto length = [p](const char* stop) { return static_cast<size_t>(stop - p); };

  Char first = char_at(table, p);
  const char* second = p + first.bytes;
  if (word(first.kind)) return length(run(table, second, end, word));
  if (*p == '\'')
    if (size_t n = contraction(p, end, true)) return n;
  if (first.kind == kNumber) {
    const char* stop = second;
    for (int digits = 1; digits < kDigits && stop < end; ++digits) {
      Char c = char_at(table, stop);
      if (c.kind != kNumber) break;
      stop += c.bytes;
    }
    return length(stop);
  }
  Char next = second < end ? char_at(table, second) : Char{kNewline, 0};
  if (first.kind != kNewline && word(next.kind)) return length(run(table, second, end, word));
  if (symbol(first.kind) || (*p == ' ' && symbol(next.kind))) {
    const char* stop = run(table, second, end, symbol);
    while (stop < end && (*stop == '\r' || *stop == '\n')) ++stop;
    return length(stop);
  }
  return white_space(table, p, end, true);
}

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t next_gpt2(const char* p, const char* end) {
  const uint8_t* table = unicode_table();
  if (*p == '\'')
    if (size_t n = contraction(p, end, false)) return n;
  const char* start = *p == ' ' && p + 1 < end ? p + 1 : p;
  uint8_t kind = char_at(table, start).kind;
  if (kind == kSpace || kind == kNewline) return white_space(table, p, end, false);
  auto merged = [](uint8_t k) -> int { return k == kMark ? int{kOther} : int{k}; };  // this grammar knows no marks
  auto same = [&](uint8_t other) { return merged(other) == merged(kind); };
  return static_cast<size_t>(run(table, start, end, same) - p);
}

// Exact texts. llama3 is also the pattern of GPT-4 (cl100k), as published for Hugging Face.
constexpr Grammar kGrammars[] = {
    {"qwen2",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     next_modern<false, 1>},
    {"qwen3.5",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     next_modern<true, 1>},
    {"llama3",
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     next_modern<false, 3>},
    {"gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", next_gpt2},
};

}  // namespace

const Grammar* find_grammar_by_pattern(std::string_view pattern) {
  for (const Grammar& grammar : kGrammars)
    if (pattern == grammar.pattern) return &grammar;
  return nullptr;
}

const Grammar* find_grammar(std::string_view name) {
  for (const Grammar& grammar : kGrammars)
    if (name == grammar.name) return &grammar;
  return nullptr;
}

std::string known_grammars() {
  std::string names;
  for (const Grammar& grammar : kGrammars) names += (names.empty() ? "" : ", ") + std::string(grammar.name);
  return names;
}

}  // namespace qeng
