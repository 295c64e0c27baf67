#include "engine/grammar/gbnf.h"

#include <algorithm>

#include "engine/grammar/schema.h"
#include "engine/grammar/text_reader.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int kMaxNesting = 100;          // of groups: bounds the stack of this parser and of the compiler
constexpr uint32_t kMaxRepeat = 100'000;  // {m,n}: more states than an automaton may have anyway

bool is_name(uint32_t c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

// Appends a schema's rules to those of a grammar. Returns the place of its root.
uint32_t append(Rules& to, Rules schema) {
  const auto offset = static_cast<uint32_t>(to.rules.size());
  const auto move = [&](const auto& self, Expr& expr) -> void {
    if (expr.kind == Expr::Kind::rule) expr.index += offset;
    for (Expr& part : expr.parts) self(self, part);
  };
  for (Rule& one : schema.rules) {
    move(move, one.body);
    to.rules.push_back(std::move(one));
  }
  to.max_depth = std::min(to.max_depth, schema.max_depth);
  return offset + schema.root;
}

class Parser {
 public:
  Parser(std::string_view text, const std::map<std::string, std::string>& schemas)
      : in_(text, "grammar"), schemas_(schemas) {}

  Rules parse() {
    skip_space();
    while (!in_.at_end()) {
      const size_t at = in_.position();
      const std::string word = name();
      if (word.empty()) in_.fail_here("expected a rule, name ::= ...");
      skip_space();
      if (!in_.take("::=")) in_.fail_here("expected ::= after the name " + word);
      const uint32_t index = rule_of(word, at);
      if (defined_[index]) in_.fail_at(at, "rule " + word + " is defined twice");
      defined_[index] = true;
      Expr body = alternatives(0);
      rules_.rules[index].body = std::move(body);
      if (!in_.at_end() && !at_definition()) in_.fail_here("expected a rule, or more of rule " + word);
    }
    for (size_t i = 0; i < defined_.size(); ++i) {
      if (defined_[i]) continue;
      const auto schema = schemas_.find(rules_.rules[i].name);
      if (schema == schemas_.end()) {
        in_.fail_at(first_use_[i], "rule " + rules_.rules[i].name + " is used and not defined");
      }
      Expr body = rule(append(rules_, schema_rules(schema->second)));
      rules_.rules[i].body = std::move(body);
    }
    const auto root = names_.find("root");
    if (root == names_.end()) in_.fail_here("there is no rule named root, which says what all of the output is");
    rules_.root = root->second;
    return std::move(rules_);
  }

 private:
  void skip_space() {
    while (!in_.at_end()) {
      const char c = in_.peek();
      if (c == '#') {
        while (!in_.at_end() && in_.peek() != '\n') in_.next();
      } else if (c == ' ' || c == '\t' || c == '\r' || c == '\n') {
        in_.next();
      } else {
        return;
      }
    }
  }

  std::string name() {
    std::string word;
    while (!in_.at_end() && is_name(static_cast<uint8_t>(in_.peek()))) word += static_cast<char>(in_.next());
    return word;
  }

  bool at_definition() {
    const size_t begin = in_.position();
    const bool found = !name().empty() && (skip_space(), in_.take("::="));
    in_.seek(begin);
    return found;
  }

  uint32_t rule_of(const std::string& word, size_t at) {
    const auto [found, fresh] = names_.try_emplace(word, static_cast<uint32_t>(rules_.rules.size()));
    if (fresh) {
      rules_.rules.push_back({word, empty()});
      defined_.push_back(false), first_use_.push_back(at);
    }
    return found->second;
  }

  Expr alternatives(int depth) {
    if (depth > kMaxNesting) in_.fail_here("groups are nested more than " + std::to_string(kMaxNesting) + " deep");
    std::vector<Expr> all;
    do all.push_back(items(depth));
    while (skip_space(), in_.take("|"));
    return all.size() == 1 ? std::move(all[0]) : choice(std::move(all));
  }

  Expr items(int depth) {
    std::vector<Expr> parts;
    for (skip_space(); !in_.at_end() && in_.peek() != '|' && in_.peek() != ')' && !at_definition(); skip_space()) {
      parts.push_back(repeats(item(depth)));
    }
    return parts.size() == 1 ? std::move(parts[0]) : sequence(std::move(parts));
  }

  Expr item(int depth) {
    const size_t at = in_.position();
    if (in_.take("(")) {
      Expr group = alternatives(depth + 1);
      if (!in_.take(")")) in_.fail_at(at, "this group has no closing )");
      return group;
    }
    if (in_.take("\"")) return quoted(at);
    if (in_.take("[")) return char_class(at);
    if (in_.take(".")) return chars(complement({}));
    const std::string word = name();
    if (word.empty()) in_.fail_here("expected a literal, a class, a group or a rule's name");
    return rule(rule_of(word, at));
  }

  Expr quoted(size_t at) {
    std::string text;
    while (!in_.take("\"")) {
      if (in_.at_end() || in_.peek() == '\n') in_.fail_at(at, "this literal has no closing \"");
      append_utf8(character(), text);
    }
    return literal(text);
  }

  Expr char_class(size_t at) {
    const bool negated = in_.take("^");
    CharSet set;
    while (!in_.take("]")) {
      if (in_.at_end() || in_.peek() == '\n') in_.fail_at(at, "this class has no closing ]");
      const size_t begin = in_.position();
      const uint32_t first = character();
      uint32_t last = first;
      if (in_.rest().size() >= 2 && in_.peek() == '-' && in_.rest()[1] != ']') in_.next(), last = character();
      if (last < first) in_.fail_at(begin, "this range ends before it begins");
      set.push_back({first, last});
    }
    return chars(negated ? complement(set) : set);
  }

  // A character, or an escape for one.
  uint32_t character() {
    const size_t at = in_.position();
    if (in_.at_end()) in_.fail_here("the grammar ends inside a literal or a class");
    const uint32_t c = in_.next();
    if (c != '\\') return c;
    if (in_.at_end()) in_.fail_at(at, "an escape is not complete");
    switch (const uint32_t e = in_.next()) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case 'x': return in_.hex(at, 2);
      case 'u': return in_.hex(at, 4);
      case 'U': return in_.hex(at, 8);
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-':
      case '^': return e;
      default:
        in_.fail_at(
            at, "this escape is not known; there are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH");
    }
  }

  Expr repeats(Expr part) {
    for (int times = 0;; ++times) {
      const size_t at = in_.position();
      int min, max;
      if (!in_.take_repeat(kMaxRepeat, min, max)) return part;
      if (times == kMaxNesting) in_.fail_at(at, "too many repetitions of repetitions");
      part = repeat(std::move(part), min, max);
    }
  }

  TextReader in_;
  const std::map<std::string, std::string>& schemas_;
  Rules rules_;
  std::map<std::string, uint32_t> names_;
  std::vector<bool> defined_;
  std::vector<size_t> first_use_;
};
}  // namespace

Rules parse_gbnf(std::string_view text, const std::map<std::string, std::string>& schemas) {
  return Parser(text, schemas).parse();
}

}  // namespace qeng::grammar
