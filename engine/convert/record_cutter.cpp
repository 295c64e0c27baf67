#include "engine/convert/record_cutter.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace qeng {
namespace {
bool blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
bool blank(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return blank(c); });
}
uint64_t lines_in(std::string_view text) { return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n')); }

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

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* ending) { return name.ends_with(ending); });
}
}  // namespace

std::unique_ptr<RecordCutter> make_cutter(InputFormat format, DocumentUnit documents, const std::string& path) {
  if (format == InputFormat::json) return std::make_unique<ArrayCutter>(path);
  if (format == InputFormat::csv || format == InputFormat::tsv) return std::make_unique<CsvCutter>();
  if (format == InputFormat::text && documents == DocumentUnit::file) return std::make_unique<WholeCutter>();
  if (format == InputFormat::text && documents == DocumentUnit::paragraph) return std::make_unique<ParagraphCutter>();
  return std::make_unique<LineCutter>();
}

InputFormat detect_format(const std::string& path, std::string_view head) {
  std::string name = path;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  for (const char* packed : {".gz", ".zst", ".zstd", ".bz2", ".xz"})
    if (name.ends_with(packed)) name.resize(name.size() - std::strlen(packed));
  if (ends_with_any(name, {".txt", ".text", ".md"})) return InputFormat::text;
  if (ends_with_any(name, {".csv"})) return InputFormat::csv;
  if (ends_with_any(name, {".tsv", ".tab"})) return InputFormat::tsv;
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == head.npos || head[first] == '[') return first == head.npos ? InputFormat::jsonl : InputFormat::json;
  if (head[first] == '{' || ends_with_any(name, {".jsonl", ".ndjson", ".json"})) return InputFormat::jsonl;
  fail("format", path,
       ": neither its name nor its first bytes tell its format; say that it is jsonl, json, csv, tsv or text");
}

}  // namespace qeng
