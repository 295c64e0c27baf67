// CSV, and the same with tabs.
#include "engine/convert/csv.h"
#include "engine/convert/data_format.h"

namespace qeng {
namespace {

// Rows of RFC 4180: a quoted field may hold line breaks. The header row is the first record.
class CsvCutter final : public RecordCutter {
 public:
  size_t cut(std::string_view bytes, bool last, std::vector<RecordSpan>& records) override {
    size_t done = 0;
    bool quoted = false;
    uint64_t lines = 0;
    for (size_t at = 0; at < bytes.size(); ++at) {
      if (bytes[at] == '"') quoted = !quoted;  // "" closes and opens again
      lines += bytes[at] == '\n';
      if (bytes[at] != '\n' || quoted) continue;
      row(bytes, done, at, records);
      done = at + 1, line += lines, lines = 0;
    }
    if (last && done < bytes.size()) row(bytes, done, bytes.size(), records), done = bytes.size(), line += lines + 1;
    return done;
  }
  size_t drop(std::string_view bytes, bool last, bool& done) override {
    for (size_t at = 0; at < bytes.size(); ++at) {
      if (bytes[at] == '"') quoted_ = !quoted_;
      line += bytes[at] == '\n';
      if (bytes[at] == '\n' && !quoted_) return ++number, done = true, at + 1;
    }
    if (last) ++number, quoted_ = false;
    return done = last, bytes.size();
  }

 private:
  void row(std::string_view bytes, size_t begin, size_t end, std::vector<RecordSpan>& records) {
    if (end > begin && bytes[end - 1] == '\r') --end;
    if (end > begin) records.push_back({begin, end - begin, line, ++number});
  }
  bool quoted_ = false;
};

template <char separator>
DataFormat::Is rows(const char* name, std::vector<std::string> endings) {
  return {.name = name,
          .endings = std::move(endings),
          .cutter = [](DocumentUnit, const std::string&) -> std::unique_ptr<RecordCutter> {
            return std::make_unique<CsvCutter>();
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
