#include "engine/grammar/schema_merge.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "kernels/error.h"

namespace qeng::grammar {
namespace {
const std::set<std::string> kAnnotations = {"title",     "description", "default",    "examples",
                                            "$schema",   "$comment",    "deprecated", "readOnly",
                                            "writeOnly", "$defs",       "definitions"};
const std::set<std::string> kKnown = {"$ref",
                                      "allOf",
                                      "anyOf",
                                      "oneOf",
                                      "type",
                                      "enum",
                                      "const",
                                      "properties",
                                      "required",
                                      "additionalProperties",
                                      "patternProperties",
                                      "items",
                                      "prefixItems",
                                      "minItems",
                                      "maxItems",
                                      "minLength",
                                      "maxLength",
                                      "pattern",
                                      "format",
                                      "minimum",
                                      "maximum",
                                      "exclusiveMinimum",
                                      "exclusiveMaximum",
                                      "$id"};
const std::set<std::string> kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};
const char* const kObjectKeywords[] = {"properties", "required", "additionalProperties", "patternProperties"};

bool has_any(const Json& schema, std::initializer_list<const char*> keywords) {
  return std::any_of(keywords.begin(), keywords.end(), [&](const char* keyword) { return schema.contains(keyword); });
}

Json both(const Json& a, const Json& b) {
  if (a == b || b == true) return a;
  return a == true ? b : Json{{"allOf", Json::array({a, b})}};
}

// The members of an object by name: looking one up in ordered_json goes through them all.
class Index {
 public:
  explicit Index(const Json& object) {
    for (const auto& [name, value] : object.items()) members_.emplace(name, &value);
  }
  const Json* find(const std::string& name) const {
    const auto found = members_.find(name);
    return found == members_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<std::string, const Json*> members_;
};

[[noreturn]] void no_common(const std::string& keyword, const std::string& where) {
  fail("unsupported", where, ": ", keyword,
       " on two sides that hold together is not supported; write one schema instead");
}

// The properties of two schemas: where one side does not name a property, its additionalProperties speak of it.
void merge_objects(Json& out, const Json& a, const Json& b, const std::string& where) {
  const auto touches = [](const Json& schema) {
    return std::any_of(std::begin(kObjectKeywords), std::end(kObjectKeywords),
                       [&](const char* k) { return schema.contains(k); });
  };
  if (!touches(a) || !touches(b)) return;  // copied already
  if (a.contains("patternProperties") || b.contains("patternProperties")) no_common("patternProperties", where);
  const Json none = Json::object();
  const Json &pa = a.contains("properties") ? a["properties"] : none,
             &pb = b.contains("properties") ? b["properties"] : none;
  const Json rest_a = a.contains("additionalProperties") ? a["additionalProperties"] : Json(true);
  const Json rest_b = b.contains("additionalProperties") ? b["additionalProperties"] : Json(true);
  const Index in_a(pa), in_b(pb);
  Json::object_t properties;  // names differ, so they need no looking up
  for (const auto& [name, schema] : pa.items()) {
    const Json* theirs = in_b.find(name);
    properties.emplace_back(name, both(schema, theirs ? *theirs : rest_b));
  }
  for (const auto& [name, schema] : pb.items()) {
    if (!in_a.find(name)) properties.emplace_back(name, both(schema, rest_a));
  }
  if (a.contains("properties") || b.contains("properties")) out["properties"] = std::move(properties);
  if (a.contains("additionalProperties") || b.contains("additionalProperties"))
    out["additionalProperties"] = both(rest_a, rest_b);
}

// Of two lists, the values of a that are in b, or those of a and then those of b that are not in a.
Json common(const Json& a, const Json& b) {
  const std::set<Json> theirs(b.begin(), b.end());
  Json out = Json::array();
  for (const Json& value : a) {
    if (theirs.count(value)) out.push_back(value);
  }
  return out;
}

Json united(const Json& a, const Json& b) {
  std::set<Json> known(a.begin(), a.end());
  Json out = a;
  for (const Json& value : b) {
    if (known.insert(value).second) out.push_back(value);
  }
  return out;
}
}  // namespace

bool is_annotation(const std::string& keyword) { return kAnnotations.count(keyword) > 0; }

bool has_assertions(const Json& schema) {
  for (const auto& [keyword, value] : schema.items()) {
    if (!is_annotation(keyword) && keyword != "$id") return true;
  }
  return false;
}

void check_keywords(const Json& schema, const std::string& where) {
  if (schema.is_boolean()) return;
  if (!schema.is_object()) fail("format", where, ": ", schema.type_name(), ", expected an object, true or false");
  for (const auto& [keyword, value] : schema.items()) {
    if (is_annotation(keyword) || kKnown.count(keyword)) continue;
    if (keyword == "uniqueItems" && value == false) continue;
    const char* advice = keyword == "nullable" ? "; use \"type\": [..., \"null\"]" : "";
    fail("unsupported", where, ": keyword ", keyword, " is not supported", advice);
  }
  if (schema.contains("$id") && where != "schema at #")
    fail("unsupported", where, ": $id below the top is not supported");
  const auto expect = [&](std::initializer_list<const char*> keywords, bool (*good)(const Json&), const char* what) {
    for (const char* keyword : keywords) {
      if (schema.contains(keyword) && !good(schema[keyword])) fail("format", where, ": ", keyword, " has to be ", what);
    }
  };
  expect(
      {"properties", "patternProperties"}, [](const Json& v) { return v.is_object(); }, "an object of schemas");
  expect(
      {"allOf", "anyOf", "oneOf"}, [](const Json& v) { return v.is_array() && !v.empty(); },
      "a list of schemas, at least one");
  expect(
      {"prefixItems"}, [](const Json& v) { return v.is_array(); }, "a list of schemas");
  expect(
      {"enum"}, [](const Json& v) { return v.is_array(); }, "a list of values");
  expect(
      {"$ref", "pattern", "format"}, [](const Json& v) { return v.is_string(); }, "a string");
  expect(
      {"minItems", "maxItems", "minLength", "maxLength"},
      [](const Json& v) { return v.is_number_integer() && v >= 0 && v <= 1'000'000'000; },
      "a whole number, 0 to 1,000,000,000");
  expect(
      {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}, [](const Json& v) { return v.is_number(); },
      "a number");
  expect(
      {"required"},
      [](const Json& v) {
        return v.is_array() && std::all_of(v.begin(), v.end(), [](const Json& name) { return name.is_string(); });
      },
      "a list of names");
  expect(
      {"items"}, [](const Json& v) { return !v.is_array(); }, "one schema (lists of them are prefixItems)");
}

std::vector<std::string> types_of(const Json& schema, const std::string& where) {
  std::vector<std::string> types;
  if (!schema.contains("type")) {
    if (has_any(schema, {"properties", "required", "additionalProperties", "patternProperties"}))
      types.push_back("object");
    if (has_any(schema, {"items", "prefixItems", "minItems", "maxItems"})) types.push_back("array");
    if (has_any(schema, {"minLength", "maxLength", "pattern", "format"})) types.push_back("string");
    if (has_any(schema, {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})) types.push_back("number");
    return types.empty() ? std::vector<std::string>{"object", "array", "string", "number", "boolean", "null"} : types;
  }
  const Json& given = schema["type"];
  for (const Json& type : given.is_array() ? given : Json::array({given})) {
    if (!type.is_string() || !kTypes.count(type.get<std::string>())) {
      fail("format", where, ": type ", type.dump(),
           " is none of object, array, string, number, integer, boolean, null");
    }
    types.push_back(type.get<std::string>());
  }
  const auto has = [&](const char* type) { return std::find(types.begin(), types.end(), type) != types.end(); };
  if (has("number")) std::erase(types, "integer");
  return types;
}

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  return value.is_number_integer() || (value.is_number() && value.get<double>() == std::floor(value.get<double>()));
}

bool keeps_enumerated(const Json& value, const Json& schema, const std::string& where) {
  if (schema.contains("type")) {
    const std::vector<std::string> types = types_of(schema, where);
    if (std::none_of(types.begin(), types.end(), [&](const std::string& type) { return is_of_type(value, type); }))
      return false;
  }
  const auto refuse = [&](std::initializer_list<const char*> keywords) {
    for (const char* keyword : keywords) {
      if (schema.contains(keyword))
        fail("unsupported", where, ": ", keyword,
             " beside enum or const is not supported; leave out the values it forbids");
    }
  };
  if (value.is_object()) refuse({"properties", "required", "additionalProperties", "patternProperties"});
  if (value.is_array()) refuse({"items", "prefixItems", "minItems", "maxItems"});
  if (value.is_string()) {
    refuse({"pattern", "format"});
    const std::string& text = value.get_ref<const std::string&>();
    const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
    return length >= schema.value("minLength", int64_t{0}) && length <= schema.value("maxLength", INT64_MAX);
  }
  if (!value.is_number()) return true;
  const auto holds = [&](const char* keyword, bool (*good)(double, double)) {
    return !schema.contains(keyword) || good(value.get<double>(), schema[keyword].get<double>());
  };
  return holds("minimum", [](double x, double edge) { return x >= edge; }) &&
         holds("maximum", [](double x, double edge) { return x <= edge; }) &&
         holds("exclusiveMinimum", [](double x, double edge) { return x > edge; }) &&
         holds("exclusiveMaximum", [](double x, double edge) { return x < edge; });
}

Json merge(const Json& a, const Json& b, const std::string& where) {
  if (a == false || b == false) return false;
  if (a == true) return b;
  if (b == true) return a;
  Json out = a;
  for (const auto& [keyword, theirs] : b.items()) {
    if (is_annotation(keyword) || keyword == "$id") continue;
    if (!out.contains(keyword)) {
      out[keyword] = theirs;
      continue;
    }
    const Json ours = out[keyword];
    if (ours == theirs && keyword != "properties") continue;
    if (keyword == "type") {
      Json types = Json::array();
      const std::vector<std::string> mine = types_of(a, where), yours = types_of(b, where);
      for (const std::string& type : mine) {
        for (const std::string& other : yours) {
          if (type == other || (type == "integer" && other == "number"))
            types.push_back(type);
          else if (type == "number" && other == "integer")
            types.push_back(other);
        }
      }
      out[keyword] = types;
    } else if (keyword == "enum") {
      out[keyword] = common(ours, theirs);
    } else if (keyword == "const") {
      return false;  // they differ
    } else if (keyword == "required") {
      out[keyword] = united(ours, theirs);
    } else if (keyword == "minItems" || keyword == "minLength" || keyword == "minimum" ||
               keyword == "exclusiveMinimum") {
      out[keyword] = std::max(ours, theirs);
    } else if (keyword == "maxItems" || keyword == "maxLength" || keyword == "maximum" ||
               keyword == "exclusiveMaximum") {
      out[keyword] = std::min(ours, theirs);
    } else if (keyword == "items" && !has_any(a, {"prefixItems"}) && !has_any(b, {"prefixItems"})) {
      out[keyword] = both(ours, theirs);
    } else if (keyword != "properties" && keyword != "additionalProperties" && keyword != "patternProperties") {
      no_common(keyword, where);
    }
  }
  if (has_any(a, {"prefixItems"}) != has_any(b, {"prefixItems"}) && has_any(a, {"items"}) + has_any(b, {"items"}) > 0) {
    const bool same_side = has_any(a, {"prefixItems"}) ? !has_any(b, {"items"}) : !has_any(a, {"items"});
    if (!same_side) no_common("prefixItems beside items", where);
  }
  merge_objects(out, a, b, where);
  return out;
}

}  // namespace qeng::grammar
