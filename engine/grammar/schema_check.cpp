// Whether a value that a schema lists holds to what stands beside it.
#include <algorithm>

#include "engine/grammar/schema_compiler.h"
#include "engine/grammar/schema_number.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int kMostDepth = 60;  // of schemas in schemas

Json listed(const Json& schema, const char* keyword) {
  if (!schema.contains(keyword)) return Json::array();
  return schema[keyword].is_array() ? schema[keyword] : Json::array({schema[keyword]});
}

bool same(const Json& a, const Json& b) {  // members in any order
  return a.is_structured() && b.is_structured() ? nlohmann::json(a) == nlohmann::json(b) : a == b;
}

size_t length_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}
}  // namespace

bool SchemaCompiler::text_holds(const std::string& text, const Json& schema, const std::string& where) const {
  const size_t length = length_of(text);
  if (length < schema.value("minLength", size_t{0}) || length > schema.value("maxLength", SIZE_MAX)) return false;
  if (!schema.contains("pattern") && !schema.contains("format")) return true;
  Json rest = {{"pattern", listed(schema, "pattern")}, {"format", listed(schema, "format")}};
  Language language;
  narrow_strings(language, rest, false, where);
  return language.accepts(text);
}

bool SchemaCompiler::holds(const Json& value, const Json& schema, const std::string& where, int depth) const {
  if (depth > 0) check_keywords(schema, where);  // the first is in normal form
  if (schema.is_boolean()) return schema.get<bool>();
  if (depth > kMostDepth)
    fail("unsupported", where, ": a listed value beside schemas nested over ", kMostDepth, " deep");
  const auto each = [&](const Json& schemas) {
    return std::count_if(schemas.begin(), schemas.end(),
                         [&](const Json& s) { return holds(value, s, where, depth + 1); });
  };
  if (schema.contains("$ref") && !holds(value, target(schema["$ref"].get<std::string>(), where), where, depth + 1))
    return false;
  if (schema.contains("allOf") && each(schema["allOf"]) != static_cast<int64_t>(schema["allOf"].size())) return false;
  if (schema.contains("anyOf") && each(schema["anyOf"]) == 0) return false;
  if (schema.contains("oneOf") && each(schema["oneOf"]) != 1) return false;
  if (each(listed(schema, "not")) > 0) return false;
  if (schema.contains("type")) {
    const std::vector<std::string> types = types_of(schema, where);
    if (std::none_of(types.begin(), types.end(), [&](const std::string& type) { return is_of_type(value, type); }))
      return false;
  }
  if (schema.contains("const") && !same(value, schema["const"])) return false;
  if (schema.contains("enum")) {
    const Json& values = schema["enum"];
    if (std::none_of(values.begin(), values.end(), [&](const Json& other) { return same(value, other); })) return false;
  }
  if (value.is_string()) return text_holds(value.get<std::string>(), schema, where);
  if (value.is_number()) {
    Json rest = {{"multipleOf", listed(schema, "multipleOf")}};
    for (const char* bound : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      if (schema.contains(bound)) rest[bound] = schema[bound];
    }
    if (rest.size() == 1 && rest["multipleOf"].empty()) return true;
    Language language;
    narrow_numbers(language, rest, where);
    return language.accepts(decimal_of(value.dump()).text());
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", size_t{0}) || value.size() > schema.value("maxItems", SIZE_MAX))
      return false;
    const Json prefix = schema.value("prefixItems", Json::array()), items = schema.value("items", Json(true));
    for (size_t i = 0; i < value.size(); ++i) {
      if (!holds(value[i], i < prefix.size() ? prefix[i] : items, where, depth + 1)) return false;
      if (!schema.value("uniqueItems", false)) continue;
      for (size_t j = 0; j < i; ++j) {
        if (same(value[i], value[j])) return false;
      }
    }
    Json contained = schema.value("contains", Json::array());
    if (!contained.is_array()) contained = Json::array({Json::array({contained, schema.value("minContains", 1)})});
    return std::all_of(contained.begin(), contained.end(), [&](const Json& wanted) {
      const auto found = std::count_if(value.begin(), value.end(),
                                       [&](const Json& item) { return holds(item, wanted[0], where, depth + 1); });
      return found >= wanted[1].get<int64_t>();
    });
  }
  if (!value.is_object()) return true;
  if (value.size() < schema.value("minProperties", size_t{0}) || value.size() > schema.value("maxProperties", SIZE_MAX))
    return false;
  for (const Json& name : schema.value("required", Json::array())) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const Json patterns = schema.value("patternProperties", Json::object());
  for (const auto& [name, member] : value.items()) {
    bool named = schema.contains("properties") && schema["properties"].contains(name);
    if (named && !holds(member, schema["properties"][name], where, depth + 1)) return false;
    for (const auto& [pattern, of_pattern] : patterns.items()) {
      if (!text_holds(name, {{"pattern", pattern}}, where)) continue;
      named = true;
      if (!holds(member, of_pattern, where, depth + 1)) return false;
    }
    if (!named && !holds(member, schema.value("additionalProperties", Json(true)), where, depth + 1)) return false;
  }
  return true;
}

}  // namespace qeng::grammar
