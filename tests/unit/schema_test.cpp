// What a JSON schema says, and what its rules match.
#include "engine/grammar/schema.h"

#include "engine/grammar/grammar.h"
#include "tests/unit/grammar_cases.h"

using namespace qeng;
using namespace qeng::grammar;

namespace {
std::string schema_failure(const std::string& text) {
  return failure([&] { OutputGrammar::from_schema(text); });
}
bool valid(const std::string& schema, std::string_view text) {
  return matches(std::make_shared<const Automaton>(compile(schema_rules(schema), false)), text);
}
}  // namespace

TEST_CASE("schema: integers and decimals keep to their bounds") {
  Random r(11);
  const auto bounded = [](const char* type, const std::string& low, bool open_low, const std::string& high,
                          bool open_high) {
    const std::string schema = std::string("{\"type\":\"") + type + "\",\"" +
                               (open_low ? "exclusiveMinimum" : "minimum") + "\":" + low + ",\"" +
                               (open_high ? "exclusiveMaximum" : "maximum") + "\":" + high + "}";
    return std::make_shared<const Automaton>(compile(schema_rules(schema), false));
  };
  for (int round = 0; round < 120; ++round) {
    const int scale = round % 3 == 0 ? 12 : round % 3 == 1 ? 250 : 100'000;
    int low = below(r, 2 * scale) - scale, high = below(r, 2 * scale) - scale;
    if (low > high) std::swap(low, high);
    const bool open_low = below(r, 2), open_high = below(r, 2);
    const auto automaton = bounded("integer", std::to_string(low), false, std::to_string(high), false);
    std::shared_ptr<const Automaton> decimal;
    if (low < high) decimal = bounded("number", std::to_string(low), open_low, std::to_string(high), open_high);
    for (int i = 0; i < 60; ++i) {
      const int x = i % 3 == 0 ? below(r, 3 * scale) - scale * 3 / 2 : (i % 3 == 1 ? low : high) + below(r, 7) - 3;
      REQUIRE(matches(automaton, std::to_string(x)) == (low <= x && x <= high));
      if (!decimal) continue;
      const double half = x < 0 ? x - 0.5 : x + 0.5;
      REQUIRE(matches(decimal, std::to_string(x)) ==
              ((open_low ? low < x : low <= x) && (open_high ? x < high : x <= high)));
      REQUIRE(matches(decimal, std::to_string(x) + ".5") == (low < half && half < high));
    }
  }
}

TEST_CASE("schema: fractional bounds and multiples are exact in decimal") {
  Random r(12);
  const auto text = [](int64_t thousandths) {  // with three digits after the point
    const std::string digits = std::to_string(std::abs(thousandths) + 1000);
    const int64_t whole = std::abs(thousandths) / 1000;
    return (thousandths < 0 ? "-" : "") + std::to_string(whole) + "." + digits.substr(digits.size() - 3);
  };
  for (int round = 0; round < 60; ++round) {
    int64_t low = below(r, 8000) - 4000, high = below(r, 8000) - 4000;
    if (low >= high) std::swap(low, high), ++high;
    static const int kSteps[] = {1, 10, 25, 100, 300, 500, 1500, 7000};  // thousandths
    const int64_t step = kSteps[below(r, 8)];
    const bool open = below(r, 2);
    const std::string schema = "{\"type\":\"number\",\"minimum\":" + text(low) + ",\"" +
                               (open ? "exclusiveMaximum" : "maximum") + "\":" + text(high) +
                               ",\"multipleOf\":" + text(step) + "}";
    std::shared_ptr<const Automaton> automaton;
    try {
      automaton = std::make_shared<const Automaton>(compile(schema_rules(schema), false));
    } catch (const Error&) {  // nothing between
    }
    for (int i = 0; i < 80; ++i) {
      const int64_t x = i % 2 ? (below(r, 12000) - 6000) / step * step : (i % 4 ? low : high) + below(r, 5) - 2;
      std::string spelled = text(x);
      if (i % 3 == 0) {  // the same without zeros at its end
        while (spelled.back() == '0') spelled.pop_back();
        if (spelled.back() == '.') spelled.pop_back();
      }
      const bool expected = x % step == 0 && low <= x && (open ? x < high : x <= high);
      INFO(schema << " " << spelled);
      REQUIRE((automaton && matches(automaton, x == 0 ? "0" : spelled)) == expected);
    }
  }
  CHECK(valid(R"({"type":"number","multipleOf":0.01})", "19.99"));
  CHECK(valid(R"({"type":"number","multipleOf":0.1})", "0.3"));  // by floats it is none
  CHECK(!valid(R"({"type":"number","multipleOf":0.1})", "0.35"));
  CHECK(valid(R"({"type":"integer","multipleOf":100000})", "12300000"));
  CHECK(!valid(R"({"type":"integer","multipleOf":100000})", "12340000"));
}

