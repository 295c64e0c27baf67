// Plain text: a document a file, a paragraph or a line.
#include <utility>

#include "engine/convert/data_format.h"

namespace qeng {
namespace {

// One document a file. Never more than one record, so a file is read whole.
class WholeCutter final : public RecordCutter {
 public:
  size_t cut(std::string_view bytes, bool last, std::vector<RecordSpan>& records) override {
    if (!last) return 0;
    if (!blank(bytes)) records.push_back({0, bytes.size(), line, ++number});
    return bytes.size();
  }
  size_t drop(std::string_view bytes, bool last, bool& done) override {
    done = last;
    if (last) ++number;
    return bytes.size();
  }
};

// Documents that blank lines part.
class ParagraphCutter final : public RecordCutter {
 public:
  size_t cut(std::string_view bytes, bool last, std::vector<RecordSpan>& records) override {
    size_t at = 0, begin = 0, whole = 0;  // begin .. at: the paragraph so far; whole: the end of the last one
    uint64_t first_line = line, lines = 0;
    while (at < bytes.size()) {
      const size_t end = bytes.find('\n', at);
      if (end == bytes.npos && !last) break;
      const size_t stop = end == bytes.npos ? bytes.size() : end + 1;
      const bool separator = blank(bytes.substr(at, stop - at));
      if (separator) take(bytes, begin, at, first_line, records), begin = stop;
      at = stop, ++lines;
      if (separator) first_line = line + lines, whole = at;
    }
    if (last) take(bytes, begin, at, first_line, records), whole = at;
    line = last ? line + lines : first_line;
    return whole;
  }
  size_t drop(std::string_view bytes, bool last, bool& done) override {
    for (size_t at = 0; at < bytes.size(); ++at) {
      if (bytes[at] == '\n') {
        ++line;
        if (std::exchange(empty_line_, true)) return empty_line_ = false, ++number, done = true, at + 1;
      } else if (!blank(bytes[at])) {
        empty_line_ = false;
      }
    }
    if (last) ++number;
    return done = last, bytes.size();
  }

 private:
  void take(std::string_view bytes, size_t begin, size_t end, uint64_t first_line, std::vector<RecordSpan>& records) {
    while (end > begin && (bytes[end - 1] == '\n' || bytes[end - 1] == '\r')) --end;
    if (end > begin) records.push_back({begin, end - begin, first_line, ++number});
  }
  bool empty_line_ = false;
};

const DataFormat text({.name = "text",
                       .endings = {"txt", "text", "md"},
                       .is_text = true,
                       .cutter = [](DocumentUnit documents, const std::string&) -> std::unique_ptr<RecordCutter> {
                         if (documents == DocumentUnit::file) return std::make_unique<WholeCutter>();
                         if (documents == DocumentUnit::paragraph) return std::make_unique<ParagraphCutter>();
                         return line_cutter();
                       }});

}  // namespace
}  // namespace qeng
