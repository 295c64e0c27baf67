// CSV: cutting into rows in pieces of any size, dropping them likewise, rows to fields (no row but the last ends inside
// quotes), fields to JSON, which has to be JSON. The first byte chooses the size of the pieces.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/convert/csv.h"
#include "engine/convert/data_format.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

using namespace qeng;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const size_t step = size_t{data[0]} + 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::vector<std::string> whole, pieces;
  std::vector<size_t> begins, dropped;  // of rows
  for (const bool at_once : {true, false}) {
    const auto cutter = data_format("csv").is.cutter(DocumentUnit::file, "fuzz");
    std::string carry;
    for (size_t at = 0;;) {
      const size_t n = at_once ? text.size() : std::min(step, text.size() - at);
      carry.append(text, at, n);
      at += n;
      const bool last = at == text.size();
      std::vector<RecordSpan> records;
      const size_t used = cutter->cut(carry, last, records);
      if (used > carry.size()) std::abort();
      for (const RecordSpan& span : records) {
        if (span.begin > used || span.size > used - span.begin) std::abort();
        if (at_once) begins.push_back(span.begin);
        (at_once ? whole : pieces).push_back(carry.substr(span.begin, span.size));
      }
      carry.erase(0, used);
      if (last) break;
    }
  }
  const auto dropper = data_format("csv").is.cutter(DocumentUnit::file, "fuzz");
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    for (bool done = false; !done;) {
      const size_t n = std::min(step, text.size() - at);
      at += dropper->drop(text.substr(at, n), at + n == text.size(), done);
    }
    const std::string_view row = text.substr(begin, at - begin);
    if (row != "\n" && row != "\r\n" && row != "\r") dropped.push_back(begin);
  }
  if (whole != pieces || begins != dropped) std::abort();
  std::vector<std::string> names, fields;
  std::string json, storage;
  for (size_t i = 0; i < whole.size(); ++i) {
    try {
      if (i == 0) names = parse_csv_header(whole[i]);
      parse_csv_row(whole[i], fields);
      csv_to_json(names, fields, json);
    } catch (const Error& error) {
      if (i + 1 < whole.size() && std::string_view(error.what()).ends_with("not closed")) std::abort();
      continue;
    }
    if (!nlohmann::json::accept(valid_utf8(json, storage))) std::abort();
  }
  return 0;
}
