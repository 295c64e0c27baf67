// Whether a value that a schema lists holds to what stands beside it.
#include <algorithm>
#include <set>

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

const Json& part(const Json& schema, const char* keyword, const Json& otherwise) {
  const auto found = schema.find(keyword);
  return found == schema.end() ? otherwise : *found;
}

size_t length_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}
}  // namespace

bool SchemaCompiler::same(const Json& a, const Json& b, const std::string& where) const {  // members in any order
  if (!a.is_structured() || !b.is_structured()) return a == b;
  if (a.type() != b.type() || a.size() != b.size()) return false;
  spend((size_of(a) + size_of(b)) / 4, where);
  return nlohmann::json(a) == nlohmann::json(b);
}

bool SchemaCompiler::accepts(const Language& language, std::string_view text, const std::string& where) const {
  spend(1 + language.work() / 8, where);
  size_t nodes = 0;
  return language.accepts(text, [&](size_t looked) { spend((nodes += looked) / 8, where), nodes %= 8; });
}

bool SchemaCompiler::text_holds(const std::string& text, const Json& schema, const std::string& where) const {
  spend(text.size() / kText, where);
  const size_t length = length_of(text);
  if (length < schema.value("minLength", size_t{0}) || length > schema.value("maxLength", SIZE_MAX)) return false;
  if (!schema.contains("pattern") && !schema.contains("format")) return true;
  Json rest = {{"pattern", listed(schema, "pattern")}, {"format", listed(schema, "format")}};
  spend(rest.dump().size() / 8, where);
  Language language;
  narrow_strings(language, rest, false, where);
  return accepts(language, text, where);
}

bool SchemaCompiler::holds(const Json& value, const Json& schema, const std::string& where, int depth) const {
  static const Json any = true, none = Json::array(), no_members = Json::object();
  spend(2, where);
  if (depth > 0) check_keywords(schema, where);  // the first is in normal form
  if (schema.is_boolean()) return schema.get<bool>();
  if (depth > kMostDepth)
    fail("unsupported", where, ": a listed value beside schemas nested over ", kMostDepth, " deep");
  const Json &required = part(schema, "required", none), &properties = part(schema, "properties", no_members);
  const size_t names = value.is_object() ? value.size() * (required.size() + properties.size()) : required.size();
  spend((names + part(schema, "enum", none).size() + part(schema, "type", none).size()) / 64, where);
  const auto each = [&](const Json& schemas) {
    return std::count_if(schemas.begin(), schemas.end(),
                         [&](const Json& s) { return holds(value, s, where, depth + 1); });
  };
  if (schema.contains("$ref") && !holds(value, target(schema["$ref"].get<std::string>(), where), where, depth + 1))
    return false;
  if (schema.contains("allOf") && each(schema["allOf"]) != static_cast<int64_t>(schema["allOf"].size())) return false;
  if (schema.contains("anyOf") && each(schema["anyOf"]) == 0) return false;
  if (schema.contains("oneOf") && each(schema["oneOf"]) != 1) return false;
  const Json& forbidden = part(schema, "not", none);
  if (forbidden.is_array() ? each(forbidden) > 0 : holds(value, forbidden, where, depth + 1)) return false;
  if (schema.contains("type")) {
    const std::vector<std::string> types = types_of(schema, where);
    if (std::none_of(types.begin(), types.end(), [&](const std::string& type) { return is_of_type(value, type); }))
      return false;
  }
  if (schema.contains("const") && !same(value, schema["const"], where)) return false;
  if (schema.contains("enum")) {
    const Json& values = schema["enum"];
    if (std::none_of(values.begin(), values.end(), [&](const Json& other) { return same(value, other, where); }))
      return false;
  }
  if (value.is_string()) return text_holds(value.get_ref<const std::string&>(), schema, where);
  if (value.is_number()) {
    Json rest = {{"multipleOf", listed(schema, "multipleOf")}};
    for (const char* bound : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      if (schema.contains(bound)) rest[bound] = schema[bound];
    }
    if (rest.size() == 1 && rest["multipleOf"].empty()) return true;
    Language language;
    narrow_numbers(language, rest, where);
    return accepts(language, decimal_of(value.dump()).text(), where);
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", size_t{0}) || value.size() > schema.value("maxItems", SIZE_MAX))
      return false;
    const Json &prefix = part(schema, "prefixItems", none), &items = part(schema, "items", any);
    std::set<nlohmann::json> known;  // whose members are in order, so that equal ones are
    for (size_t i = 0; i < value.size(); ++i) {
      if (!holds(value[i], i < prefix.size() ? prefix[i] : items, where, depth + 1)) return false;
      if (!schema.value("uniqueItems", false)) continue;
      spend(size_of(value[i]), where);
      if (!known.insert(nlohmann::json(value[i])).second) return false;
    }
    const auto enough = [&](const Json& wanted, int64_t least) {
      const auto fits = [&](const Json& item) { return holds(item, wanted, where, depth + 1); };
      return std::count_if(value.begin(), value.end(), fits) >= least;
    };
    const Json& contained = part(schema, "contains", none);
    if (!contained.is_array()) return enough(contained, schema.value("minContains", int64_t{1}));
    return std::all_of(contained.begin(), contained.end(),
                       [&](const Json& wanted) { return enough(wanted[0], wanted[1].get<int64_t>()); });
  }
  if (!value.is_object()) return true;
  if (value.size() < schema.value("minProperties", size_t{0}) || value.size() > schema.value("maxProperties", SIZE_MAX))
    return false;
  for (const Json& name : required) {
    if (!value.contains(name.get<std::string>())) return false;
  }
  const Json& patterns = part(schema, "patternProperties", no_members);
  for (const auto& [name, member] : value.items()) {
    const auto found = properties.find(name);
    bool named = found != properties.end();
    if (named && !holds(member, *found, where, depth + 1)) return false;
    for (const auto& [pattern, of_pattern] : patterns.items()) {
      if (!text_holds(name, {{"pattern", pattern}}, where)) continue;
      named = true;
      if (!holds(member, of_pattern, where, depth + 1)) return false;
    }
    if (!named && !holds(member, part(schema, "additionalProperties", any), where, depth + 1)) return false;
  }
  return true;
}

}  // namespace qeng::grammar
