// CSV, and the same with tabs.
#include "engine/convert/csv.h"
#include "engine/convert/data_format.h"

namespace qeng {
namespace {

// Where a row stands after some of its bytes. A quote opens a field only at its beginning, as parse_csv_row has it.
class CsvRow {
 public:
  explicit CsvRow(char separator) : separator_(separator) {}
  // The next byte; whether it is the line feed that ends the row.
  bool ends(char c) {
    if (at_ == At::quoted) {
      if (c == '"') at_ = At::closed;
      return false;
    }
    if (c == '"' && at_ != At::plain) return at_ = At::quoted, false;  // "" in quotes closes and opens again
    at_ = c == separator_ || c == '\n' ? At::begin : At::plain;
    return c == '\n';
  }

 private:
  enum class At { begin, plain, quoted, closed };  // of a field
  At at_ = At::begin;
  char separator_;
};

// Rows of RFC 4180: a quoted field may hold line breaks. The header row is the first record.
class CsvCutter final : public RecordCutter {
 public:
  explicit CsvCutter(char separator) : separator_(separator), dropped_(separator) {}
  size_t cut(std::string_view bytes, bool last, std::vector<RecordSpan>& records) override {
    size_t done = 0;
    CsvRow standing(separator_);
    uint64_t lines = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      lines += bytes[at] == '\n';
      if (!standing.ends(bytes[at])) continue;
      row(bytes, done, at, records);
      done = at + 1, line += lines, lines = 0;
    }
    if (last && done < bytes.size()) row(bytes, done, bytes.size(), records), done = bytes.size(), line += lines + 1;
    return done;
  }
  size_t drop(std::string_view bytes, bool last, bool& done) override {
    for (size_t at = 0; at < bytes.size(); ++at) {
      line += bytes[at] == '\n';
      if (dropped_.ends(bytes[at])) return ++number, done = true, at + 1;
    }
    if (last) ++number, dropped_ = CsvRow(separator_);
    return done = last, bytes.size();
  }

 private:
  void row(std::string_view bytes, size_t begin, size_t end, std::vector<RecordSpan>& records) {
    if (end > begin && bytes[end - 1] == '\r') --end;
    if (end > begin) records.push_back({begin, end - begin, line, ++number});
  }
  char separator_;
  CsvRow dropped_;  // the row that drop() is in
};

template <char separator>
DataFormat::Is rows(const char* name, std::vector<std::string> endings) {
  return {.name = name,
          .endings = std::move(endings),
          .cutter = [](DocumentUnit, const std::string&) -> std::unique_ptr<RecordCutter> {
            return std::make_unique<CsvCutter>(separator);
          },
          .refusal = "CSV",
          .names = [](std::string_view header) { return parse_csv_header(header, separator); },
          .to_json =
              [](const std::vector<std::string>& names, std::string_view row, std::string& json) {
                thread_local std::vector<std::string> fields;
                parse_csv_row(row, fields, separator);
                csv_to_json(names, fields, json);
              }};
}

const DataFormat csv(rows<','>("csv", {"csv"})), tsv(rows<'\t'>("tsv", {"tsv", "tab"}));

}  // namespace
}  // namespace qeng
