#include "engine/grammar/grammar.h"

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema.h"
#include "engine/grammar/utf8_ranges.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/unit/grammar_cases.h"

using namespace qeng;
using namespace qeng::grammar;

namespace {
// Where expr may stop when it begins at each place of the text: the definition, without automata. Rules are not left
// recursive.
class Naive {
 public:
  Naive(const Rules& rules, const std::string& text) : rules_(rules), text_(text) {}
  bool matches() { return of_rule(rules_.root, 0).count(text_.size()) > 0; }

 private:
  using Ends = std::set<size_t>;
  Ends of_rule(uint32_t index, size_t at) {
    const auto [found, fresh] = known_.try_emplace({index, at});
    if (!fresh) return found->second;
    Ends ends = of(rules_.rules[index].body, at);
    return known_[{index, at}] = ends;
  }
  Ends of(const Expr& expr, size_t at) {
    switch (expr.kind) {
      case Expr::Kind::literal:
        return text_.compare(at, expr.text.size(), expr.text) == 0 ? Ends{at + expr.text.size()} : Ends{};
      case Expr::Kind::rule: return of_rule(expr.index, at);
      case Expr::Kind::chars: {
        const int length = utf8_length(std::string_view(text_).substr(at));
        if (length <= 0) return {};
        uint32_t code;
        decode_utf8(text_.data() + at, code);
        for (const Range& range : expr.set) {
          if (range.first <= code && code <= range.last) return {at + static_cast<size_t>(length)};
        }
        return {};
      }
      case Expr::Kind::sequence: {
        Ends ends = {at};
        for (const Expr& part : expr.parts) ends = after(ends, part);
        return ends;
      }
      case Expr::Kind::choice: {
        Ends ends;
        for (const Expr& part : expr.parts) ends.merge(of(part, at));
        return ends;
      }
      case Expr::Kind::repeat: {
        Ends ends = {at}, all;
        for (int i = 0; i < expr.min; ++i) ends = after(ends, expr.parts[0]);
        for (int i = expr.min;; ++i) {
          const size_t before = all.size();
          all.insert(ends.begin(), ends.end());
          if (i == expr.max || (all.size() == before && i > expr.min)) return all;
          ends = after(ends, expr.parts[0]);
        }
      }
    }
    return {};
  }
  Ends after(const Ends& begins, const Expr& part) {
    Ends ends;
    for (const size_t at : begins) ends.merge(of(part, at));
    return ends;
  }
  const Rules& rules_;
  const std::string& text_;
  std::map<std::pair<uint32_t, size_t>, Ends> known_;
};

// A grammar in the notation itself; a rule calls later ones anywhere and any rule after a byte, so none is left
// recursive.
std::string random_grammar(Random& r) {
  const int rules = 1 + below(r, 4);
  const auto name = [](int i) { return i == 0 ? std::string("root") : "r" + std::to_string(i); };
  const std::function<std::string(int, int, bool)> expr = [&](int rule, int depth, bool consumed) -> std::string {
    static const char* const kAtoms[] = {"\"a\"", "\"ab\"", "\"é\"", "[a-c]", "[^a]",
                                         "[é€x]", "\"b\"",  ".",     "\"\"",  "[\\u00e0-\\u20ff]"};
    std::string text;
    const int parts = 1 + below(r, 3);
    for (int p = 0; p < parts; ++p) {
      const int kind = below(r, depth > 0 ? 10 : 5);
      if (kind == 9 && (consumed || rule + 1 < rules))
        text += name(consumed ? below(r, rules) : rule + 1 + below(r, rules - rule - 1));
      else if (kind > 4 && kind < 8)
        text += "(" + expr(rule, depth - 1, consumed) + " | " + expr(rule, depth - 1, consumed) + ")";
      else if (kind == 8)
        text += "\"c\"", consumed = true;
      else
        text += kAtoms[below(r, 10)];
      static const char* const kRepeats[] = {"*", "+", "?", "{2}", "{1,}", "{0,3}", "{2,4}"};
      if (below(r, 4) == 0) text += kRepeats[below(r, 7)];
      text += " ";
    }
    return below(r, 4) == 0 ? text + "| " + expr(rule, depth - 1 > 0 ? depth - 1 : 0, false) : text;
  };
  std::string text;
  for (int i = 0; i < rules; ++i) text += name(i) + " ::= " + expr(i, 2, false) + "\n";
  return text;
}

std::string grammar_failure(const std::string& text) {
  return failure([&] { OutputGrammar::from_gbnf(text); });
}
}  // namespace

