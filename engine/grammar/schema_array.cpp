// Arrays of a JSON schema.
#include <algorithm>
#include <bit>
#include <set>

#include "engine/grammar/schema_compiler.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr size_t kMostStates = 20'000;  // of one array's items and what was found among them
constexpr size_t kAnyOrder = 10;        // of so many values any order may come: each subset of them is a state
}  // namespace

Expr SchemaCompiler::array(const Json& schema, const std::string& where) {
  if (schema.value("uniqueItems", false) && schema.value("maxItems", SIZE_MAX) > 1)
    return distinct_array(schema, where);
  if (schema.contains("contains")) return counted_array(schema, where);
  const Json prefix = schema.value("prefixItems", Json::array());
  const size_t min = schema.value("minItems", size_t{0});
  const bool limited = schema.contains("maxItems");
  const size_t max = limited ? schema["maxItems"].get<size_t>() : 0;
  if (limited && max < min) return nothing();
  const size_t ahead = limited ? std::min(prefix.size(), max) : prefix.size();

  Expr item = nothing();
  const bool asks_more = min > prefix.size();
  if (schema.contains("items") || prefix.empty() || asks_more)
    item = value(schema.value("items", Json(true)), where + "/items");
  const Expr each = rule(add(where + ", an item", std::move(item)));
  const int more_min = static_cast<int>(min > ahead ? min - ahead : 0);
  const int more_max = limited ? static_cast<int>(max - ahead) : Expr::kUnlimited;

  // rest: what follows item i, from the last of prefixItems back.
  Expr rest = empty();
  if (more_max != 0) {
    if (ahead > 0) {
      rest = repeat(sequence({spaced(","), each}), more_min, more_max);
    } else {
      const int others = more_max == Expr::kUnlimited ? more_max : more_max - 1;
      rest = sequence({each, repeat(sequence({spaced(","), each}), std::max(0, more_min - 1), others)});
      if (min == 0) rest = optional(std::move(rest));
    }
  }
  for (size_t i = ahead; i-- > 0;) {
    Expr here = value(prefix[i], where + "/prefixItems/" + std::to_string(i));
    std::vector<Expr> parts;
    if (i > 0) parts.push_back(spaced(","));
    parts.push_back(std::move(here)), parts.push_back(std::move(rest));
    rest = sequence(std::move(parts));
    if (i >= min) rest = optional(std::move(rest));
    rest = rule(add(where + ", from item " + std::to_string(i), std::move(rest)));
  }
  return sequence({literal("["), json("ws"), std::move(rest), json("ws"), literal("]")});
}

// With items that "contains" asks for: state {i, k} is before item i, after k of them (no more than asked for).
Expr SchemaCompiler::counted_array(const Json& schema, const std::string& where) {
  if (schema["contains"].size() > 1)
    fail("unsupported", where, ": contains on two sides that hold together is not supported");
  const Json& wanted = schema["contains"][0][0];
  const auto asked = schema["contains"][0][1].get<size_t>();
  const Json prefix = schema.value("prefixItems", Json::array());
  const size_t min = schema.value("minItems", size_t{0}), max = schema.value("maxItems", SIZE_MAX);
  // From item `last` on all are alike; it is where items end, if they do.
  const size_t last = max != SIZE_MAX ? max : std::max({prefix.size(), min, size_t{1}});
  if (last > kMostStates || (last + 1) * (asked + 1) > kMostStates)
    fail("unsupported", where, ": contains beside ", last,
         " items takes too many states; make maxItems or minItems smaller");
  spend((last + 1) * (asked + 1), where);
  const auto any_rule = [&](const Json& item, const std::string& at) { return rule(add(at, value(item, at))); };
  const auto fitting_rule = [&](const Json& item, const std::string& at) {
    return rule(
        add(at + ", contained", value(item == true ? wanted : Json{{"allOf", Json::array({item, wanted})}}, at)));
  };
  std::vector<Expr> each, fitting;
  for (size_t i = 0; i < prefix.size() && i < last; ++i) {
    const std::string at = where + "/prefixItems/" + std::to_string(i);
    each.push_back(any_rule(prefix[i], at)), fitting.push_back(fitting_rule(prefix[i], at));
  }
  const Json items = schema.value("items", Json(true));
  each.push_back(any_rule(items, where + "/items")), fitting.push_back(fitting_rule(items, where + "/items"));

  const auto first = static_cast<uint32_t>(rules_.rules.size());
  for (size_t i = 0; i < (last + 1) * (asked + 1); ++i) add(where + ", items so far", empty());
  const auto state = [&](size_t i, size_t k) { return rule(static_cast<uint32_t>(first + i * (asked + 1) + k)); };
  for (size_t i = 0; i <= last; ++i) {
    const size_t next = std::min(i + 1, last), at = std::min(i, each.size() - 1);
    for (size_t k = 0; k <= asked; ++k) {
      const auto then = [&](const Expr& item, Expr rest) {
        return i > 0 ? sequence({spaced(","), item, std::move(rest)}) : sequence({item, std::move(rest)});
      };
      std::vector<Expr> ways;
      if (i >= min && k == asked) ways.push_back(empty());
      if (i < last || max == SIZE_MAX) {
        ways.push_back(then(each[at], state(next, k)));
        if (k < asked) ways.push_back(then(fitting[at], state(next, k + 1)));
      }
      rules_.rules[state(i, k).index].body = choice(std::move(ways));
    }
  }
  return sequence({literal("["), json("ws"), state(0, 0), json("ws"), literal("]")});
}