TEST_CASE("schema: integers have 64 bits") {
  CHECK(valid(R"({"type":"integer"})", "1234567890123456789"));
  CHECK(valid(R"({"type":"integer"})", "-9223372036854775808"));
  CHECK(!valid(R"({"type":"integer"})", "9223372036854775808"));
  CHECK(valid(R"({"type":"integer","maximum":18446744073709551615})", "18446744073709551615"));
  CHECK(!valid(R"({"type":"integer","maximum":18446744073709551615})", "18446744073709551616"));
  CHECK(valid(R"({"type":"integer","minimum":9007199254740993,"maximum":9007199254740993})", "9007199254740993"));
  CHECK(!valid(R"({"type":"integer","minimum":9007199254740993,"maximum":9007199254740993})", "9007199254740992"));
}

TEST_CASE("schema: oneOf allows what holds to one alternative and to no other") {
  const char* ranges = R"({"oneOf":[{"type":"integer","minimum":0},{"type":"integer","maximum":10}]})";
  CHECK(valid(ranges, "11"));
  CHECK(valid(ranges, "-1"));
  CHECK(!valid(ranges, "0"));
  CHECK(!valid(ranges, "10"));
  const char* texts = R"({"oneOf":[{"type":"string","maxLength":3},{"type":"string","pattern":"^a"}]})";
  CHECK(valid(texts, R"("bcd")"));
  CHECK(valid(texts, R"("abcd")"));
  CHECK(!valid(texts, R"("abc")"));
  CHECK(!valid(texts, R"("bcde")"));
  const char* required =
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"}},"oneOf":[{"required":["a"]},{"required":["b"]}]})";
  CHECK(valid(required, R"({"a":null})"));
  CHECK(valid(required, R"({"b":null})"));
  CHECK(!valid(required, R"({"a":null,"b":null})"));
  CHECK(!valid(required, "{}"));
  const char* lists =
      R"({"oneOf":[{"type":"array","items":{"type":"null"}},{"type":"array","items":{"type":"boolean"}}]})";
  CHECK(valid(lists, "[null,null]"));
  CHECK(valid(lists, "[true]"));
  CHECK(!valid(lists, "[]"));  // holds to both
  // What JSON writes with an exponent, or escapes, holds to both as well.
  CHECK(!valid(R"({"oneOf":[{"type":"number"},{"type":"number","minimum":1e18}]})", "1E50"));
  CHECK(!valid(R"({"oneOf":[{"type":"string","pattern":"^\\x01$"},{"type":"string","pattern":"^[^a]$"}]})",
               R"("\u0001")"));
  const char* tagged =
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"p"},"v":{"type":"integer"}},"required":["k"]},{"type":"object","properties":{"k":{"const":"q"},"v":{"type":"null"}},"required":["k","v"]}]})";
  CHECK(valid(tagged, R"({"k":"p","v":3})"));
  CHECK(valid(tagged, R"({"k":"q","v":null})"));
  CHECK(!valid(tagged, R"({"k":"q","v":3})"));
  CHECK(!valid(R"({"oneOf":[{"enum":[1,2]},{"enum":[2.0,3]}]})", "2"));
  const char* tree =
      R"({"oneOf":[{"type":"object"},{"$ref":"#/$defs/t"}],"$defs":{"t":{"type":"object","properties":{"l":{"anyOf":[{"$ref":"#/$defs/t"},{"type":"null"}]}},"required":["l"],"additionalProperties":false}}})";
  CHECK(valid(tree, R"({"l":{"l":3}})"));  // no tree
  CHECK(!valid(tree, R"({"l":{"l":null}})"));
  CHECK(schema_failure(R"({"oneOf":[{"type":"string"},{"type":"string"}]})").find("never ends") != std::string::npos);
  CHECK(
      schema_failure(
          R"({"oneOf":[{"type":"array"},{"type":"array","items":{"enum":[1]},"uniqueItems":true,"maxItems":1000000000,"contains":{},"minContains":2}]})")
          .find("cannot be told; use anyOf") == std::string::npos);
  CHECK(schema_failure(R"({"oneOf":[{"type":"array"},{"type":"array","uniqueItems":true}]})")
            .find("what holds to this and not to alternative 1 of oneOf cannot be told; use anyOf") !=
        std::string::npos);
}

