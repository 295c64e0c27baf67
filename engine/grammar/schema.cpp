#include "engine/grammar/schema.h"

#include <algorithm>
#include <cmath>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/json_rules.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema_compiler.h"
#include "engine/grammar/schema_number.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int kMaxNesting = 100;  // of JSON values in a schema, and of references to references
constexpr int kMaxDepth = 100;    // of values in the output, in rules: JSON readers stop at 128 or more
// Values copied, a second or so of them: each is once for each schema around it, and alternatives of alternatives and
// merges multiply. As much work as one are so many bytes of text; a schema by itself is as much as kSchema of them.
constexpr size_t kMaxWork = 2'000'000, kText = 64, kSchema = 20;
constexpr size_t kMaxCompared = 10'000'000;  // names while parsing, 0.1 s: ordered_json compares each with those before

struct Nesting {  // counts the calls that are under way
  explicit Nesting(int& calls) : depth(calls) { ++depth; }
  ~Nesting() { --depth; }
  int& depth;
};

// "a%20b" as "a b"; what is not an escape stays.
std::string unescaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto hex = [&](size_t at) {
      return at < text.size()
                 ? std::string("0123456789abcdef").find(static_cast<char>(std::tolower(static_cast<uint8_t>(text[at]))))
                 : std::string::npos;
    };
    if (text[i] == '%' && hex(i + 1) != std::string::npos && hex(i + 2) != std::string::npos) {
      out += static_cast<char>(hex(i + 1) * 16 + hex(i + 2)), i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

Json parsed(std::string_view text) {
  if (text.size() > kMaxText) fail("format", "schema: ", text.size(), " bytes, at most ", kMaxText, " are read");
  try {
    std::vector<size_t> members;  // so far, of each object around
    size_t compared = 0;
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json&) {
      if (depth > kMaxNesting) fail("format", "schema: nested more than ", kMaxNesting, " levels deep");
      if (event == Json::parse_event_t::object_start) members.push_back(0);
      if (event == Json::parse_event_t::object_end) members.pop_back();
      if (event == Json::parse_event_t::key) compared += members.back()++;
      if (compared > kMaxCompared) fail("format", "schema: its objects have too many members; one may have 4,000");
      return true;
    });
  } catch (const nlohmann::json::exception& error) {
    const std::string message = error.what();
    const size_t at = message.find("] ");
    fail("format", "schema: ", at == std::string::npos ? message : message.substr(at + 2));
  }
}

// The work of copying it.
size_t size_of(const Json& json) {
  size_t size = 1;
  if (json.is_string()) size += json.get_ref<const std::string&>().size() / kText;
  if (json.is_array())
    for (const Json& item : json) size += size_of(item);
  if (json.is_object())
    for (const auto& [name, value] : json.items()) size += name.size() / kText + size_of(value);
  return size;
}
}  // namespace

SchemaCompiler::SchemaCompiler(const Json& root) : root_(root), rules_(parse_gbnf(kJsonRules)) {
  for (uint32_t i = 0; i < rules_.rules.size(); ++i) json_rules_[rules_.rules[i].name] = i;
  rules_.max_depth = kMaxDepth;
}

Rules SchemaCompiler::compile() {
  rules_.root = reference("#", "schema");
  while (!waiting_.empty()) {
    const std::string next = waiting_.back();
    waiting_.pop_back();
    Expr body = value(target(next, "schema at " + next), "schema at " + next);
    rules_.rules[references_.at(next)].body = std::move(body);
  }
  return std::move(rules_);
}

uint32_t SchemaCompiler::add(const std::string& name, Expr body) {
  rules_.rules.push_back({name, std::move(body)});
  return static_cast<uint32_t>(rules_.rules.size() - 1);
}

const Json& SchemaCompiler::target(const std::string& reference, const std::string& where) const {
  if (reference == "#") return root_;
  if (!reference.starts_with("#/")) {
    fail("unsupported", where, ": $ref ", reference, " leaves the schema; only #/... is supported");
  }
  try {
    return root_.at(Json::json_pointer(unescaped(reference.substr(1))));
  } catch (const nlohmann::json::exception&) {
    fail("format", where, ": $ref ", reference, " leads nowhere");
  }
}

uint32_t SchemaCompiler::reference(const std::string& reference, const std::string& where) {
  const auto [found, fresh] = references_.try_emplace(reference, 0);
  if (fresh) {
    target(reference, where);
    found->second = add("schema at " + reference, empty());
    waiting_.push_back(reference);
  }
  return found->second;
}

void SchemaCompiler::spend(size_t work, const std::string& where) {
  work_ += work;
  if (work_ > kMaxWork)
    fail("format", where.substr(0, 200), ": the schema takes too much work; write shared parts as $ref alone");
}

Json SchemaCompiler::merged(const Json& a, const Json& b, const std::string& where) {
  spend(size_of(a) + size_of(b), where);
  return merge(a, b, where);
}

Json SchemaCompiler::expanded(const Json& schema, const std::string& where, int depth) {
  if (depth > kMaxNesting) fail("format", where, ": $ref and allOf lead from schema to schema without an end");
  spend(size_of(schema), where);
  check_keywords(schema, where);
  if (!schema.is_object() || (!schema.contains("$ref") && !schema.contains("allOf"))) return schema;
  Json rest = schema, whole = true;
  rest.erase("$ref");
  rest.erase("allOf");
  const auto join = [&](const Json& part) { whole = merged(whole, expanded(part, where, depth + 1), where); };
  if (schema.contains("$ref")) join(target(schema["$ref"].get<std::string>(), where));
  for (const Json& part : schema.contains("allOf") ? schema["allOf"] : Json::array()) join(part);
  return has_assertions(rest) ? merged(whole, rest, where) : whole;
}

