// Strings and numbers of a JSON schema. What only one keyword speaks of is an expression; where several do, or some are
// forbidden, their languages are one automaton, which becomes rules.
#include <algorithm>

#include "engine/grammar/regex.h"
#include "engine/grammar/schema_compiler.h"
#include "engine/grammar/schema_number.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
const char* const kFormats[] = {"date", "time", "date-time", "uuid", "email", "uri", "ipv4"};
const Decimal kLeast = decimal_of("-9223372036854775808"), kMost = decimal_of("9223372036854775807"),
              kMostUnsigned = decimal_of("18446744073709551615");

// What a string is made of where nothing says: all but control characters that are no white space.
Expr any_text() { return repeat(chars(without(complement({}), {{0, 8}, {11, 12}, {14, 0x1F}})), 0, Expr::kUnlimited); }

const char* format_rule(const Json& format, const std::string& where) {
  for (const char* known : kFormats) {
    if (format == known) return known;
  }
  fail("unsupported", where, ": format ", format.get<std::string>(),
       " is not supported; there are date, time, date-time, uuid, email, uri and ipv4, and pattern");
}
}  // namespace

void SchemaCompiler::narrow_strings(Language& language, const Json& schema, bool generated,
                                    const std::string& where) const {
  const auto add = [&](const Json& part, bool wanted) {
    const PatternOf of = wanted && generated ? PatternOf::text : PatternOf::every;
    const Expr other = wanted && generated ? any_text() : repeat(chars(complement({})), 0, Expr::kUnlimited);
    for (const Json& pattern : part.value("pattern", Json::array())) {
      const Expr expr = pattern_expr(pattern.get<std::string>(), of, other, where);
      wanted ? language.must(expr) : language.must_not(expr);
    }
    for (const Json& format : part.value("format", Json::array())) {
      const Expr expr = json(format_rule(format, where));
      wanted ? language.must(expr, rules_.rules) : language.must_not(expr, rules_.rules);
    }
  };
  add(schema, true);
  for (const Json& forbidden : schema.value("not", Json::array())) {
    for (const char* keyword : {"pattern", "format"}) {
      if (forbidden.contains(keyword)) add({{keyword, Json::array({forbidden[keyword]})}}, false);
    }
    for (const Json& value : forbidden.value("enum", Json::array())) {
      if (value.is_string()) language.must_not(literal(value.get<std::string>()));
    }
  }
  if (!schema.contains("minLength") && !schema.contains("maxLength")) return;
  const Expr any = chars(complement({}));
  language.must(repeat(any, schema.value("minLength", 0), schema.value("maxLength", Expr::kUnlimited)));
}

Expr SchemaCompiler::string(const Json& schema, const std::string& where) {
  const auto count = [&](const char* keyword) { return schema.value(keyword, Json::array()).size(); };
  const bool lengths = schema.contains("minLength") || schema.contains("maxLength");
  const auto quoted = [&](Expr text) { return sequence({literal("\""), std::move(text), literal("\"")}); };
  if (count("pattern") + count("format") + count("not") + lengths > 1 || count("not") > 0) {
    Language language;
    language.must(any_text());
    narrow_strings(language, schema, true, where);
    return quoted(spelled(language, true, where));
  }
  const Expr any = repeat(json("char"), 0, Expr::kUnlimited);
  if (count("pattern") > 0)
    return quoted(pattern_expr(schema["pattern"][0].get<std::string>(), PatternOf::json, any, where));
  if (count("format") > 0) return quoted(json(format_rule(schema["format"][0], where)));
  return quoted(repeat(json("char"), schema.value("minLength", 0), schema.value("maxLength", Expr::kUnlimited)));
}

void SchemaCompiler::begin_numbers(Language& language, const Json& schema, bool integer,
                                   const std::string& where) const {
  bool large = false;
  const auto bound = [&](const char* keyword) {
    if (!schema.contains(keyword)) return false;
    const Decimal given = decimal_of(schema[keyword].dump());
    if (given.whole.size() > kIntegerDigits)
      fail("unsupported", where, ": ", keyword, " ", schema[keyword].dump(), " has over ", kIntegerDigits,
           " digits; bounds of 64 bits are supported");
    if (!integer && given.fraction.size() > kExactDigits)
      fail("unsupported", where, ": ", keyword, " ", schema[keyword].dump(), " has over ", kExactDigits,
           " digits after the point");
    large |= given.whole.size() > kExactDigits;
    return true;
  };
  const bool low = bound("minimum") | bound("exclusiveMinimum"), high = bound("maximum") | bound("exclusiveMaximum");
  if (!integer) return decimal_numbers(language, large);
  whole_numbers(language);
  if (!low) at_least(language, kLeast, false);
  const auto beyond = [&](const char* keyword) {
    if (!schema.contains(keyword)) return false;
    Language signed_ones;
    at_most(signed_ones, kMost, false);
    return !signed_ones.accepts(decimal_of(schema[keyword].dump()).text());
  };
  if (!high) at_most(language, beyond("minimum") || beyond("exclusiveMinimum") ? kMostUnsigned : kMost, false);
}

void SchemaCompiler::narrow_numbers(Language& language, const Json& schema, const std::string& where) const {
  const auto bound = [&](const char* keyword, bool low, bool open) {
    if (!schema.contains(keyword)) return;
    const Decimal given = decimal_of(schema[keyword].dump());
    low ? at_least(language, given, open) : at_most(language, given, open);
  };
  bound("minimum", true, false), bound("exclusiveMinimum", true, true);
  bound("maximum", false, false), bound("exclusiveMaximum", false, true);
  const auto step = [&](const Json& given, bool wanted) {
    multiple_of(language, decimal_of(given.dump()), wanted, where + ": multipleOf");
  };
  for (const Json& given : schema.value("multipleOf", Json::array())) step(given, true);
  for (const Json& forbidden : schema.value("not", Json::array())) {
    if (forbidden.contains("multipleOf")) step(forbidden["multipleOf"], false);
    if (forbidden.contains("type")) step(1, false);
    for (const Json& value : forbidden.value("enum", Json::array())) {
      if (value.is_number()) equal_to(language, decimal_of(value.dump()), false);
    }
  }
}

Expr SchemaCompiler::number(const Json& schema, bool integer, const std::string& where) {
  Json told = {{"integer", integer}};
  for (const char* keyword : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf", "not"}) {
    if (schema.contains(keyword)) told[keyword] = schema[keyword];
  }
  if (!integer && told.size() == 1) return json("number");
  const auto [found, fresh] = numbers_.try_emplace(told.dump(), 0);
  if (fresh) {
    Language language;
    begin_numbers(language, schema, integer, where);
    narrow_numbers(language, schema, where);
    found->second = add(where + ", a number", spelled(language, false, where));
  }
  return rule(found->second);
}

// A language as rules, one for each state.
Expr SchemaCompiler::spelled(const Language& language, bool quoted, const std::string& where) {
  const std::vector<LanguageState> states = language.states(where.c_str());
  if (states.empty()) return nothing();
  spend(states.size(), where);
  const auto first = static_cast<uint32_t>(rules_.rules.size());
  for (size_t i = 0; i < states.size(); ++i) add(where, empty());
  for (size_t i = 0; i < states.size(); ++i) {
    std::vector<Expr> ways;
    if (states[i].final) ways.push_back(empty());
    for (const auto& [set, to] : states[i].next)
      ways.push_back(sequence({quoted ? string_char(set) : chars(set), rule(first + to)}));
    rules_.rules[first + i].body = choice(std::move(ways));
  }
  return rule(first);
}

}  // namespace qeng::grammar
