// Where one record ends and the next begins. A cutter is fed what has been read so far, from a
// record's first byte on, and says which bytes are whole records; it keeps no text, so reading may start again at any
// record (a resumed conversion does) and no record is held twice.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

// A record inside the bytes that were given to cut().
struct RecordSpan {
  size_t begin = 0, size = 0;
  uint64_t line = 0;    // of its first byte, from 1
  uint64_t number = 0;  // of the record in its file, from 1
};

class RecordCutter {
 public:
  virtual ~RecordCutter() = default;

  // Appends the records that are whole in `bytes` and returns the length of the prefix they fill, separators included.
  // last: nothing follows, so what is left is the last record. 0: more bytes are needed.
  virtual size_t cut(std::string_view bytes, bool last, std::vector<RecordSpan>& records) = 0;

  // Drops a record that is too long to be held: call with the bytes from its begin on, block after block, until
  // `done`. Returns the bytes dropped.
  virtual size_t drop(std::string_view bytes, bool last, bool& done) = 0;

  // Before the first cut() at a place other than the file's begin.
  void go_on(uint64_t at_line, uint64_t records, bool was_closed) {
    line = at_line, number = records, closed = was_closed, started_ = true;
  }
  uint64_t line = 1, number = 0;  // of the next byte; records so far
  bool closed = false;            // the array has ended: only white space may follow

 protected:
  bool started_ = false;
};

// A record is a line; blank ones are none.
std::unique_ptr<RecordCutter> line_cutter();

bool blank(char c);  // of white space
bool blank(std::string_view text);

}  // namespace qeng
