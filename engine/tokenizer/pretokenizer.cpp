#include "engine/tokenizer/pretokenizer.h"

#include <bit>
#include <climits>

#include "engine/tokenizer/unicode.h"

// Every x86-64 and every aarch64 has these: words are mostly shorter than 16 bytes, so AVX2 would find nothing more.
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace qeng {
namespace {

struct Char {
  uint8_t kind;
  int bytes;
};

inline Char char_at(const uint8_t* table, const char* p) {
  uint8_t byte = static_cast<uint8_t>(*p);
  if (byte < 0x80) return {static_cast<uint8_t>(table[byte] & kClassMask), 1};
  uint32_t code;
  int bytes = decode_utf8(p, code);
  return {static_cast<uint8_t>(table[code] & kClassMask), bytes};
}

// Behind the run of ASCII letters at p; with kLowerOnly, of lower-case ones.
template <bool kLowerOnly>
inline const char* skip_ascii_letters(const char* p, const char* end) {
#if defined(__SSE2__)
  while (end - p >= 16) {
    __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    if (!kLowerOnly) bytes = _mm_or_si128(bytes, _mm_set1_epi8(0x20));
    // Moved up so that 'z' is the largest signed byte, letters are the 26 largest.
    __m128i letters = _mm_cmpgt_epi8(_mm_add_epi8(bytes, _mm_set1_epi8(127 - 'z')), _mm_set1_epi8(127 - 26));
    unsigned others = ~static_cast<unsigned>(_mm_movemask_epi8(letters)) & 0xFFFF;
    if (others) return p + std::countr_zero(others);
    p += 16;
  }
#elif defined(__aarch64__)
  while (end - p >= 16) {
    uint8x16_t bytes = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
    if (!kLowerOnly) bytes = vorrq_u8(bytes, vdupq_n_u8(0x20));
    const uint8x16_t other = vcgtq_u8(vsubq_u8(bytes, vdupq_n_u8('a')), vdupq_n_u8(25));
    const uint8x8_t nibbles = vshrn_n_u16(vreinterpretq_u16_u8(other), 4);  // four bits of each byte
    const uint64_t others = vget_lane_u64(vreinterpret_u64_u8(nibbles), 0);
    if (others) return p + std::countr_zero(others) / 4;
    p += 16;
  }
#endif
  while (p < end && static_cast<uint8_t>((kLowerOnly ? *p : *p | 0x20) - 'a') < 26) ++p;
  return p;
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

// The same for classes that hold all ASCII letters, or all lower-case ones and no other ASCII.
template <bool kLowerOnly, class Belongs>
inline const char* word_run(const uint8_t* table, const char* p, const char* end, Belongs belongs) {
  while (true) {
    p = skip_ascii_letters<kLowerOnly>(p, end);
    if (p == end || static_cast<uint8_t>(*p) < 0x80) return p;
    Char c = char_at(table, p);
    if (!belongs(c.kind)) return p;
    p += c.bytes;
  }
}

// Length of 's 't 're 've 'm 'll 'd at the apostrophe at p; 0 if none. Folding also maps U+017F (long s) to s.
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

// How a grammar cuts a run of white space. kPlain: \s+(?!\S) | \s+.  kPlainToNumber: a number ends the text.  kLines:
// \s*[\r\n]+ first.  kEndAndLines: \s+$ before that, so that a run at the end of the text is one piece whatever line
// ends it holds.
enum class Space { kPlain, kPlainToNumber, kLines, kEndAndLines };

template <Space kSpaces>
size_t white_space(const uint8_t* table, const char* begin, const char* end) {
  const char* p = begin;
  const char* last = begin;             // the last white space of the run
  const char* after_newline = nullptr;  // behind the last line end of the run
  bool at_end = true;
  while (p < end) {
    Char c = char_at(table, p);
    if (c.kind != kSpace && c.kind != kNewline) {
      at_end = kSpaces == Space::kPlainToNumber && c.kind == kNumber;
      break;
    }
    last = p;
    p += c.bytes;
    if (c.kind == kNewline) after_newline = p;
  }
  bool whole = at_end && kSpaces == Space::kEndAndLines;
  if ((kSpaces == Space::kLines || kSpaces == Space::kEndAndLines) && after_newline && !whole)
    return static_cast<size_t>(after_newline - begin);
  // The last space before a word stays with the word.
  return static_cast<size_t>((at_end || last == begin ? p : last) - begin);
}

inline const char* number_run(const uint8_t* table, const char* p, const char* end, int most) {
  for (int digits = 0; digits < most && p < end; ++digits) {
    Char c = char_at(table, p);
    if (c.kind != kNumber) break;
    p += c.bytes;
  }
  return p;
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N}{1,kDigits} | [ ]?[^\s\p{L}\p{N}]+[\r\n]* | white
// space
//
// With kMarks, words are [\p{L}\p{M}]+ and symbols exclude \p{M}. A mark in front of a word is then part of the same
// piece whether it is taken for the optional first character or for the word's own.
template <bool kMarks, int kDigits, Space kSpaces>
struct Modern {
  static size_t next(const uint8_t* table, const char* p, const char* end) {
    auto word = [](uint8_t kind) { return is_letter(kind) || (kMarks && kind == kMark); };
    auto symbol = [](uint8_t kind) { return kind == kOther || (!kMarks && kind == kMark); };
    auto length = [p](const char* stop) { return static_cast<size_t>(stop - p); };

    Char first = char_at(table, p);
    const char* second = p + first.bytes;
    if (word(first.kind)) return length(word_run<false>(table, second, end, word));
    if (*p == '\'')
      if (size_t n = contraction(p, end, true)) return n;
    if (first.kind == kNumber) return length(number_run(table, second, end, kDigits - 1));
    Char next = second < end ? char_at(table, second) : Char{kNewline, 0};
    if (first.kind != kNewline && word(next.kind))
      return length(word_run<false>(table, second + next.bytes, end, word));
    if (symbol(first.kind) || (*p == ' ' && symbol(next.kind))) {
      const char* stop = run(table, second, end, symbol);
      while (stop < end && (*stop == '\r' || *stop == '\n')) ++stop;
      return length(stop);
    }
    return white_space<kSpaces>(table, p, end);
  }
};

// With U = [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}], L = [\p{Ll}\p{Lm}\p{Lo}\p{M}], C = (?i:'s|'t|'re|'ve|'m|'ll|'d)? or nothing
// [^\r\n\p{L}\p{N}]?U*L+C | [^\r\n\p{L}\p{N}]?U+L*C | \p{N}{1,kDigits} | [ ]?[^\s\p{L}\p{N}]+[\r\n/]* | \s*[\r\n]+ |
// \s+(?!\S) | \s+
template <bool kContractions, int kDigits>
struct Cased {
  // The end of the longest U*L+ at p that greedy matching with backtracking finds; nullptr if there is none.
  static const char* lower_word(const uint8_t* table, const char* p, const char* end) {
    const char* after_shared = nullptr;  // behind the last character that is both in U and in L: where U* backs off to
    while (p < end) {
      Char c = char_at(table, p);
      if (c.kind == kLower)
        return word_run<true>(table, p + c.bytes, end,
                              [](uint8_t kind) { return kind == kLower || kind == kOtherLetter || kind == kMark; });
      if (c.kind != kUpper && c.kind != kOtherLetter && c.kind != kMark) break;
      p += c.bytes;
      if (c.kind != kUpper) after_shared = p;
    }
    return after_shared;
  }

  static size_t next(const uint8_t* table, const char* p, const char* end) {
    Char first = char_at(table, p);
    const char* second = p + first.bytes;
    bool may_lead = first.kind == kOther || first.kind == kMark || first.kind == kSpace;
    const char* stop = may_lead ? lower_word(table, second, end) : nullptr;
    if (!stop && (is_letter(first.kind) || first.kind == kMark)) stop = lower_word(table, p, end);
    if (!stop) {  // U+L*: without a character of L, or the above would have matched
      const char* begin = may_lead ? second : p;
      const char* upper = run(table, begin, end, [](uint8_t kind) { return kind == kUpper; });
      if (upper > begin) stop = upper;
    }
    if (stop) {
      if (kContractions && stop < end && *stop == '\'') stop += contraction(stop, end, true);
    } else if (first.kind == kNumber) {
      stop = number_run(table, second, end, kDigits - 1);
    } else {
      auto symbol = [](uint8_t kind) { return kind == kOther || kind == kMark; };
      bool spaced = *p == ' ' && second < end && symbol(char_at(table, second).kind);
      if (!symbol(first.kind) && !spaced) return white_space<Space::kLines>(table, p, end);
      stop = run(table, second, end, symbol);
      while (stop < end && (*stop == '\r' || *stop == '\n' || *stop == '/')) ++stop;
    }
    return static_cast<size_t>(stop - p);
  }
};

// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// With kDigits, each \p{N} is cut out first, and the pattern sees what lies between as texts of their own.
template <bool kDigits>
struct Gpt2 {
  static size_t next(const uint8_t* table, const char* p, const char* end) {
    if constexpr (kDigits) {
      if (const Char first = char_at(table, p); first.kind == kNumber) return static_cast<size_t>(first.bytes);
    }
    if (*p == '\'')
      if (size_t n = contraction(p, end, false)) return n;
    const char* start = *p == ' ' && p + 1 < end ? p + 1 : p;
    uint8_t kind = char_at(table, start).kind;
    if (is_letter(kind)) return static_cast<size_t>(word_run<false>(table, start, end, is_letter) - p);
    constexpr Space kSpaces = kDigits ? Space::kPlainToNumber : Space::kPlain;
    if (kind == kSpace || kind == kNewline || (kDigits && kind == kNumber)) return white_space<kSpaces>(table, p, end);
    bool number = kind == kNumber;
    auto same = [&](uint8_t other) {
      return number ? other == kNumber : other == kOther || other == kMark;  // this grammar knows no marks
    };
    return static_cast<size_t>(run(table, start, end, same) - p);
  }
};

template <class Scanner>
size_t cut(const char* p, const char* end, uint32_t* lengths, size_t room) {
  const uint8_t* table = unicode_table();
  size_t count = 0;
  for (; count < room && p < end; ++count) {
    lengths[count] = static_cast<uint32_t>(Scanner::next(table, p, end));
    p += lengths[count];
  }
  return count;
}

// Exact texts. The first of a name is what find_grammar gives.
//
// llama3 is also the text of GPT-4 (cl100k) as published for Hugging Face. tiktoken has had three texts for it: that
// one; one with possessive quantifiers, of the same language; and today's, whose \s++$ makes white space at the end of
// a text one piece. The interval {1,3}+ of today's text is possessive in tiktoken, but to Oniguruma it is a repeated
// group, so a tokenizer.json that holds this text does not limit numbers to three digits.
constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr Grammar kGrammars[] = {
    {"qwen2", nullptr,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cut<Modern<false, 1, Space::kLines>>},
    {"qwen3.5", nullptr,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cut<Modern<true, 1, Space::kLines>>},
    {"llama3", nullptr,
     R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cut<Modern<false, 3, Space::kLines>>},
    {"llama3", nullptr,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)",
     cut<Modern<false, 3, Space::kLines>>},
    {"cl100k", nullptr,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     cut<Modern<false, 3, Space::kEndAndLines>>},
    {"cl100k", nullptr,
     R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)",
     cut<Modern<false, INT_MAX, Space::kEndAndLines>>},
    {"o200k", nullptr,
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cut<Cased<true, 3>>},
    {"tekken", nullptr,
     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     cut<Cased<false, 1>>},
    {"gpt2", nullptr, kGpt2, cut<Gpt2<false>>},
    {"smollm", R"(\p{N})", kGpt2, cut<Gpt2<true>>},  // Digits by one, which ByteLevel follows
};

}  // namespace

const Grammar* find_grammar_by_patterns(std::span<const std::string_view> patterns) {
  for (const Grammar& grammar : kGrammars)
    if (patterns.size() == (grammar.first ? 2 : 1) && patterns.back() == grammar.pattern &&
        (!grammar.first || patterns.front() == grammar.first))
      return &grammar;
  return nullptr;
}

const Grammar* find_grammar(std::string_view name) {
  for (const Grammar& grammar : kGrammars)
    if (name == grammar.name) return &grammar;
  return nullptr;
}

std::string known_grammars() {
  std::string names;
  for (const Grammar& grammar : kGrammars) {
    bool again = find_grammar(grammar.name) != &grammar;
    if (!again) names += (names.empty() ? "" : ", ") + std::string(grammar.name);
  }
  return names;
}

}  // namespace qeng
