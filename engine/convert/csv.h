// One CSV row (RFC 4180), or one with tabs between, to its fields, and to a JSON object whose values are strings.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

// Error("format") for text after a closing quote and for a quote that is not closed. A quote inside a field that does
// not begin with one is plain text.
void parse_csv_row(std::string_view row, std::vector<std::string>& fields, char separator = ',');

// The names of a header row: not empty, no name twice (Error("format")).
std::vector<std::string> parse_csv_header(std::string_view row, char separator = ',');

// {"name": "field", ...} into `json`. Another number of fields than names is Error("format").
void csv_to_json(const std::vector<std::string>& names, const std::vector<std::string>& fields, std::string& json);

}  // namespace qeng
