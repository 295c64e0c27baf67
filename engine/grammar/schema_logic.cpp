// allOf, anyOf, oneOf and not: schemas as a list of alternatives, each of plain keywords, of which any may hold.
//
// Of oneOf, an alternative keeps what holds to none of the others. Two that are apart by themselves (other types, other
// values of a property that has to be there, ...) keep all; otherwise the negations of the others are merged with it.
#include <algorithm>

#include "engine/grammar/schema_compiler.h"
#include "engine/grammar/schema_number.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int kLookAhead = 8;  // how deep to look for a difference
constexpr size_t kFirstItems = 4;

// The schema of a property; of what is generated (narrow), names beside "properties" do not come.
Json property_of(const Json& schema, const std::string& name, bool narrow) {
  if (schema.contains("properties") && schema["properties"].contains(name)) return schema["properties"][name];
  if (schema.contains("patternProperties")) return true;
  const Json required = schema.value("required", Json::array());
  if (std::find(required.begin(), required.end(), Json(name)) != required.end())
    return schema.value("additionalProperties", Json(true));
  return schema.value("additionalProperties", Json(!(narrow && schema.contains("properties"))));
}

Json item_of(const Json& schema, size_t at) {
  const Json prefix = schema.value("prefixItems", Json::array());
  return at < prefix.size() ? prefix[at] : schema.value("items", Json(true));
}

Json negation(const Json& schema) { return {{"not", schema}}; }

Json all_types() { return Json::array({"object", "array", "string", "number", "boolean", "null"}); }
}  // namespace

Json SchemaCompiler::merged(const Json& a, const Json& b, const std::string& where) {
  spend(size_of(a) + size_of(b), where);
  return merge(a, b, where);
}

std::vector<SchemaCompiler::Alternative> SchemaCompiler::joined(const std::vector<Alternative>& a,
                                                                const std::vector<Alternative>& b) {
  std::vector<Alternative> all;
  for (const Alternative& one : a) {
    for (const Alternative& other : b) {
      const std::string& where = one.where.size() > other.where.size() ? one.where : other.where;
      Json both = merged(one.schema, other.schema, where);
      if (impossible(both)) continue;
      all.push_back({std::move(both), where});
      if (all.size() > kMaxAlternatives)
        fail("unsupported", where, ": anyOf, oneOf and not lead to over ", kMaxAlternatives,
             " alternatives; give those of oneOf a property with a const of its own");
    }
  }
  return all;
}

