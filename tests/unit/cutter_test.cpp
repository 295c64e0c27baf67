// Steps of pre-tokenizers against the pieces of Hugging Face's tokenizers (tests/golden/cutter_golden.py).
#include "engine/tokenizer/cutter.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/loaders.h"
#include "engine/tokenizer/vocabulary.h"
#include "kernels/error.h"
#include "tests/catch.h"

using namespace qeng;
using nlohmann::json;

namespace {

json golden() {
  std::ifstream file(QENG_SOURCE_DIR "/tests/golden/cutter_golden.json");
  return json::parse(file);
}

std::vector<std::string> pieces_of(const Cutter& cutter, const std::string& text) {
  std::vector<std::string> pieces;
  if (const Grammar* const grammar = cutter.grammar()) {
    uint32_t lengths[3];
    for (const char *p = text.data(), *end = p + text.size(); p < end;)
      for (size_t i = 0, count = grammar->cut(p, end, lengths, 3); i < count; p += lengths[i++])
        pieces.emplace_back(p, lengths[i]);
    return pieces;
  }
  std::vector<std::string_view> views;
  cutter.cut(text, views);
  return {views.begin(), views.end()};
}

void check(const Cutter& cutter, const json& cut, const json& texts) {
  REQUIRE(texts.size() == cut["pieces"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    CAPTURE(texts[i].dump(-1, ' ', true));
    CHECK(pieces_of(cutter, texts[i]) == cut["pieces"][i].get<std::vector<std::string>>());
  }
}

Cutter cutter_of_parts(const json& parts) {
  std::vector<Cutter::Step> steps;
  for (const json& part : parts) steps.push_back(step_of("test", part).value());
  return Cutter(std::move(steps));
}

}  // namespace

TEST_CASE("pre-tokenizers of tokenizer.json cut as Hugging Face's do") {
  const json file = golden();
  for (const auto& [name, cut] : file["steps"].items()) {
    CAPTURE(name);
    check(cutter_of_parts(cut["parts"]), cut, file["texts"]);
  }
}

TEST_CASE("labels of GGUF files cut as the models' own patterns do") {
  const json file = golden();
  for (const auto& [name, cut] : file["labels"].items()) {
    CAPTURE(name);
    REQUIRE(find_pre_tokenizer(name));
    check(cutter_of(*find_pre_tokenizer(name)), cut, file["texts"]);
    check(cutter_of_parts(cut["parts"]), cut, file["texts"]);  // the same patterns, not known by their text
  }
  for (const PreTokenizer& each : pre_tokenizers()) CHECK(cutter_of(each) == cutter_of(each));
  for (const char* name : {"qwen2", "qwen35", "olmo", "mpt", "command-r"}) CHECK(find_pre_tokenizer(name)->nfc);
}

TEST_CASE("patterns that others read differently, or that take too long, are refused") {
  for (const char* text : {"a{2}+", "[a&&]", "[&&a]", "[a&&[]", "[a-[b]]", "(?i:[a[bc]])", "(?i)[a&&b]",
                           "a(?i)b|[^\\S]", "[[:punct:]]", "[[:no:]]", "\\h", "(?m:.)", "(", "a\\", "\\K"})
    CHECK_THROWS_AS(Pattern(text), Error);
  CHECK_THROWS_AS(Pattern(std::string(100, '[') + "a" + std::string(100, ']')), Error);
  CHECK_NOTHROW(Pattern("\\p{L}+[[:alpha:]][]a][^]b](?i:a)[a&&b](?:(?i)a)[^\\S]"));
  size_t begin = 0, end = 0;
  CHECK(!Pattern("[a[ab]\\w]+-").find(std::string(200, 'a'), 0, begin, end));
  CHECK_THROWS_AS(Pattern("(?:a|aa)+[bc]").find(std::string(200, 'a'), 0, begin, end), Error);
}
