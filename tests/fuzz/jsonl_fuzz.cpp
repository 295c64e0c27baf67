// JSONL, JSON arrays and plain text: cutting into records in pieces of any size, and reading each record. The first
// byte chooses the format, the second the size of the pieces.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/convert/data_format.h"
#include "engine/convert/document.h"
#include "kernels/error.h"

using namespace qeng;

namespace {
void read(DocumentReader& reader, std::string_view text) {
  std::string padded(text);
  padded.append(DocumentReader::kPadding, '\0');
  RecordContent document;
  try {
    reader.read(std::string_view(padded).substr(0, text.size()), document);
  } catch (const Error&) {
    return;
  }
  size_t bytes = document.text.size() * document.is_text;  // touches what the document points to
  for (const Message& message : document.messages)
    for (const char c : std::string(message.role) + std::string(message.content)) bytes += c != 0;
  if (bytes == SIZE_MAX) std::abort();
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static DocumentReader reader("source");
  const int kind = data[0] % 5;
  const std::string name = kind == 0 ? "jsonl" : kind == 1 ? "json" : "text";
  const DataFormat& format = data_format(name);
  const DocumentUnit documents = kind == 2   ? DocumentUnit::file
                                 : kind == 3 ? DocumentUnit::line
                                             : DocumentUnit::paragraph;
  const size_t step = size_t{data[1]} + 1;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  // The same records, whether the text comes at once or piece by piece.
  std::vector<std::string> whole, pieces;
  bool failed[2] = {};
  for (const bool at_once : {true, false}) {
    const auto cutter = format.is.cutter(documents, "fuzz");
    std::string carry;
    try {
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
          (at_once ? whole : pieces).push_back(carry.substr(span.begin, span.size));
        }
        carry.erase(0, used);
        if (last) break;
      }
    } catch (const Error&) {
      failed[at_once] = true;
    }
  }
  if (failed[0] != failed[1] || (!failed[0] && whole != pieces)) std::abort();
  if (!format.is.is_text)
    for (const std::string& record : whole) read(reader, record);
  if (kind == 0) {  // dropping a record ends where cutting would
    const auto cutter = format.is.cutter(documents, "fuzz");
    bool done = false;
    if (cutter->drop(text, true, done) > text.size() || !done) std::abort();
  }
  return 0;
}
