// What a schema says, apart from what it means: known keywords, and two schemas as the one that holds where both do.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

namespace qeng::grammar {

using Json = nlohmann::ordered_json;

// Error("unsupported") for a keyword that is not known, or is known and has no rules, at where ("schema at
// #/properties/a"); Error("format") for a schema that is neither an object nor true or false.
void check_keywords(const Json& schema, const std::string& where);

bool is_annotation(const std::string& keyword);
bool has_assertions(const Json& schema);  // anything but annotations and definitions

// "object", "array", "string", "number", "integer", "boolean", "null"; integer beside number is left out.
std::vector<std::string> types_of(const Json& schema, const std::string& where);
bool is_of_type(const Json& value, const std::string& type);

// A schema as it is worked on: without annotations and what joins schemas ($ref, allOf, anyOf, oneOf, not); const is an
// enum of one; pattern, format and multipleOf are lists that all hold, contains a list of [schema, how many at least].
// Beside these, "not" may come to be a list of what does not hold, each of one keyword: enum, pattern, format,
// multipleOf, or "type": "integer".
Json normal_form(const Json& schema);

// Is it seen at a glance that nothing holds to it?
bool impossible(const Json& schema);

// Two in normal form as one; what follows inside (of a property that both describe) becomes an allOf.
// Error("unsupported") where the two have no common form here, as patternProperties on both sides.
Json merge(const Json& a, const Json& b, const std::string& where);

}  // namespace qeng::grammar