TEST_CASE("schema: not, counts, contains, unique items, and patterns of a length") {
  CHECK(valid(R"({"type":["string","integer"],"not":{"enum":["a",7]}})", "\"b\""));
  CHECK(!valid(R"({"type":["string","integer"],"not":{"enum":["a",7]}})", "\"a\""));
  CHECK(!valid(R"({"type":["string","integer"],"not":{"enum":["a",7]}})", "7"));
  CHECK(!valid(R"({"type":"string","not":{"enum":["a"]}})", R"("\u0061")"));  // the same text
  CHECK(!valid(R"({"type":"number","not":{"const":1.5}})", "1.50"));
  CHECK(valid(R"({"pattern":"^[a-z]+$","minLength":2,"maxLength":3})", "\"abc\""));
  CHECK(!valid(R"({"pattern":"^[a-z]+$","minLength":2,"maxLength":3})", "\"a\""));
  CHECK(!valid(R"({"pattern":"^[a-z]+$","minLength":2,"maxLength":3})", "\"abcd\""));
  CHECK(valid(R"({"allOf":[{"pattern":"^a"},{"pattern":"b$"}]})", "\"acb\""));
  CHECK(!valid(R"({"allOf":[{"pattern":"^a"},{"pattern":"b$"}]})", "\"ac\""));
  const char* two =
      R"({"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},"minProperties":1,"maxProperties":2})";
  CHECK(valid(two, R"({"a":null,"c":null})"));
  CHECK(!valid(two, "{}"));
  CHECK(!valid(two, R"({"a":null,"b":null,"c":null})"));
  CHECK(valid(R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":1})", R"({"z":null})"));
  CHECK(!valid(R"({"type":"object","additionalProperties":{"type":"null"},"minProperties":1})", "{}"));
  CHECK(schema_failure(R"({"type":"object","minProperties":2})").find("only one is counted") != std::string::npos);
  const char* some = R"({"items":{"type":["null","integer"]},"contains":{"type":"integer"},"maxItems":3})";
  CHECK(valid(some, "[null,2,null]"));
  CHECK(!valid(some, "[null,null]"));
  CHECK(!valid(some, "[2,2,2,2]"));
  const char* different = R"({"items":{"enum":["a","b",{"x":1,"y":2}]},"uniqueItems":true,"minItems":2})";
  CHECK(valid(different, R"(["b","a"])"));
  CHECK(valid(different, R"(["b",{"x":1,"y":2},"a"])"));
  CHECK(!valid(different, R"(["b","b"])"));
  CHECK(!valid(different, R"(["b"])"));
  CHECK(valid(R"({"format":"email"})", "\"ann.b+c@mail.example.org\""));
  CHECK(!valid(R"({"format":"email"})", "\"ann@b\""));
  CHECK(valid(R"({"format":"uri"})", "\"https://example.org:8080/a%20b?c=d#e\""));
  CHECK(!valid(R"({"format":"uri"})", "\"example.org\""));
  CHECK(valid(R"({"format":"ipv4"})", "\"192.168.0.255\""));
  CHECK(!valid(R"({"format":"ipv4"})", "\"192.168.0.256\""));
  CHECK(!valid(R"({"format":"ipv4"})", "\"192.168.0.01\""));
}

