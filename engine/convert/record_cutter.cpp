#include "engine/convert/record_cutter.h"

#include <algorithm>
#include <cstring>

namespace qeng {

bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return blank(c); });
}

namespace {
// JSONL, and text of which each line is a document. Blank lines are no records.
class LineCutter final : public RecordCutter {
 public:
  size_t cut(std::string_view bytes, bool last, std::vector<RecordSpan>& records) override {
    size_t at = 0;
    while (at < bytes.size()) {
      const auto* end = static_cast<const char*>(std::memchr(&bytes[at], '\n', bytes.size() - at));
      if (!end && !last) break;
      const size_t stop = end ? static_cast<size_t>(end - bytes.data()) : bytes.size();
      size_t size = stop - at;
      if (size && bytes[stop - 1] == '\r') --size;
      if (size && !(blank(bytes[at]) && blank(bytes.substr(at, size)))) records.push_back({at, size, line, ++number});
      at = std::min(stop + 1, bytes.size());
      ++line;
    }
    return at;
  }
  size_t drop(std::string_view bytes, bool last, bool& done) override {
    const size_t end = bytes.find('\n');
    done = end != bytes.npos || last;
    if (done) ++line, ++number;
    return end == bytes.npos ? bytes.size() : end + 1;
  }
};
}  // namespace

std::unique_ptr<RecordCutter> line_cutter() { return std::make_unique<LineCutter>(); }

}  // namespace qeng
