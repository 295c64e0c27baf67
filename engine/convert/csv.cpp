#include "engine/convert/csv.h"

#include <algorithm>
#include <cstdio>

#include "kernels/error.h"

namespace qeng {
namespace {
void append_json_string(std::string& json, std::string_view text) {
  json += '"';
  size_t from = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto c = static_cast<unsigned char>(text[at]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    json.append(text, from, at - from);
    from = at + 1;
    char escape[8];
    std::snprintf(escape, sizeof escape, c < 0x20 ? "\\u%04x" : "\\%c", unsigned{c});
    json += escape;
  }
  json.append(text, from);
  json += '"';
}
}  // namespace

void parse_csv_row(std::string_view row, std::vector<std::string>& fields, char separator) {
  fields.clear();
  size_t at = 0;
  for (;;) {
    std::string& field = fields.emplace_back();
    if (at < row.size() && row[at] == '"') {
      for (++at;;) {
        const size_t quote = row.find('"', at);
        if (quote == row.npos) fail("format", "CSV: the quote of field ", fields.size(), " is not closed");
        field.append(row, at, quote - at);
        at = quote + 1;
        if (at == row.size() || row[at] != '"') break;
        field += '"', ++at;
      }
      if (at < row.size() && row[at] != separator)
        fail("format", "CSV: text after the closing quote of field ", fields.size(),
             "; a quote inside a quoted field is written twice");
    } else {
      const size_t end = std::min(row.find(separator, at), row.size());
      field.assign(row, at, end - at);
      at = end;
    }
    if (at >= row.size()) return;
    ++at;  // the separator; what follows, if only nothing, is a field
  }
}

std::vector<std::string> parse_csv_header(std::string_view row, char separator) {
  std::vector<std::string> names;
  parse_csv_row(row, names, separator);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].empty()) fail("format", "CSV: column ", i + 1, " of the header has no name");
    if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<std::ptrdiff_t>(i))
      fail("format", "CSV: the header names ", names[i], " twice");
  }
  return names;
}

void csv_to_json(const std::vector<std::string>& names, const std::vector<std::string>& fields, std::string& json) {
  if (fields.size() != names.size()) fail("format", "CSV: ", fields.size(), " fields, the header names ", names.size());
  json = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    if (i) json += ',';
    append_json_string(json, names[i]);
    json += ':';
    append_json_string(json, fields[i]);
  }
  json += '}';
}

}  // namespace qeng
