// JSON schema (2020-12, and what draft 7 shares with it) as rules that match JSON texts valid under it.
//
//   all       type (one or a list), enum, const, anyOf, oneOf, allOf, not, $ref within the schema (also recursive),
//   $defs,
//             definitions, true and false
//   objects   properties, required, additionalProperties, minProperties, maxProperties, one patternProperties alone
//   arrays    items, prefixItems, minItems, maxItems, contains, minContains, uniqueItems of items that list their
//   values strings   minLength, maxLength, pattern (regex.h), format: date, time, date-time, uuid, email, uri, ipv4
//   numbers   minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, exact in decimal; integers have 64 bits
//
// Of oneOf comes what holds to one alternative and to none of the others, by the whole meaning of these: where what
// differs cannot be told, the schema is refused. A format counts as an assertion.
//
// The rules are narrower than the schema where it leaves open: properties come in the schema's order, unique items of
// over ten values in that of their list; a schema that says "properties" and not additionalProperties allows no others,
// likewise prefixItems without items; without "type", keywords of one type (as minLength) mean that type; white space
// and digits are bounded (json_rules.h), and so are emails and hosts. Annotations (title, description, ...) are passed
// over; any other keyword is refused by name and place.
#pragma once
#include <string_view>

#include "engine/grammar/expression.h"

namespace qeng::grammar {

// Error("format"): not JSON, not a schema, over kMaxText bytes, nested over 100 deep, merged into too much (seconds of
// work). Error("unsupported") names the keyword. A schema that nothing satisfies is found by compile(rules, false).
Rules schema_rules(std::string_view json);

}  // namespace qeng::grammar
