// A JSON record of one of the known shapes as a conversation or a text: messages, conversations (sharegpt),
// prompt/completion, instruction/input/output (alpaca), text. Takes what is plain (roles and strings) and leaves
// everything else, errors included, to the general way (RecordRenderer in render.h), with which it agrees exactly.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace qeng {

// The views point into the reader's memory, or to literals, and hold until its next read().
struct Message {
  std::string_view role, content;  // system, user or assistant
  bool train = true;               // false: not trained, although the assistant says it
};
struct RecordContent {
  bool plain = false;  // messages or text are set; false: the general way has to look at it
  bool is_text = false;
  std::string_view text;
  std::vector<Message> messages;
  std::string joined;  // memory of an alpaca prompt that has an input
  uint8_t source = 0;  // SRC by the record's shape: text, instruction, chat
  bool has_source_field = false;
  std::string source_field;  // a string, or an integer in decimal

  void clear() { plain = is_text = has_source_field = false, messages.clear(), source_field.clear(); }
};

class DocumentReader {
 public:
  explicit DocumentReader(std::string source_field);
  ~DocumentReader();

  // json must be followed by kPadding readable bytes. Not JSON: Error("format"). Nested deeper than kRecordDepth:
  // Error("unsupported"). Ill-formed UTF-8 becomes U+FFFD, and repaired() tells; json() is the text that was read in
  // the end.
  void read(std::string_view json, RecordContent& document);
  bool repaired() const { return repaired_; }
  std::string_view json() const { return json_; }

  static constexpr size_t kPadding = 64;

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  std::string source_field_, storage_;
  std::string_view json_;
  bool repaired_ = false;
};

}  // namespace qeng