TEST_CASE("schema: what a schema says holds, case by case") {
  CHECK(valid(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{}},"required":["a"]})",
              R"({"a": 1, "b": [null, "x"]})"));
  CHECK(!valid(R"({"type":"object","properties":{"a":{"type":"integer"},"b":{}},"required":["a"]})", R"({"b": 1})"));
  CHECK(valid(R"({"properties":{"a":{}},"additionalProperties":{"type":"null"}})", R"({"ab":null,"":null,"b":null})"));
  CHECK(!valid(R"({"properties":{"a":{}},"additionalProperties":{"type":"null"}})", R"({"a":1,"a":null})"));
  CHECK(valid(R"({"type":["string","null"],"maxLength":2})", R"("é\n")"));
  CHECK(!valid(R"({"type":["string","null"],"maxLength":2})", R"("abc")"));
  CHECK(valid(R"({"type":["string","null"],"maxLength":2})", "null"));
  CHECK(valid(R"({"pattern":"^a\"b\\\\c$"})", R"("a\"b\\c")"));
  CHECK(valid(R"({"pattern":"b"})", R"("abc")"));
  CHECK(!valid(R"({"pattern":"^b"})", R"("abc")"));
  CHECK(valid(R"({"format":"date"})", R"("2024-02-29")"));
  CHECK(!valid(R"({"format":"date"})", R"("2023-02-29")"));
  CHECK(valid(
      R"({"prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"type":"boolean"},"minItems":1,"maxItems":3})",
      "[7,null, true]"));
  CHECK(!valid(
      R"({"prefixItems":[{"type":"integer"},{"type":"null"}],"items":{"type":"boolean"},"minItems":1,"maxItems":3})",
      "[]"));
  CHECK(valid(
      R"({"allOf":[{"properties":{"a":{"minimum":3,"type":"integer"}}},{"properties":{"a":{"maximum":5}},"required":["a"]}]})",
      R"({"a":4})"));
  CHECK(!valid(
      R"({"allOf":[{"properties":{"a":{"minimum":3,"type":"integer"}}},{"properties":{"a":{"maximum":5}},"required":["a"]}]})",
      R"({"a":6})"));
  CHECK(valid(R"({"$ref":"#/definitions/t","definitions":{"t":{"type":"array","items":{"$ref":"#/definitions/t"}}}})",
              "[[],[[]]]"));
  CHECK(valid(R"({"enum":[{"a":[1.5,"\u00e9"]}]})", "{\"a\":[1.5,\"é\"]}"));
}

