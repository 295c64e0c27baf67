// The hand-written scanners against the published patterns, run by PCRE2.
#include "engine/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/unicode.h"
#include "tests/catch.h"

using namespace qeng;

namespace {

using Lengths = std::vector<uint32_t>;

class Pattern {
 public:
  explicit Pattern(std::string_view text) {
    int error = 0;
    PCRE2_SIZE place = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                              PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &place, nullptr));
    REQUIRE(code_);
    match_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  // Lengths of the matches, which leave nothing out.
  Lengths cut(const std::string& text) const {
    Lengths lengths;
    for (size_t at = 0; at < text.size();) {
      int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                              PCRE2_NO_UTF_CHECK, match_.get(), nullptr);
      const PCRE2_SIZE* place = pcre2_get_ovector_pointer(match_.get());
      if (found < 1 || place[0] != at || place[1] == at) FAIL("no match at byte " << at << " of " << text);
      lengths.push_back(static_cast<uint32_t>(place[1] - at));
      at = place[1];
    }
    return lengths;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> match_;
};

const Grammar* by_pattern(std::string_view pattern) { return find_grammar_by_patterns({&pattern, 1}); }

Lengths scan(const Grammar& grammar, const std::string& text, size_t room) {
  Lengths lengths, some(room);
  // A copy of its own, so that a sanitizer sees a read past the end.
  std::unique_ptr<char[]> copy(new char[text.size()]);
  std::copy(text.begin(), text.end(), copy.get());
  for (const char *p = copy.get(), *end = p + text.size(); p < end;) {
    size_t count = grammar.cut(p, end, some.data(), room);
    REQUIRE(count >= 1);
    for (size_t i = 0; i < count; ++i) p += some[i];
    lengths.insert(lengths.end(), some.begin(), some.begin() + static_cast<ptrdiff_t>(count));
  }
  return lengths;
}

// What the patterns' alternatives begin, end and back off at.
const std::vector<std::string> kParts = {" ",
                                         "  ",
                                         "   ",
                                         "\t",
                                         "\n",
                                         "\n\n",
                                         "\r\n",
                                         "\r",
                                         " \n",
                                         "\n ",
                                         "  \n  ",
                                         "\u00a0",
                                         "\u3000",
                                         "\u2028",
                                         "\u0085",
                                         "\x0b",
                                         "\x1c",
                                         "'s",
                                         "'t",
                                         "'re",
                                         "'ve",
                                         "'m",
                                         "'ll",
                                         "'d",
                                         "'S",
                                         "'Re",
                                         "'vE",
                                         "'LL",
                                         "'\u017f",
                                         "'",
                                         "''",
                                         "'r",
                                         "'l",
                                         "'sx",
                                         "the",
                                         " the",
                                         "Hello",
                                         "HTTPServer",
                                         "iPhone",
                                         "aB",
                                         "Ab",
                                         "ABC",
                                         "\u01c5x",
                                         "x\u01c8Y",
                                         "\u00aa",
                                         "\u02b0",
                                         "\u05d0\u05d1",
                                         "\u65e5\u672c",
                                         "A\u65e5b",
                                         "A\u65e5B",
                                         "1",
                                         "12",
                                         "123",
                                         "1234567",
                                         "\u0663",
                                         "\u00bd",
                                         "\u2160",
                                         "!",
                                         "!!!",
                                         "...\n",
                                         "?\r\n",
                                         "//",
                                         "!/\n/",
                                         "_",
                                         "(a",
                                         "$%",
                                         "\x7f",
                                         "\u20ac",
                                         "A\u030a",
                                         "\u0301",
                                         "!\u0301a",
                                         " \u0301B",
                                         "1\u0301",
                                         "\u0301AB",
                                         "AB\u0301C",
                                         "\u0903",
                                         "\u20dd",
                                         "\ufe0f",
                                         "\U0001f600",
                                         "\U0001d7d8",
                                         "abcdefghijklmnopq",
                                         "ABCDEFGHIJKLMNOPQ",
                                         "abcdefghijklmno\u00e9pqrstuvwxyzabcdef"};

}  // namespace

TEST_CASE("every scanner cuts random text as its published pattern does") {
  std::ifstream file(QENG_SOURCE_DIR "/tests/golden/tokenizer_golden.json");
  auto runs = nlohmann::json::parse(file)["runs"].get<std::vector<std::pair<uint32_t, uint32_t>>>();
  for (std::string name : {"qwen2", "qwen3.5", "llama3", "cl100k", "o200k", "tekken", "gpt2"}) {
    CAPTURE(name);
    const Grammar& grammar = *find_grammar(name);
    Pattern pattern(grammar.pattern);
    uint64_t state = 1;
    auto draw = [&](size_t n) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<uint32_t>((state >> 33) % n);
    };
    size_t differ = 0;
    for (int i = 0; i < 20'000 && differ == 0; ++i) {
      std::string text;
      for (uint32_t parts = 1 + draw(10); parts > 0; --parts) {
        if (draw(4) > 0) {
          text += kParts[draw(kParts.size())];
          continue;
        }
        auto [first, last] = runs[draw(runs.size())];
        for (uint32_t n = 1 + draw(3); n > 0; --n) append_utf8(first + draw(last - first + 1), text);
      }
      if (scan(grammar, text, 1 + draw(9)) != pattern.cut(text)) {
        ++differ;
        FAIL_CHECK("cut otherwise than the pattern does: " << nlohmann::json(text).dump(-1, ' ', true));
      }
    }
  }
}

TEST_CASE("texts of one language are one grammar, and the published cl100k is read as each library reads it") {
  const char* early =
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
  const char* today =
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
  REQUIRE(by_pattern(early));
  CHECK(by_pattern(early)->cut == find_grammar("llama3")->cut);
  REQUIRE(by_pattern(today));
  CHECK(scan(*by_pattern(today), "1234567", 9) == Lengths{7});             // Oniguruma: a repeated group
  CHECK(scan(*find_grammar("cl100k"), "1234567", 9) == Lengths{3, 3, 1});  // fancy-regex: possessive
  CHECK(scan(*find_grammar("cl100k"), "a \n  ", 9) == Lengths{1, 4});
  CHECK(scan(*find_grammar("llama3"), "a \n  ", 9) == Lengths{1, 2, 2});
  CHECK(!by_pattern("\\w+"));
  CHECK(!find_grammar("gpt5"));
}
