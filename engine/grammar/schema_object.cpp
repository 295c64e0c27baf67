// Objects of a JSON schema.
#include <algorithm>

#include "engine/grammar/regex.h"
#include "engine/grammar/schema_compiler.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
using Property = SchemaCompiler::Property;

std::vector<Property> properties_of(const Json& schema) {
  std::vector<std::string> required;
  if (schema.contains("required")) required = schema["required"].get<std::vector<std::string>>();
  std::set<std::string> missing(required.begin(), required.end());
  std::vector<Property> all;
  if (schema.contains("properties")) {
    for (const auto& [name, property] : schema["properties"].items())
      all.push_back({name, &property, missing.erase(name) > 0});
  }
  static const Json kAny = true;
  const Json* others = schema.contains("additionalProperties") ? &schema["additionalProperties"] : &kAny;
  for (const std::string& name : required) {
    if (missing.erase(name)) all.push_back({name, others, true});
  }
  return all;
}

// Characters that need no escape in a JSON string; only these are in keys that a schema does not name.
const CharSet kPlain = without(complement({{0, 0x1F}}), {{'"', '"'}, {'\\', '\\'}});

// Names from `depth` bytes on (they share those before), none of which may come.
Expr besides(const std::vector<std::string>& names, size_t begin, size_t end, size_t depth, const Expr& plain) {
  const bool taken = begin < end && names[begin].size() == depth;
  if (taken) ++begin;
  CharSet others = kPlain;
  std::vector<Expr> all;
  if (!taken) all.push_back(empty());
  while (begin < end) {
    uint32_t code;
    const auto length = static_cast<size_t>(decode_utf8(names[begin].data() + depth, code));
    const std::string_view character = std::string_view(names[begin]).substr(depth, length);
    size_t last = begin + 1;
    while (last < end && std::string_view(names[last]).substr(depth, length) == character) ++last;
    others = without(others, {{code, code}});
    if (code >= 0x20 && code != '"' && code != '\\') {
      all.push_back(sequence({literal(character), besides(names, begin, last, depth + length, plain)}));
    }
    begin = last;
  }
  all.push_back(sequence({chars(others), repeat(plain, 0, Expr::kUnlimited)}));
  return choice(std::move(all));
}
}  // namespace

// A key that is none of the names, with its quotes.
Expr SchemaCompiler::key_besides(const std::set<std::string>& names, const std::string& where) {
  if (names.empty()) return json("string");
  for (const std::string& name : names) {
    if (name.size() > 200)
      fail("unsupported", where, ": additionalProperties beside a name of over 200 bytes is not supported");
  }
  const Expr key = besides({names.begin(), names.end()}, 0, names.size(), 0, json("plain"));
  return sequence({literal("\""), key, literal("\"")});
}

