#include "engine/grammar/schema.h"

#include "engine/grammar/gbnf.h"
#include "engine/grammar/json_rules.h"
#include "engine/grammar/schema_compiler.h"
#include "kernels/error.h"

namespace qeng::grammar {
namespace {
constexpr int kMaxDepth = 100;  // of values in the output, in rules: JSON readers stop at 128 or more
// Values copied, a second or so of them: each is once for each schema around it, and alternatives of alternatives and
// merges multiply. As much work as one are kText bytes of text; a schema by itself is as much as kSchema of them.
constexpr size_t kMaxWork = 2'000'000;
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

}  // namespace

size_t size_of(const Json& json) {
  size_t size = 1;
  if (json.is_string()) size += json.get_ref<const std::string&>().size() / kText;
  if (json.is_array())
    for (const Json& item : json) size += size_of(item);
  if (json.is_object())
    for (const auto& [name, value] : json.items()) size += name.size() / kText + size_of(value);
  return size;
}

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
  if (const auto known = targets_.find(reference); known != targets_.end()) return *known->second;
  if (!reference.starts_with("#/")) {
    fail("unsupported", where, ": $ref ", reference, " leaves the schema; only #/... is supported");
  }
  try {
    return *(targets_[reference] = &root_.at(Json::json_pointer(unescaped(reference.substr(1)))));
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

void SchemaCompiler::spend(size_t work, const std::string& where) const {
  work_ += work;
  if (work_ > kMaxWork)
    fail("format", where.substr(0, 200), ": the schema takes too much work; write shared parts as $ref alone");
}

Expr SchemaCompiler::value(const Json& schema, const std::string& where) {
  spend(kSchema + where.size() / kText, where);
  const Nesting nesting(nesting_);
  if (nesting_ > kMaxNesting) {
    fail("format", where.substr(0, 200), ": nested more than ", kMaxNesting,
         " deep; a schema that holds itself has to do so by $ref alone, without keywords beside it");
  }
  check_keywords(schema, where);
  if (schema == true) return json("value");
  if (schema == false) return nothing();
  const auto alone = [&](const char* keyword) {
    if (!schema.contains(keyword)) return false;
    Json rest = schema;
    rest.erase(keyword);
    return !has_assertions(rest);
  };
  if (alone("$ref")) return rule(reference(schema["$ref"].get<std::string>(), where));
  std::vector<Expr> all;
  if (!schema.contains("allOf") && !schema.contains("not") && !schema.contains("$ref") && !schema.contains("anyOf") &&
      !schema.contains("oneOf"))
    return plain(normal_form(schema), where);
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (!alone(keyword) || (keyword == std::string("oneOf") && !all_apart(schema[keyword], where))) continue;
    for (size_t i = 0; i < schema[keyword].size(); ++i)
      all.push_back(value(schema[keyword][i], where + "/" + keyword + "/" + std::to_string(i)));
    return choice(std::move(all));
  }
  // By its text, so that what does not hold to a schema that holds itself comes to an end.
  spend(size_of(schema), where);
  const auto [found, fresh] = joined_.try_emplace(schema.dump(), 0);
  if (!fresh) return rule(found->second);
  const uint32_t own = add(where, empty());
  found->second = own;
  for (const Alternative& way : alternatives(schema, where, 0, false)) all.push_back(plain(way.schema, way.where));
  rules_.rules[own].body = choice(std::move(all));
  return rule(own);
}

Expr SchemaCompiler::plain(const Json& schema, const std::string& where) {
  if (schema.empty()) return json("value");
  if (schema.contains("enum")) return enumerated(schema, where);
  std::vector<Expr> all;
  for (const std::string& type : types_of(schema, where)) all.push_back(typed(schema, type, where));
  return choice(std::move(all));
}

Expr SchemaCompiler::enumerated(const Json& schema, const std::string& where) {
  std::vector<Expr> all;
  Json rest = schema;
  rest.erase("enum");
  for (const Json& value : schema["enum"]) {
    spend(size_of(value), where);
    if (holds(value, rest, where)) all.push_back(literal(value.dump()));
  }
  return choice(std::move(all));
}

Expr SchemaCompiler::typed(const Json& schema, const std::string& type, const std::string& where) {
  if (type == "string") return string(schema, where);
  if (type == "number" || type == "integer") return number(schema, type == "integer", where);
  std::vector<Expr> all;
  for (const Json& forbidden : schema.value("not", Json::array())) {
    if (type == "boolean" || type == "null" || !forbidden.contains("enum")) continue;
    for (const Json& value : forbidden["enum"]) {
      Json rest = schema;
      rest.erase("not");
      if (is_of_type(value, type) && holds(value, rest, where))
        fail("unsupported", where, ": not of the ", type, " ", value.dump(), " is not supported");
    }
  }
  if (type == "object") return object(schema, where);
  if (type == "array") return array(schema, where);
  for (const Json& value : type == "null" ? Json::array({nullptr}) : Json::array({true, false})) {
    if (holds(value, schema, where)) all.push_back(literal(value.dump()));
  }
  return choice(std::move(all));
}

Rules schema_rules(std::string_view json) {
  const Json root = parsed(json);
  return SchemaCompiler(root).compile();
}

}  // namespace qeng::grammar
