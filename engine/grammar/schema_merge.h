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

// Does a value of enum or const hold to the keywords beside it? Known are type, bounds of numbers and of lengths;
// Error("unsupported") for another that speaks of values of its type.
bool keeps_enumerated(const Json& value, const Json& schema, const std::string& where);

// Neither holds $ref or allOf at its top; those that follow inside (of a property that both describe) become an allOf.
// Error("unsupported") where the two have no common form here, as two patterns of one string.
Json merge(const Json& a, const Json& b, const std::string& where);

}  // namespace qeng::grammar
