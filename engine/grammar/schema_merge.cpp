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
                                      "$id",
                                      "allOf",
                                      "anyOf",
                                      "oneOf",
                                      "not",
                                      "type",
                                      "enum",
                                      "const",
                                      "properties",
                                      "required",
                                      "additionalProperties",
                                      "patternProperties",
                                      "minProperties",
                                      "maxProperties",
                                      "items",
                                      "prefixItems",
                                      "minItems",
                                      "maxItems",
                                      "uniqueItems",
                                      "contains",
                                      "minContains",
                                      "minLength",
                                      "maxLength",
                                      "pattern",
                                      "format",
                                      "minimum",
                                      "maximum",
                                      "exclusiveMinimum",
                                      "exclusiveMaximum",
                                      "multipleOf"};
const std::set<std::string> kLogic = {"$ref", "$id", "allOf", "anyOf", "oneOf", "not"};
const std::set<std::string> kLists = {"pattern", "format", "multipleOf", "contains", "not"};  // in normal form
const std::set<std::string> kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};
const char* const kPropertyKeywords[] = {"properties", "additionalProperties", "patternProperties"};
const std::initializer_list<const char*> kOfObjects = {"properties",        "required",      "additionalProperties",
                                                       "patternProperties", "minProperties", "maxProperties"};
const std::initializer_list<const char*> kOfArrays = {"items",    "prefixItems", "minItems",
                                                      "maxItems", "uniqueItems", "contains"};
const std::initializer_list<const char*> kOfStrings = {"minLength", "maxLength", "pattern", "format"};
const std::initializer_list<const char*> kOfNumbers = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
                                                       "multipleOf"};

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
    return std::any_of(std::begin(kPropertyKeywords), std::end(kPropertyKeywords),
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

// The items of two schemas, place by place.
void merge_items(Json& out, const Json& a, const Json& b) {
  const auto touches = [](const Json& schema) { return schema.contains("items") || schema.contains("prefixItems"); };
  if (!touches(a) || !touches(b)) return;  // copied already
  const auto item = [](const Json& schema, size_t at) {
    if (schema.contains("prefixItems") && at < schema["prefixItems"].size()) return schema["prefixItems"][at];
    return schema.value("items", Json(true));
  };
  const auto places = [](const Json& schema) {
    return schema.contains("prefixItems") ? schema["prefixItems"].size() : 0;
  };
  const size_t most = std::max(places(a), places(b));
  Json prefix = Json::array();
  for (size_t i = 0; i < most; ++i) prefix.push_back(both(item(a, i), item(b, i)));
  if (most > 0) out["prefixItems"] = std::move(prefix);
  if (a.contains("items") || b.contains("items")) out["items"] = both(item(a, most), item(b, most));
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
  if (schema.is_boolean()) return schema == false;
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
      {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains"},
      [](const Json& v) { return v.is_number_integer() && v >= 0 && v <= 1'000'000'000; },
      "a whole number, 0 to 1,000,000,000");
  expect(
      {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}, [](const Json& v) { return v.is_number(); },
      "a number");
  expect(
      {"multipleOf"}, [](const Json& v) { return v.is_number() && v > 0; }, "a number over 0");
  expect(
      {"uniqueItems"}, [](const Json& v) { return v.is_boolean(); }, "true or false");
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
    if (has_any(schema, kOfObjects)) types.push_back("object");
    if (has_any(schema, kOfArrays)) types.push_back("array");
    if (has_any(schema, kOfStrings)) types.push_back("string");
    if (has_any(schema, kOfNumbers)) types.push_back("number");
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

Json normal_form(const Json& schema) {
  Json out = Json::object();
  for (const auto& [keyword, value] : schema.items()) {
    if (is_annotation(keyword) || kLogic.count(keyword) || keyword == "const" || keyword == "minContains") continue;
    if (keyword == "uniqueItems" && value == false) continue;
    if (keyword == "contains") {
      const Json least = schema.value("minContains", Json(1));
      if (least > 0) out[keyword] = Json::array({Json::array({value, least})});
    } else if (kLists.count(keyword) > 0) {
      out[keyword] = Json::array({value});
    } else {
      out[keyword] = value;
    }
  }
  if (schema.contains("const")) {
    const Json only = Json::array({schema["const"]});
    out["enum"] = out.contains("enum") ? common(only, out["enum"]) : only;
  }
  return out;
}

bool impossible(const Json& schema) {
  const auto crossed = [&](const char* least, const char* most) {
    return schema.contains(least) && schema.contains(most) && schema[least] > schema[most];
  };
  if (crossed("minItems", "maxItems") || crossed("minLength", "maxLength") || crossed("minimum", "maximum") ||
      crossed("minProperties", "maxProperties"))
    return true;
  for (const char* list : {"type", "enum"}) {
    if (schema.contains(list) && schema[list].is_array() && schema[list].empty()) return true;
  }
  // A property that has to be there and may not: a value that is no object would be told by its type.
  if (!schema.contains("required") || schema.value("type", Json()) != "object") return false;
  const Json& required = schema["required"];
  return std::any_of(required.begin(), required.end(), [&](const Json& name) {
    const std::string& key = name.get_ref<const std::string&>();
    if (schema.contains("properties") && schema["properties"].contains(key)) return schema["properties"][key] == false;
    return !schema.contains("patternProperties") && schema.value("additionalProperties", Json(true)) == false;
  });
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
      out[keyword] = types.size() == 1 ? types[0] : types;
    } else if (keyword == "enum") {
      out[keyword] = common(ours, theirs);
    } else if (keyword == "required" || kLists.count(keyword) > 0) {
      out[keyword] = united(ours, theirs);
    } else if (keyword == "minItems" || keyword == "minLength" || keyword == "minimum" ||
               keyword == "exclusiveMinimum" || keyword == "minProperties") {
      out[keyword] = std::max(ours, theirs);
    } else if (keyword == "maxItems" || keyword == "maxLength" || keyword == "maximum" ||
               keyword == "exclusiveMaximum" || keyword == "maxProperties") {
      out[keyword] = std::min(ours, theirs);
    }
  }
  merge_items(out, a, b);
  merge_objects(out, a, b, where);
  return out;
}

}  // namespace qeng::grammar