// With uniqueItems, of items that list their values: a state is the set of those that came, or, of many, how far in the
// list the last one was.
Expr SchemaCompiler::distinct_array(const Json& schema, const std::string& where) {
  const Json both = {true, false};
  Json values = Json::array();
  for (const Alternative& way : alternatives(schema.value("items", Json(true)), where + "/items", 0, false)) {
    Json listed = way.schema.value("enum", Json::array());
    if (!way.schema.contains("enum")) {
      for (const std::string& type : types_of(way.schema, where)) {
        if (type != "boolean" && type != "null")
          fail("unsupported", where,
               ": uniqueItems is supported where items list their values (enum, const), and not of ", type);
        for (const Json& value : type == "null" ? Json::array({nullptr}) : both) listed.push_back(value);
      }
    }
    for (const Json& value : listed) {
      if (holds(value, way.schema, where)) values.push_back(value);
    }
  }
  if (schema.contains("prefixItems") || schema.contains("contains"))
    fail("unsupported", where, ": prefixItems or contains beside uniqueItems is not supported");
  std::vector<Expr> texts;
  std::set<nlohmann::json> known;  // whose members are in order, so that equal ones are
  for (const Json& value : values) {
    if (known.insert(nlohmann::json(value)).second) texts.push_back(literal(value.dump()));
  }
  const size_t count = texts.size(), min = schema.value("minItems", size_t{0});
  const size_t max = std::min(schema.value("maxItems", SIZE_MAX), count);
  if (min > max) return nothing();
  const bool any_order = count <= kAnyOrder;
  const size_t states = any_order ? size_t{1} << count : (count + 1) * (max + 1);
  if (states > kMostStates) fail("unsupported", where, ": uniqueItems of ", count, " values takes too many states");
  spend(states, where);
  const auto first = static_cast<uint32_t>(rules_.rules.size());
  for (size_t i = 0; i < states; ++i) add(where + ", items so far", empty());
  for (size_t s = 0; s < states; ++s) {
    const size_t came = any_order ? static_cast<size_t>(std::popcount(s)) : s % (max + 1);
    std::vector<Expr> ways;
    if (came >= min) ways.push_back(empty());
    for (size_t v = any_order ? 0 : s / (max + 1); v < count && came < max; ++v) {
      if (any_order && (s >> v & 1)) continue;
      const size_t next = any_order ? s | size_t{1} << v : (v + 1) * (max + 1) + came + 1;
      std::vector<Expr> parts;
      if (came > 0) parts.push_back(spaced(","));
      parts.push_back(texts[v]), parts.push_back(rule(static_cast<uint32_t>(first + next)));
      ways.push_back(sequence(std::move(parts)));
    }
    rules_.rules[first + s].body = choice(std::move(ways));
  }
  return sequence({literal("["), json("ws"), rule(first), json("ws"), literal("]")});
}

}  // namespace qeng::grammar
