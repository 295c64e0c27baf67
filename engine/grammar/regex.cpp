#include "engine/grammar/regex.h"

#include <cstdio>
#include <utility>

#include "engine/grammar/text_reader.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int kMaxNesting = 50;
constexpr uint32_t kMaxRepeat = 10'000;
const CharSet kControls = {{0, 0x1F}};
const CharSet kDigits = {{'0', '9'}};
const CharSet kWords = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharSet kSpaces = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                         {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

class Parser {
 public:
  Parser(std::string_view pattern, PatternOf of, const Expr& other, const std::string& where)
      : in_(pattern, where + ": pattern"), of_(of), other_(other) {}

  Expr parse() {
    std::vector<Expr> all;
    do {
      const bool begins = in_.take("^");
      std::vector<Expr> parts;
      if (!begins) parts.push_back(other_);
      parts.push_back(items(0));
      if (!in_.take("$")) parts.push_back(other_);
      all.push_back(sequence(std::move(parts)));
    } while (in_.take("|"));
    if (!in_.at_end())
      in_.fail_here(in_.peek() == ')' ? "this ) closes no group" : "^ and $ are only known at the ends");
    return choice(std::move(all));
  }

 private:
  Expr character(const CharSet& set) { return of_ == PatternOf::json ? string_char(set) : chars(set); }
  CharSet others(const CharSet& set) {
    return of_ == PatternOf::every ? complement(set) : without(complement(set), kControls);
  }
  [[noreturn]] void unsupported(const std::string& what) {
    fail("unsupported", "schema, pattern: ", what, " is not supported");
  }

  Expr items(int depth) {
    std::vector<Expr> parts;
    while (!in_.at_end() && in_.peek() != '|' && in_.peek() != ')' && in_.peek() != '$') {
      Expr part = item(depth);
      int min, max;
      if (in_.take_repeat(kMaxRepeat, min, max)) {
        in_.take("?");  // lazy: the same strings
        if (!in_.at_end() && (in_.peek() == '*' || in_.peek() == '+' || in_.peek() == '?' || in_.peek() == '{')) {
          in_.fail_here("nothing to repeat");
        }
        part = repeat(std::move(part), min, max);
      }
      parts.push_back(std::move(part));
    }
    return sequence(std::move(parts));
  }

  Expr item(int depth) {
    const size_t at = in_.position();
    switch (const uint32_t c = in_.next()) {
      case '(': return group(at, depth);
      case '[': return character(char_class(at));
      case '.': return character(others({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
      case '\\': return character(escape(at, false));
      case '^': unsupported("^ that is not at the beginning");
      case '*':
      case '+':
      case '?':
      case '{': in_.fail_at(at, "nothing to repeat");
      default: return character({{c, c}});
    }
  }

  Expr group(size_t at, int depth) {
    if (depth == kMaxNesting) in_.fail_at(at, "groups are nested more than " + std::to_string(kMaxNesting) + " deep");
    if (in_.take("?")) {
      if (in_.take("<") && !in_.rest().starts_with("=") && !in_.rest().starts_with("!")) {
        while (!in_.take(">")) {
          if (in_.at_end()) in_.fail_at(at, "the name of this group has no >");
          in_.next();
        }
      } else if (!in_.take(":")) {
        unsupported("look-around (?...)");
      }
    }
    std::vector<Expr> all;
    do all.push_back(items(depth + 1));
    while (in_.take("|"));
    if (in_.rest().starts_with("$")) unsupported("$ inside a group");
    if (!in_.take(")")) in_.fail_at(at, "this group has no closing )");
    return choice(std::move(all));
  }

  CharSet char_class(size_t at) {
    const bool negated = in_.take("^");
    CharSet set;
    while (!in_.take("]")) {
      if (in_.at_end()) in_.fail_at(at, "this class has no closing ]");
      const size_t begin = in_.position();
      const CharSet first = class_char();
      if (in_.rest().size() >= 2 && in_.peek() == '-' && in_.rest()[1] != ']') {
        in_.next();
        const CharSet last = class_char();
        if (first.size() != 1 || last.size() != 1 || first[0].first != first[0].last || last[0].first != last[0].last) {
          in_.fail_at(begin, "a range goes from one character to another");
        }
        if (last[0].first < first[0].first) in_.fail_at(begin, "this range ends before it begins");
        set.push_back({first[0].first, last[0].first});
      } else {
        set.insert(set.end(), first.begin(), first.end());
      }
    }
    return negated ? others(set) : set;
  }

  CharSet class_char() {
    const size_t at = in_.position();
    if (in_.at_end()) in_.fail_here("the pattern ends inside a class");
    const uint32_t c = in_.next();
    return c == '\\' ? escape(at, true) : CharSet{{c, c}};
  }

  CharSet escape(size_t at, bool in_class) {
    if (in_.at_end()) in_.fail_at(at, "an escape is not complete");
    const uint32_t c = in_.next();
    const auto one = [](uint32_t code) { return CharSet{{code, code}}; };
    switch (c) {
      case 'd': return kDigits;
      case 'w': return kWords;
      case 's': return kSpaces;
      case 'D': return others(kDigits);
      case 'W': return others(kWords);
      case 'S': return others(kSpaces);
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 't': return one('\t');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 'x': return one(in_.hex(at, 2));
      case 'u': return one(in_.hex(at, 4));
      case '0': return one(0);
      case 'b':
        if (in_class) return one('\b');
        unsupported("\\b");
      case 'B': unsupported("\\B");
      case 'p':
      case 'P': unsupported("\\p{...}: list the ranges instead, as in [A-Za-z\\u00C0-\\u024F],");
      case 'c': unsupported("\\c");
      case 'k': unsupported("\\k");
      default:
        if (c >= '1' && c <= '9') unsupported("a back reference");
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) in_.fail_at(at, "this escape is not known");
        return one(c);
    }
  }

  TextReader in_;
  const PatternOf of_;
  const Expr& other_;
};
}  // namespace

Expr string_char(const CharSet& given) {
  static constexpr std::pair<char, const char*> kEscapes[] = {
      {'"', "\\\""}, {'\\', "\\\\"}, {'\b', "\\b"}, {'\f', "\\f"}, {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}};
  const CharSet set = normal(given);
  const auto holds = [&](uint32_t code) {
    for (const Range& range : set) {
      if (range.first <= code && code <= range.last) return true;
    }
    return false;
  };
  CharSet escaped = kControls;
  for (const auto& [c, text] : kEscapes) escaped.push_back({static_cast<uint8_t>(c), static_cast<uint8_t>(c)});
  const CharSet plain = without(set, escaped);
  std::vector<Expr> all;
  if (!plain.empty()) all.push_back(chars(plain));
  for (const auto& [c, text] : kEscapes) {
    if (holds(static_cast<uint8_t>(c))) all.push_back(literal(text));
  }
  for (uint32_t c = 0; c < 0x20; ++c) {
    if (!holds(c) || c == '\b' || c == '\f' || c == '\n' || c == '\r' || c == '\t') continue;
    char text[8];
    std::snprintf(text, sizeof text, "\\u%04x", c);
    all.push_back(literal(text));
  }
  return all.size() == 1 ? std::move(all[0]) : choice(std::move(all));
}

Expr pattern_expr(std::string_view pattern, PatternOf of, const Expr& other, const std::string& where) {
  return Parser(pattern, of, other, where).parse();
}

}  // namespace qeng::grammar