TEST_CASE("grammar: random grammars accept what a recursive-descent matcher accepts, prefix by prefix") {
  Random r(5);
  int accepted = 0, compared = 0, refused = 0;
  for (int round = 0; round < 1500; ++round) {
    const std::string text = random_grammar(r);
    INFO(text);
    Rules rules;
    std::shared_ptr<const Automaton> automaton;
    try {
      rules = parse_gbnf(text);
      automaton = std::make_shared<const Automaton>(compile(rules, true));
    } catch (const Error& error) {
      REQUIRE((std::string(error.what()).find("never ends") != std::string::npos ||
               std::string(error.what()).find("left recursion") != std::string::npos));
      ++refused;
      continue;
    }
    States states(automaton);
    for (int s = 0; s < 12; ++s) {
      static const char* const kPieces[] = {"a", "b", "c", "ab", "é", "€", "x", "\xC3", "z"};
      std::string sample;
      StateId state = states.start();
      for (int i = 0; i < 10; ++i) {
        std::string piece = kPieces[below(r, 9)];
        if (s % 2 == 0 && state != kDead) {  // half of them follow the automaton
          std::vector<std::string> good;
          for (const char* p : kPieces) {
            StateId next = state;
            for (const char c : std::string(p)) next = states.next(next, static_cast<uint8_t>(c));
            if (next != kDead) good.push_back(p);
          }
          if (good.empty()) break;
          piece = good[r() % good.size()];
        }
        sample += piece;
        for (const char c : piece) state = states.next(state, static_cast<uint8_t>(c));
        INFO(sample);
        const bool expected = Naive(rules, sample).matches();
        REQUIRE(states.complete(state) == expected);
        accepted += expected, ++compared;
        if (state == kDead) break;
      }
    }
  }
  CHECK(accepted > compared / 10);
  CHECK(refused < 300);
}

TEST_CASE("grammar: a mask holds exactly the tokens whose bytes the automaton accepts") {
  const auto tokenizer = load_tokenizer("recipes/tiny");
  const int32_t eos = *tokenizer->eos();
  for (const char* text : {R"(root ::= "a" [^\n"]* "\"" | "[" root "]")", R"(root ::= [a-zA-Z ]{0,20} "!" .{3,9})",
                           R"(root ::= ([^a] | "\u20ac"){2,30})"}) {
    const auto grammar = OutputGrammar::from_gbnf(text);
    const auto automaton = std::make_shared<const Automaton>(compile(parse_gbnf(text), true));
    Matcher matcher(grammar->constraint(tokenizer, {}));
    States states(automaton);
    StateId state = states.start();
    Random r(3);
    for (int step = 0; step < 25; ++step) {
      const auto mask = matcher.mask();
      std::vector<int32_t> ids;
      for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
        StateId next = state;
        for (const char c : tokenizer->bytes(id)) next = states.next(next, static_cast<uint8_t>(c));
        const bool is_text = !tokenizer->is_special(id) && !tokenizer->bytes(id).empty();
        const bool expected = id == eos ? states.complete(state) : is_text && next != kDead;
        REQUIRE(mask->allows(id) == expected);
        REQUIRE(matcher.allows(id) == expected);
        if (expected && id != eos) ids.push_back(id);
      }
      REQUIRE(matcher.complete() == states.complete(state));
      REQUIRE(matcher.finished() == ids.empty());
      if (ids.empty()) break;
      const int32_t id = ids[r() % ids.size()];
      Matcher copy = matcher;
      matcher.accept(id);
      for (const char c : tokenizer->bytes(id)) state = states.next(state, static_cast<uint8_t>(c));
      REQUIRE(copy.mask() == mask);  // the copy stayed, and its mask is the kept one
    }
  }
}

TEST_CASE("grammar: an end comes where the text is whole, and nothing after it") {
  const auto tokenizer = load_tokenizer("recipes/tiny");
  const int32_t eos = *tokenizer->eos();
  Matcher matcher(OutputGrammar::from_gbnf("root ::= \"ab\"+")->constraint(tokenizer, {}));
  const auto push = [&](const char* text) {
    for (const int32_t id : tokenizer->encode(text, false)) matcher.accept(id);
  };
  CHECK(!matcher.allows(eos));
  CHECK_THROWS_AS(matcher.accept(eos), Error);
  push("ab");
  CHECK(matcher.complete());
  CHECK(!matcher.finished());
  matcher.accept(eos);
  CHECK(matcher.finished());
  CHECK(matcher.mask()->count() == 0);
  CHECK_THROWS_AS(push("ab"), Error);
  matcher.reset();
  push("abab");
  CHECK(matcher.allows(eos));
}