std::vector<SchemaCompiler::Alternative> SchemaCompiler::alternatives(const Json& schema, const std::string& where,
                                                                      int depth, bool generous) {
  if (depth > kMaxNesting) fail("format", where, ": $ref and allOf lead from schema to schema without an end");
  check_keywords(schema, where);
  spend(size_of(schema), where);
  if (schema == false) return {};
  std::vector<Alternative> all = {{Json::object(), where}};
  if (schema == true) return all;
  const auto part = [&](const Json& of, const std::string& at) { return alternatives(of, at, depth + 1, generous); };
  if (schema.contains("$ref")) {
    std::vector<Alternative> theirs = part(target(schema["$ref"].get<std::string>(), where), where);
    all = joined(all, theirs);
  }
  for (const Json& each : schema.value("allOf", Json::array())) all = joined(all, part(each, where));
  all = joined(all, {{normal_form(schema), where}});
  for (const std::string keyword : {"anyOf", "oneOf"}) {
    if (!schema.contains(keyword)) continue;
    const Json& schemas = schema[keyword];
    std::vector<Alternative> ways;
    for (size_t i = 0; i < schemas.size(); ++i) {
      const std::string at = where + "/" + keyword + "/" + std::to_string(i);
      std::vector<Alternative> more =
          keyword == "oneOf" && !generous ? only(schemas, i, all, at, depth) : joined(all, part(schemas[i], at));
      ways.insert(ways.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    }
    all = std::move(ways);
  }
  if (!schema.contains("not") || generous) return all;
  std::vector<Alternative> ways;
  for (const Alternative& one : all) {
    bool exact = true;
    std::vector<Alternative> others;
    for (Json& other : negated(schema["not"], one.schema, where + "/not", depth + 1, exact))
      others.push_back({std::move(other), where});
    std::vector<Alternative> left = joined({one}, others);
    if (left.empty() && !exact) fail("unsupported", where, ": this not is not supported");
    ways.insert(ways.end(), std::make_move_iterator(left.begin()), std::make_move_iterator(left.end()));
  }
  return ways;
}

std::vector<SchemaCompiler::Alternative> SchemaCompiler::only(const Json& schemas, size_t index,
                                                              const std::vector<Alternative>& base,
                                                              const std::string& where, int depth) {
  std::vector<Alternative> mine = joined(base, alternatives(schemas[index], where, depth + 1, false));
  for (Alternative& one : mine) {  // what a schema without a type means by its keywords is all that is generated
    const std::vector<std::string> types = types_of(one.schema, where);
    if (!one.schema.contains("type") && !one.schema.contains("enum") && types.size() < all_types().size())
      one.schema["type"] = types.size() == 1 ? Json(types[0]) : Json(types);
  }
  for (size_t j = 0; j < schemas.size(); ++j) {
    if (j == index) continue;
    const std::vector<Alternative> theirs = alternatives(schemas[j], where, depth + 1, true);
    std::vector<Alternative> left;
    for (const Alternative& one : mine) {
      if (std::all_of(theirs.begin(), theirs.end(),
                      [&](const Alternative& other) { return apart(one.schema, other.schema, where, 0); })) {
        left.push_back(one);
        continue;
      }
      bool exact = true;
      std::vector<Alternative> others;
      for (Json& other : negated(schemas[j], one.schema, where, depth + 1, exact))
        others.push_back({std::move(other), where});
      std::vector<Alternative> kept = joined({one}, others);
      if (kept.empty() && !exact)
        fail("unsupported", where, ": what holds to this and not to alternative ", j,
             " of oneOf cannot be told; use anyOf, or give each a property with a const of its own");
      const bool closed = one.schema.contains("properties") || one.schema.contains("additionalProperties");
      for (Alternative& way : kept) {
        if (!closed && way.schema.contains("properties")) way.schema["additionalProperties"] = true;
        left.push_back(std::move(way));
      }
    }
    mine = std::move(left);
  }
  return mine;
}

std::vector<Json> SchemaCompiler::negated(const Json& schema, const Json& of, const std::string& where, int depth,
                                          bool& exact) {
  check_keywords(schema, where);
  spend(size_of(schema), where);
  if (schema == true) return {};
  if (schema == false) return {Json::object()};
  std::vector<Json> all;
  if (depth > kMaxNesting) return exact = false, all;
  const auto add = [&](std::vector<Json> more) { all.insert(all.end(), more.begin(), more.end()); };
  const auto not_this = [&](const Json& part) { return negated(part, of, where, depth + 1, exact); };
  const auto none = [&](const Json& parts) {
    std::vector<Alternative> ways = {{Json::object(), where}};
    for (const Json& part : parts) {
      std::vector<Alternative> others;
      for (Json& other : not_this(part)) others.push_back({std::move(other), where});
      ways = joined(ways, others);
    }
    for (Alternative& way : ways) all.push_back(std::move(way.schema));
  };
  const auto both = [&](const Json& one, const Json& other) {
    for (Alternative& way : alternatives({{"allOf", {one, other}}}, where, depth + 1, false))
      all.push_back(std::move(way.schema));
  };
  const Json names = schema.value("properties", Json::object()), theirs = of.value("properties", Json::object());
  for (const auto& [keyword, given] : schema.items()) {
    if (is_annotation(keyword) || keyword == "$id" || keyword == "minContains") continue;
    const auto typed = [&](const char* type, const char* name, const Json& value) {
      all.push_back({{"type", type}, {name, value}});
    };
    const auto less = [&] { return given.get<int64_t>() - 1; };
    if (keyword == "$ref") {
      add(not_this(target(given.get<std::string>(), where)));
    } else if (keyword == "allOf") {
      for (const Json& part : given) add(not_this(part));
    } else if (keyword == "anyOf") {
      none(given);
    } else if (keyword == "oneOf") {
      none(given);
      for (size_t i = 0; i < given.size(); ++i) {
        for (size_t j = 0; j < i; ++j) both(given[i], given[j]);
      }
    } else if (keyword == "not") {
      both(given, true);
    } else if (keyword == "type") {
      const std::vector<std::string> types = types_of(schema, where);
      Json others = all_types();
      const auto has = [&](const char* type) { return std::find(types.begin(), types.end(), type) != types.end(); };
      for (size_t i = others.size(); i-- > 0;) {
        const auto type = others[i].get<std::string>();
        if (has(type.c_str()) || (type == "number" && has("integer"))) others.erase(i);
      }
      all.push_back({{"type", others}});
      if (has("integer")) typed("number", "not", Json::array({{{"type", "integer"}}}));
    } else if (keyword == "enum" || keyword == "const") {
      const Json values = keyword == "enum" ? given : Json::array({given});
      all.push_back({{"not", Json::array({{{"enum", values}}})}});
    } else if (keyword == "pattern" || keyword == "format") {
      typed("string", "not", Json::array({{{keyword, given}}}));
    } else if (keyword == "multipleOf") {
      typed("number", "not", Json::array({{{keyword, given}}}));
    } else if (keyword == "minLength" || keyword == "minItems" || keyword == "minProperties") {
      const bool items = keyword == "minItems", text = keyword == "minLength";
      if (given > 0)
        typed(text    ? "string"
              : items ? "array"
                      : "object",
              text    ? "maxLength"
              : items ? "maxItems"
                      : "maxProperties",
              less());
    } else if (keyword == "maxLength" || keyword == "maxItems" || keyword == "maxProperties") {
      const bool items = keyword == "maxItems", text = keyword == "maxLength";
      typed(text    ? "string"
            : items ? "array"
                    : "object",
            text    ? "minLength"
            : items ? "minItems"
                    : "minProperties",
            given.get<int64_t>() + 1);
    } else if (keyword == "minimum") {
      typed("number", "exclusiveMaximum", given);
    } else if (keyword == "exclusiveMinimum") {
      typed("number", "maximum", given);
    } else if (keyword == "maximum") {
      typed("number", "exclusiveMinimum", given);
    } else if (keyword == "exclusiveMaximum") {
      typed("number", "minimum", given);
    } else if (keyword == "required") {
      for (const Json& name : given) typed("object", "properties", {{name.get<std::string>(), false}});
    } else if (keyword == "properties") {
      for (const auto& [name, property] : given.items()) {
        if (property == true || !has_assertions(property)) continue;
        all.push_back({{"type", "object"}, {"required", {name}}, {"properties", {{name, negation(property)}}}});
      }
    } else if (keyword == "additionalProperties") {
      if (given == true) continue;
      const bool open = of.value("additionalProperties", Json(!of.contains("properties"))) != false;
      if (schema.contains("patternProperties") || open) exact = false;
      for (const auto& [name, property] : theirs.items()) {
        if (names.contains(name) || schema.contains("patternProperties")) continue;
        all.push_back({{"type", "object"}, {"required", {name}}, {"properties", {{name, negation(given)}}}});
      }
    } else if (keyword == "prefixItems") {
      for (size_t i = 0; i < given.size(); ++i) {
        Json before = Json::array();
        for (size_t j = 0; j < i; ++j) before.push_back(true);
        before.push_back(negation(given[i]));
        all.push_back({{"type", "array"}, {"minItems", i + 1}, {"prefixItems", before}, {"items", true}});
      }
    } else if (keyword == "items" && !schema.contains("prefixItems")) {
      typed("array", "contains", Json::array({Json::array({negation(given), 1})}));
    } else if (keyword == "contains" && schema.value("minContains", 1) == 1) {
      typed("array", "items", negation(given));
    } else if (!(keyword == "uniqueItems" && given == false) &&
               !(keyword == "contains" && schema["minContains"] == 0)) {
      exact = false;
    }
  }
  return all;
}

bool SchemaCompiler::all_apart(const Json& schemas, const std::string& where) {
  for (const Json& a : schemas) {
    for (const Json& b : schemas) {
      if (&a != &b && !schemas_apart(a, b, where, 0)) return false;
    }
  }
  return true;
}

bool SchemaCompiler::schemas_apart(const Json& a, const Json& b, const std::string& where, int depth) {
  if (a == false || b == false) return true;
  if (a == true || b == true || depth > kLookAhead) return false;
  const std::vector<Alternative> ours = alternatives(a, where, 0, true), theirs = alternatives(b, where, 0, true);
  return std::all_of(ours.begin(), ours.end(), [&](const Alternative& one) {
    return std::all_of(theirs.begin(), theirs.end(),
                       [&](const Alternative& other) { return apart(one.schema, other.schema, where, depth); });
  });
}

bool SchemaCompiler::apart(const Json& a, const Json& b, const std::string& where, int depth) {
  spend(kSchema, where);
  if (impossible(a) || impossible(b)) return true;
  if (a.contains("enum") || b.contains("enum")) {
    const Json& values = a.contains("enum") ? a["enum"] : b["enum"];
    spend(values.size() * (1 + (a.contains("enum") && b.contains("enum") ? b["enum"].size() / 64 : 0)), where);
    return std::none_of(values.begin(), values.end(),
                        [&](const Json& value) { return holds(value, a, where) && holds(value, b, where); });
  }
  const std::vector<std::string> theirs =
      b.contains("type") ? types_of(b, where) : all_types().get<std::vector<std::string>>();
  for (const std::string& type : types_of(a, where)) {
    for (const std::string& other : theirs) {
      const bool numbers = (type == "number" || type == "integer") && (other == "number" || other == "integer");
      if ((type == other || numbers) && !apart_of_type(a, b, type, where, depth)) return false;
    }
  }
  return true;
}

bool SchemaCompiler::apart_of_type(const Json& a, const Json& b, const std::string& type, const std::string& where,
                                   int depth) {
  const auto at_least_of = [&](const char* keyword) {
    return std::max(a.value(keyword, size_t{0}), b.value(keyword, size_t{0}));
  };
  const auto at_most_of = [&](const char* keyword) {
    return std::min(a.value(keyword, SIZE_MAX), b.value(keyword, SIZE_MAX));
  };
  if (type == "string" || type == "number" || type == "integer") {
    Language language;
    if (type == "string") {
      if (at_least_of("minLength") > at_most_of("maxLength")) return true;
      language.must(repeat(chars(complement({})), 0, Expr::kUnlimited));
      narrow_strings(language, a, false, where), narrow_strings(language, b, false, where);
    } else {
      all_numbers(language);
      narrow_numbers(language, a, where), narrow_numbers(language, b, where);
      const auto whole = [&](const Json& schema) {
        const std::vector<std::string> types = types_of(schema, where);
        return schema.contains("type") && std::find(types.begin(), types.end(), "number") == types.end();
      };
      if (whole(a) || whole(b)) multiple_of(language, decimal_of("1"), true, where);
    }
    const size_t states = language.states(where.c_str()).size();
    spend(kSchema + language.size() / 2, where);
    return states == 0;
  }
  if (type == "array") {
    const size_t least = at_least_of("minItems");
    if (least > at_most_of("maxItems")) return true;
    for (size_t i = 0; i < std::min(least, kFirstItems); ++i) {
      if (schemas_apart(item_of(a, i), item_of(b, i), where, depth + 1)) return true;
    }
  }
  if (type != "object") return false;
  if (at_least_of("minProperties") > at_most_of("maxProperties")) return true;
  for (const Json* schema : {&a, &b}) {
    for (const Json& name : schema->value("required", Json::array())) {
      const auto key = name.get<std::string>();
      if (schemas_apart(property_of(a, key, true), property_of(b, key, false), where, depth + 1)) return true;
    }
  }
  return false;
}

}  // namespace qeng::grammar