Expr SchemaCompiler::value(const Json& given, const std::string& where) {
  spend(kSchema + where.size() / kText, where);
  const Nesting nesting(nesting_);
  if (nesting_ > kMaxNesting) {
    fail("format", where.substr(0, 200), ": nested more than ", kMaxNesting,
         " deep; a schema that holds itself has to do so by $ref alone, without keywords beside it");
  }
  check_keywords(given, where);
  if (given == true) return json("value");
  if (given == false) return nothing();
  if (given.contains("$ref")) {
    Json rest = given;
    rest.erase("$ref");
    if (!has_assertions(rest)) return rule(reference(given["$ref"].get<std::string>(), where));
  }
  const Json schema = expanded(given, where, 0);
  if (schema.is_boolean()) return schema == true ? json("value") : nothing();
  check_keywords(schema, where);
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!schema.contains(keyword)) continue;
    Json rest = schema;
    rest.erase(keyword);
    const bool alone = !has_assertions(rest);
    std::vector<Expr> all;
    for (size_t i = 0; i < schema[keyword].size(); ++i) {
      const std::string branch = where + "/" + keyword + "/" + std::to_string(i);
      const Json& part = schema[keyword][i];
      all.push_back(value(alone ? part : merged(rest, expanded(part, branch, 0), branch), branch));
    }
    return choice(std::move(all));
  }
  if (schema.contains("enum") || schema.contains("const")) return enumerated(schema, where);
  std::vector<Expr> all;
  for (const std::string& type : types_of(schema, where)) all.push_back(typed(schema, type, where));
  return choice(std::move(all));
}

Expr SchemaCompiler::enumerated(const Json& schema, const std::string& where) {
  std::vector<Expr> all;
  for (const Json& value : schema.contains("enum") ? schema["enum"] : Json::array({schema["const"]})) {
    if (schema.contains("const") && value != schema["const"]) continue;
    if (keeps_enumerated(value, schema, where)) all.push_back(literal(value.dump()));
  }
  return choice(std::move(all));
}

Expr SchemaCompiler::typed(const Json& schema, const std::string& type, const std::string& where) {
  if (type == "object") return object(schema, where);
  if (type == "array") return array(schema, where);
  if (type == "string") return string(schema, where);
  if (type == "number" || type == "integer") return number(schema, type == "integer", where);
  return type == "boolean" ? json("boolean") : literal("null");
}

Expr SchemaCompiler::string(const Json& schema, const std::string& where) {
  const bool lengths = schema.contains("minLength") || schema.contains("maxLength");
  if (schema.contains("pattern") + schema.contains("format") + lengths > 1) {
    fail("unsupported", where, ": of pattern, format and minLength or maxLength only one at a time is supported");
  }
  std::vector<Expr> parts;
  parts.push_back(literal("\""));
  if (schema.contains("pattern")) {
    parts.push_back(
        pattern_expr(schema["pattern"].get<std::string>(), repeat(json("char"), 0, Expr::kUnlimited), where));
  } else if (schema.contains("format")) {
    const std::string format = schema["format"].get<std::string>();
    if (format != "date" && format != "time" && format != "date-time" && format != "uuid") {
      fail("unsupported", where, ": format ", format,
           " is not supported; there are date, time, date-time and uuid, and pattern");
    }
    parts.push_back(json(format.c_str()));
  } else {
    const int min = schema.value("minLength", 0), max = schema.value("maxLength", Expr::kUnlimited);
    if (max != Expr::kUnlimited && max < min) return nothing();
    parts.push_back(repeat(json("char"), min, max));
  }
  parts.push_back(literal("\""));
  return sequence(std::move(parts));
}

Expr SchemaCompiler::number(const Json& schema, bool integer, const std::string& where) {
  double low = -static_cast<double>(kMostInteger), high = -low;
  bool open_low = false, open_high = false, bounded = false;
  const auto bound = [&](const char* keyword, bool lower, bool open) {
    if (!schema.contains(keyword)) return;
    const double given = schema[keyword].get<double>();
    double& edge = lower ? low : high;
    bool& edge_open = lower ? open_low : open_high;
    bounded = true;
    if (!integer && given != std::floor(given)) {
      fail("unsupported", where, ": ", keyword, " ", schema[keyword].dump(),
           " of a number is not supported; whole bounds are, or type integer");
    }
    if (lower ? given > edge || (given == edge && open) : given < edge || (given == edge && open))
      edge = given, edge_open = open;
  };
  bound("minimum", true, false), bound("exclusiveMinimum", true, true);
  bound("maximum", false, false), bound("exclusiveMaximum", false, true);
  if (!bounded) return json(integer ? "integer" : "number");
  const double most = static_cast<double>(kMostInteger);
  if (low > most || high < -most) {
    fail("unsupported", where, ": bounds beyond ", kMostInteger,
         " are not supported: numbers here have at most 15 digits");
  }
  if (!integer) return decimals(static_cast<int64_t>(low), open_low, static_cast<int64_t>(high), open_high);
  const auto first = static_cast<int64_t>(std::ceil(low)), last = static_cast<int64_t>(std::floor(high));
  return integers(first + (open_low && static_cast<double>(first) == low),
                  last - (open_high && static_cast<double>(last) == high));
}

Rules schema_rules(std::string_view json) {
  const Json root = parsed(json);
  return SchemaCompiler(root).compile();
}

}  // namespace qeng::grammar