TEST_CASE("grammar: what is wrong is said with its place") {
  CHECK(grammar_failure("root ::= \"a\" root2\n") ==
        "format: grammar, line 1, column 14: rule root2 is used and not defined");
  CHECK(grammar_failure("a ::= \"x\"") ==
        "format: grammar, line 1, column 10: there is no rule named root, which says what all of the output is");
  CHECK(grammar_failure("root ::= \"x\"\nroot ::= \"y\"") ==
        "format: grammar, line 2, column 1: rule root is defined twice");
  CHECK(grammar_failure("root ::= \"é\" ]") ==
        "format: grammar, line 1, column 14: expected a literal, a class, a group or a rule's name");
  CHECK(grammar_failure("root ::= [^\\q]").find("column 12: this escape is not known") != std::string::npos);
  CHECK(grammar_failure("root ::= a \"x\" | \"y\"\na ::= \"\" | b\nb ::= root?")
            .find("left recursion: root -> a -> b -> root") != std::string::npos);
  CHECK(grammar_failure("root ::= \"a\" x\nx ::= \"b\" x").find("rule root never ends") != std::string::npos);
  CHECK(grammar_failure("root ::= \"a\"{3,2}").find("end before they begin") != std::string::npos);
  CHECK(grammar_failure("root ::= [a-z]{100000} [a-z]{100000} [a-z]{100000} [a-z]{100000}")
            .find("needs more than 400000 states") != std::string::npos);
  CHECK(grammar_failure("root ::= \"\xFF\"").find("this is not UTF-8") != std::string::npos);
  CHECK(grammar_failure("root ::= (((\"\"){100000}){100000}){100000} \"b\"") == "accepted");
  std::string nothing;  // (""..."" "b"){30000}: parts that need no state are counted too
  for (int i = 0; i < 30000; ++i) nothing += "\"\"";
  CHECK(grammar_failure("root ::= (" + nothing + "\"b\"){30000}").find("takes too much work") != std::string::npos);
  CHECK(grammar_failure("# only\nroot ::= (\"a\" # a\n | \"b\") root-2\nroot-2 ::= \"\\x41\" |\n \"\\U0001F600\"") ==
        "accepted");
}

TEST_CASE("grammar: a mask that would take long is refused, and a choice among many is not") {
  const auto tokenizer = load_tokenizer("recipes/tiny");
  std::string alternatives;  // 26 ways to read most letters, in words that may end anywhere
  for (char left_out = 'a'; left_out <= 'z'; ++left_out) {
    std::string letters = "abcdefghijklmnopqrstuvwxyz";
    letters.erase(letters.find(left_out), 1);
    alternatives += (alternatives.empty() ? "[" : " | [") + letters + "]{1,40}";
  }
  Matcher ambiguous(OutputGrammar::from_gbnf("root ::= w{1,40}\nw ::= " + alternatives)->constraint(tokenizer, {}));
  CHECK(failure([&] { ambiguous.mask(); }).find("the grammar is too ambiguous") != std::string::npos);

  std::string values;
  for (int i = 0; i < 20000; ++i) values += (i ? ",\"" : "\"") + std::to_string(i * 7919) + " words\"";
  Matcher choice(OutputGrammar::from_schema("{\"enum\":[" + values + "]}")->constraint(tokenizer, {}));
  CHECK(choice.mask()->count() > 0);
  for (const int32_t id : tokenizer->encode("\"7919 words\"", false)) choice.accept(id), choice.mask();
  CHECK(choice.complete());
}

TEST_CASE("grammar: output nests as deep as the limit, and can be ended there") {
  Rules rules = parse_gbnf("root ::= \"(\" pair \")\" | \"x\"\npair ::= root \",\" root");
  rules.max_depth = 5;
  const auto automaton = std::make_shared<const Automaton>(compile(rules, true));
  States states(automaton);
  StateId state = states.start();
  int opened = 0;
  while (states.next(state, '(') != kDead && opened < 100) state = states.next(state, '('), ++opened;
  CHECK(opened > 1);
  CHECK(opened < 6);
  std::string rest;
  for (int steps = 0; !states.complete(state) && steps < 200; ++steps) {
    for (const char c : {')', ',', 'x', '('}) {
      if (states.next(state, static_cast<uint8_t>(c)) == kDead) continue;
      state = states.next(state, static_cast<uint8_t>(c));
      break;
    }
  }
  CHECK(states.complete(state));
}

TEST_CASE("grammar: the byte ranges of a set are the UTF-8 of its characters, once each") {
  Random r(9);
  for (int round = 0; round < 60; ++round) {
    CharSet set;
    for (int i = 0; i < 3; ++i) {
      static const uint32_t kLimits[] = {0x80, 0x900, 0x11000, 0x110000};
      const uint32_t a = r() % kLimits[below(r, 4)], b = std::min<uint32_t>(0x10FFFF, a + r() % kLimits[below(r, 4)]);
      set.push_back({a, b});
    }
    set = normal(set);
    const std::vector<ByteRanges> ranges = utf8_ranges(set);
    const auto held = [&](uint32_t code) {
      std::string bytes;
      append_utf8(code, bytes);
      int times = 0;
      for (const ByteRanges& sequence : ranges) {
        bool in = sequence.count == bytes.size();
        for (size_t i = 0; in && i < bytes.size(); ++i) {
          const auto byte = static_cast<uint8_t>(bytes[i]);
          in = sequence.range[i].first <= byte && byte <= sequence.range[i].second;
        }
        times += in;
      }
      return times;
    };
    for (int i = 0; i < 400; ++i) {
      const Range& near = set[r() % set.size()];
      uint32_t code =
          i % 2 ? r() % 0x110000 : (i % 4 ? near.first : near.last) + static_cast<uint32_t>(below(r, 5)) - 2;
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) continue;
      const bool expected = std::any_of(set.begin(), set.end(),
                                        [&](const Range& range) { return range.first <= code && code <= range.last; });
      REQUIRE(held(code) == expected);
    }
  }
}