Expr SchemaCompiler::object(const Json& schema, const std::string& where) {
  const std::vector<Property> properties = properties_of(schema);
  const auto pair = [&](Expr key, const Json& of_value, const std::string& name) {
    return sequence({std::move(key), literal(":"), json("gap"), value(of_value, where + "/" + name)});
  };
  // What else may come: other names, or those of one pattern.
  Expr more = nothing();
  if (schema.contains("patternProperties")) {
    const Json& patterns = schema["patternProperties"];
    if (!properties.empty() || patterns.size() != 1 || schema.value("additionalProperties", Json(false)) != false) {
      fail("unsupported", where,
           ": patternProperties is supported with one pattern, and beside it no properties and no additionalProperties "
           "but false");
    }
    const auto pattern = patterns.begin();
    const Expr key = pattern_expr(pattern.key(), PatternOf::json, repeat(json("char"), 0, Expr::kUnlimited), where);
    more = pair(sequence({literal("\""), key, literal("\"")}), pattern.value(), "patternProperties");
  } else if (schema.contains("additionalProperties") || !schema.contains("properties")) {
    const Json others = schema.value("additionalProperties", Json(true));
    if (others != false) {
      std::set<std::string> names;
      for (const Property& property : properties) names.insert(property.name);
      more = pair(key_besides(names, where), others, "additionalProperties");
    }
  }
  const bool open = more.kind != Expr::Kind::choice || !more.parts.empty();
  const Expr another = open ? rule(add(where + ", another property", std::move(more))) : nothing();
  const Expr others = open ? repeat(sequence({spaced(","), another}), 0, Expr::kUnlimited) : empty();

  // tail[i]: what follows when something stands there already and property i is next.
  std::vector<Expr> pairs, first;
  for (const Property& property : properties) {
    pairs.push_back(
        rule(add(where + ", property " + property.name,
                 pair(literal(Json(property.name).dump()), *property.schema, "properties/" + property.name))));
  }
  if (schema.contains("minProperties") || schema.contains("maxProperties"))
    return counted_object(schema, properties, pairs, open ? &another : nullptr, where);
  std::vector<Expr> tail(properties.size() + 1, others);
  for (size_t i = properties.size(); i-- > 1;) {
    Expr taken = sequence({spaced(","), pairs[i], tail[i + 1]});
    if (!properties[i].required) taken = choice({std::move(taken), tail[i + 1]});
    tail[i] = rule(add(where + ", after property " + properties[i - 1].name, std::move(taken)));
  }
  bool may_be_empty = true;
  for (size_t i = 0; i < properties.size() && may_be_empty; ++i) {
    first.push_back(sequence({pairs[i], tail[i + 1]}));
    may_be_empty = !properties[i].required;
  }
  if (may_be_empty) {
    if (open) first.push_back(sequence({another, others}));
    first.push_back(empty());
  }
  return sequence({literal("{"), json("ws"), choice(std::move(first)), json("ws"), literal("}")});
}

// With so many properties at least or at most: state {i, k} is before property i, after k. Of names that the schema
// does not list several may be the same, so that only one of them counts for the least.
Expr SchemaCompiler::counted_object(const Json& schema, const std::vector<Property>& properties,
                                    const std::vector<Expr>& pairs, const Expr* another, const std::string& where) {
  const size_t all = properties.size(), least = schema.value("minProperties", size_t{0});
  const size_t most = schema.value("maxProperties", SIZE_MAX);
  if (another && least > all + 1) {
    fail("unsupported", where, ": minProperties ", least, " beside ", all,
         " properties is not supported: of names that are not listed only one is counted; list them in properties");
  }
  const size_t counts = std::min(all, most) + 1;
  spend((all + 1) * counts, where);
  const auto first = static_cast<uint32_t>(rules_.rules.size());
  for (size_t i = 0; i < (all + 1) * counts; ++i) add(where + ", properties so far", empty());
  const auto state = [&](size_t i, size_t k) { return static_cast<uint32_t>(first + i * counts + k); };
  const auto after = [&](size_t k, const Expr& pair) { return k > 0 ? sequence({spaced(","), pair}) : pair; };
  for (size_t k = 0; k < counts; ++k) {
    for (size_t i = 0; i < all; ++i) {
      std::vector<Expr> ways;
      if (k + 1 < counts) ways.push_back(sequence({after(k, pairs[i]), rule(state(i + 1, k + 1))}));
      if (!properties[i].required) ways.push_back(rule(state(i + 1, k)));
      rules_.rules[state(i, k)].body = choice(std::move(ways));
    }
    std::vector<Expr> ways;
    if (k >= least) ways.push_back(empty());
    const size_t room = most == SIZE_MAX ? SIZE_MAX : most - k;
    if (another && k + 1 >= least && room > 0) {
      const int more = room == SIZE_MAX ? Expr::kUnlimited : static_cast<int>(room - 1);
      ways.push_back(sequence({after(k, *another), repeat(sequence({spaced(","), *another}), 0, more)}));
    }
    rules_.rules[state(all, k)].body = choice(std::move(ways));
  }
  return sequence({literal("{"), json("ws"), rule(state(0, 0)), json("ws"), literal("}")});
}

}  // namespace qeng::grammar