TEST_CASE("schema: what is not supported is refused by name and place") {
  CHECK(schema_failure(R"({"properties":{"a":{"if":{}}}})") ==
        "unsupported: schema at #/properties/a: keyword if is not supported");
  CHECK(schema_failure(R"({"items":{"maxContains":2}})") ==
        "unsupported: schema at #/items: keyword maxContains is not supported");
  CHECK(schema_failure(R"({"type":"array","uniqueItems":true})").find("where items list their values") !=
        std::string::npos);
  CHECK(schema_failure(R"({"format":"hostname"})").find("format hostname is not supported") != std::string::npos);
  CHECK(schema_failure(R"({"type":"number","multipleOf":0.12345})").find("too many digits") != std::string::npos);
  CHECK(schema_failure(R"({"type":"integer","minimum":1e30})").find("bounds of 64 bits are supported") !=
        std::string::npos);
  CHECK(schema_failure(R"({"$ref":"other.json"})").find("leaves the schema") != std::string::npos);
  CHECK(schema_failure(R"({"$ref":"#/$defs/x"})").find("leads nowhere") != std::string::npos);
  CHECK(schema_failure(R"({"pattern":"(?=a)b"})").find("look-around") != std::string::npos);
  CHECK(schema_failure(R"({"pattern":"a(b"})").find("column 2: this group has no closing )") != std::string::npos);
  CHECK(schema_failure(R"({"minLength":-1})").find("minLength has to be a whole number") != std::string::npos);
  CHECK(schema_failure(R"({"required":["a"],"properties":{"a":false}})").find("never ends") != std::string::npos);
  CHECK(schema_failure(R"({"allOf":[{"$ref":"#"}]})").find("without an end") != std::string::npos);
  CHECK(schema_failure("[1,]").find("format: schema: parse error") == 0);
  CHECK(schema_failure("3").find("number, expected an object") != std::string::npos);
  CHECK(schema_failure(std::string(200, '[') + std::string(200, ']')).find("nested more than 100") !=
        std::string::npos);
  CHECK(schema_failure("{\"properties\":{\"x\":{\"maxLength\":1000000000}}}").find("needs more than") !=
        std::string::npos);
}

TEST_CASE("schema: what would take long to merge is refused, and merging grows with the schema") {
  const auto members = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += (i ? ",\"a" : "\"a") + std::to_string(i) + "\":{}";
    return "{" + text + "}";
  };
  const auto merged = [&](int times, int count) {
    std::string references;
    for (int i = 0; i < times; ++i) references += i ? R"(,{"$ref":"#/$defs/x"})" : R"({"$ref":"#/$defs/x"})";
    return "{\"allOf\":[" + references + "],\"$defs\":{\"x\":{\"properties\":" + members(count) + "}}}";
  };
  CHECK(schema_failure(merged(60, 300)) == "accepted");
  CHECK(schema_failure(merged(3000, 1000)).find("the schema takes too much work") != std::string::npos);
  CHECK(schema_failure("{\"type\":\"null\",\"$defs\":" + members(6000) + "}").find("too many members") !=
        std::string::npos);
  CHECK(schema_failure("{\"type\":\"null\",\"$defs\":" + members(3000) + "}") == "accepted");
  // A name, or what others may be, is not copied for each of many properties.
  CHECK(schema_failure("{\"properties\":{\"" + std::string(200000, 'x') + "\":{\"properties\":" + members(3000) + "}}}")
            .find("the schema takes too much work") != std::string::npos);
  // Nor is what values are listed beside looked at without end.
  std::string levels;
  for (int i = 0; i < 20; ++i) {
    const std::string next = R"({"$ref":"#/$defs/a)" + std::to_string(i + 1) + "\"}";
    levels += "\"a" + std::to_string(i) + R"(":{"anyOf":[)" + next + "," + next + "," + next + "," + next + "]},";
  }
  CHECK(schema_failure(R"({"$defs":{)" + levels + R"("a20":{"type":"string"}},)" +
                       R"("const":[1],"items":{"$ref":"#/$defs/a0"}})")
            .find("the schema takes too much work") != std::string::npos);
  const auto listed = [](int count, const std::string& quote) {
    std::string text;
    for (int i = 0; i < count; ++i) text += (i ? "," : "") + quote + std::to_string(i) + quote;
    return "[" + text + "]";
  };
  CHECK(schema_failure(R"({"enum":)" + listed(1000, "\"") + R"(,"pattern":"^[0-9]{0,10000}x{0,10000}$"})")
            .find("the schema takes too much work") != std::string::npos);
  CHECK(schema_failure(R"({"enum":)" + listed(2000, "\"") + R"(,"pattern":"^[0-9]{1,100}$"})") == "accepted");
  CHECK(schema_failure(R"({"enum":[)" + listed(30000, "") + R"(],"uniqueItems":true})") == "accepted");
  CHECK(valid(R"({"enum":[[1,[2]],[1,2,1]],"uniqueItems":true})", "[1,[2]]"));
  CHECK(!valid(R"({"enum":[[1,[2]],[1,2,1]],"uniqueItems":true})", "[1,2,1]"));
  CHECK(valid(R"({"allOf":[{"enum":[1,"b",[2],"c"]},{"enum":["c",[2],1.0,"d"]}]})", "[2]"));
  CHECK(!valid(R"({"allOf":[{"enum":[1,"b",[2],"c"]},{"enum":["c",[2],1.0,"d"]}]})", "\"b\""));
  CHECK(valid(R"({"required":["b","a","b"],"properties":{"a":{}},"additionalProperties":{"type":"null"}})",
              R"({"a":1,"b":null})"));
}
