// JSON: an object a line, or the elements of one array.
#include <algorithm>

#include "engine/convert/data_format.h"
#include "kernels/error.h"

namespace qeng {
namespace {

uint64_t lines_in(std::string_view text) { return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n')); }

// Steps through text that quotes may wrap: is the byte at hand outside of them?
struct JsonState {
  int depth = 0;
  bool quoted = false, escaped = false;
  // Feeds one byte; true where it ends a value at depth 0: a comma or the array's own bracket.
  bool ends(char c) {
    if (quoted) {
      if (escaped) return escaped = false;
      if (c == '\\') escaped = true;
      if (c == '"') quoted = false;
      return false;
    }
    switch (c) {
      case '"': quoted = true; return false;
      case '{':
      case '[': ++depth; return false;
      case '}': depth -= depth > 0; return false;
      case ']': return depth == 0 || (--depth, false);
      case ',': return depth == 0;
      default: return false;
    }
  }
};

// The elements of one array.
class ArrayCutter final : public RecordCutter {
 public:
  explicit ArrayCutter(std::string path) : path_(std::move(path)) {}

  size_t cut(std::string_view bytes, bool last, std::vector<RecordSpan>& records) override {
    size_t done = 0;
    if (!started_) {
      while (done < bytes.size() && blank(bytes[done])) line += bytes[done++] == '\n';
      if (done == bytes.size()) return last ? fail_at("holds no JSON array", 0), 0 : done;
      if (bytes[done] != '[') fail_at("does not begin with [, as a JSON array does", 0);
      ++done, started_ = true;
    }
    if (closed) return after_end(bytes, done);
    JsonState state;
    for (size_t at = done; at < bytes.size(); ++at) {
      if (!state.ends(bytes[at])) continue;
      element(bytes, done, at, bytes[at] == ']', records);
      done = at + 1;
      if (bytes[at] == ']') return closed = true, after_end(bytes, done);
    }
    if (last) fail_at("the JSON array ends without ]: the file is cut off", lines_in(bytes.substr(done)));
    return done;
  }
  size_t drop(std::string_view bytes, bool last, bool& done) override {
    for (size_t at = 0; at < bytes.size(); ++at) {
      line += bytes[at] == '\n';
      if (!dropping_.ends(bytes[at])) continue;
      closed = bytes[at] == ']', dropping_ = {}, ++number;
      return done = true, at + 1;
    }
    if (last) fail_at("the JSON array ends without ]: the file is cut off", 0);
    return bytes.size();
  }

 private:
  [[noreturn]] void fail_at(const char* what, uint64_t more_lines) const {
    fail("format", path_, ":", line + more_lines, ": ", what);
  }
  void element(std::string_view bytes, size_t begin, size_t end, bool closing, std::vector<RecordSpan>& records) {
    const size_t from = begin;
    while (begin < end && blank(bytes[begin])) ++begin;
    line += lines_in(bytes.substr(from, begin - from));
    // Nothing before ] is an empty array or a comma too many; nothing before a comma is an element that is missing.
    if (begin < end || !closing) records.push_back({begin, end - begin, line, ++number});
    line += lines_in(bytes.substr(begin, end - begin));
  }
  size_t after_end(std::string_view bytes, size_t done) {
    for (; done < bytes.size(); ++done) {
      if (!blank(bytes[done])) fail_at("text after the JSON array's end", 0);
      line += bytes[done] == '\n';
    }
    return done;
  }
  std::string path_;
  JsonState dropping_;
};

// The first byte that is no white space, 0 where there is none.
char first_of(std::string_view head) {
  const size_t first = head.find_first_not_of(" \t\r\n");
  return first == head.npos ? '\0' : head[first];
}

const DataFormat jsonl({.name = "jsonl",
                        .endings = {"jsonl", "ndjson", "json"},
                        .begins = [](std::string_view head) { return first_of(head) == '{' || first_of(head) == 0; },
                        .cutter = [](DocumentUnit, const std::string&) { return line_cutter(); }});
const DataFormat json({.name = "json",
                       .begins = [](std::string_view head) { return first_of(head) == '['; },
                       .cutter = [](DocumentUnit, const std::string& path) -> std::unique_ptr<RecordCutter> {
                         return std::make_unique<ArrayCutter>(path);
                       }});

}  // namespace
}  // namespace qeng
