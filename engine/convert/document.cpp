#include "engine/convert/document.h"

#include <simdjson.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "engine/formats/json_depth.h"
#include "engine/packets/frame.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {
using simdjson::dom::element;
using simdjson::dom::element_type;
static_assert(DocumentReader::kPadding >= simdjson::SIMDJSON_PADDING);

constexpr size_t kKeepParser = 4 << 20;  // a parser that grew for a longer record is given back

struct Field {
  bool present = false;
  element value;
  bool is(element_type type) const { return present && value.type() == type; }
  // Lua, which the general way is written in, takes null for a value and only false for none.
  bool holds() const { return present && !(is(element_type::BOOL) && !bool(value)); }
  std::string_view text() const { return value.get_string().value_unsafe(); }
};

std::string_view sharegpt_role(std::string_view speaker) {
  static constexpr std::pair<std::string_view, std::string_view> kRoles[] = {
      {"human", "user"},        {"user", "user"},     {"gpt", "assistant"}, {"assistant", "assistant"},
      {"chatgpt", "assistant"}, {"bot", "assistant"}, {"system", "system"}};
  for (const auto& [name, role] : kRoles)
    if (speaker == name) return role;
  return {};
}

struct Fields {
  Field messages, tools, conversations, system, prompt, completion, instruction, input, output, text, source;

  Fields(simdjson::dom::object object, const std::string& source_field) {
    for (const auto& [key, value] : object) {  // of a key given twice the last counts
      if (key == "messages") messages = {true, value};
      if (key == "tools") tools = {true, value};
      if (key == "conversations") conversations = {true, value};
      if (key == "system") system = {true, value};
      if (key == "prompt") prompt = {true, value};
      if (key == "completion") completion = {true, value};
      if (key == "instruction") instruction = {true, value};
      if (key == "input") input = {true, value};
      if (key == "output") output = {true, value};
      if (key == "text") text = {true, value};
      if (!source_field.empty() && key == source_field) source = {true, value};
    }
  }
};

bool absent(const Field& field) { return !field.present || field.is(element_type::NULL_VALUE); }
bool no_tools(const Field& tools) {
  return absent(tools) || (tools.is(element_type::ARRAY) && simdjson::dom::array(tools.value).size() == 0);
}

// What of a message only a template can say.
bool wants_template(std::string_view key) {
  return key == "tool_calls" || key == "reasoning_content" || key == "function_call";
}

bool read_messages(const Fields& record, RecordContent& document) {
  if (!no_tools(record.tools)) return false;
  for (const element message : simdjson::dom::array(record.messages.value)) {
    if (message.type() != element_type::OBJECT) return false;
    Field role, content;
    for (const auto& [key, value] : simdjson::dom::object(message)) {
      if (key == "role") role = {true, value};
      if (key == "content") content = {true, value};
      if (wants_template(key) && value.type() != element_type::NULL_VALUE) return false;
    }
    if (!role.is(element_type::STRING) || !content.is(element_type::STRING)) return false;
    if (role.text() == "tool" || role.text() == "function") return false;
    document.messages.push_back({role.text(), content.text()});
  }
  return !document.messages.empty();
}

bool read_conversations(const Fields& record, RecordContent& document) {
  if (!no_tools(record.tools)) return false;
  if (record.system.is(element_type::STRING) && !record.system.text().empty())
    document.messages.push_back({"system", record.system.text()});
  const size_t before = document.messages.size();
  for (const element turn : simdjson::dom::array(record.conversations.value)) {
    if (turn.type() != element_type::OBJECT) return false;
    Field from, value;
    for (const auto& [key, field] : simdjson::dom::object(turn)) {
      if (key == "from") from = {true, field};
      if (key == "value") value = {true, field};
      if (wants_template(key) && field.type() != element_type::NULL_VALUE) return false;
    }
    if (!from.is(element_type::STRING) || !value.is(element_type::STRING)) return false;
    const std::string_view role = sharegpt_role(from.text());
    if (role.empty()) return false;
    document.messages.push_back({role, value.text()});
  }
  return document.messages.size() > before;
}

bool read_pair(const Field& question, const Field& answer, RecordContent& document) {
  if (!question.is(element_type::STRING) || !answer.is(element_type::STRING)) return false;
  document.messages.push_back({"user", question.text()});
  document.messages.push_back({"assistant", answer.text()});
  return true;
}

bool read_alpaca(const Fields& record, RecordContent& document) {
  if (record.system.is(element_type::STRING) && !record.system.text().empty())
    document.messages.push_back({"system", record.system.text()});
  if (!read_pair(record.instruction, record.output, document)) return false;
  if (!record.input.present) return true;
  if (!record.input.is(element_type::STRING)) return false;
  if (record.input.text().empty()) return true;
  document.joined = record.instruction.text();
  document.joined += "\n\n";
  document.joined += record.input.text();
  document.messages[document.messages.size() - 2].content = document.joined;
  return true;
}

bool read_plain(const Fields& record, RecordContent& document) {
  const auto list = [](const Field& field) {  // other kinds of value here are not for this way
    return field.is(element_type::ARRAY);
  };
  if (record.messages.present) return list(record.messages) && read_messages(record, document);
  if (record.conversations.present) return list(record.conversations) && read_conversations(record, document);
  if (record.prompt.present && record.completion.present) return read_pair(record.prompt, record.completion, document);
  if (record.instruction.present && record.output.present) return read_alpaca(record, document);
  if (!record.text.is(element_type::STRING)) return false;
  document.is_text = true, document.text = record.text.text();
  return true;
}
}  // namespace

struct DocumentReader::Parser {
  Parser() {
    if (simd.allocate(0, kRecordDepth) != simdjson::SUCCESS) fail("memory", "no memory for the JSON parser");
  }
  simdjson::dom::parser simd;
};

DocumentReader::DocumentReader(std::string source_field)
    : parser_(std::make_unique<Parser>()), source_field_(std::move(source_field)) {}
DocumentReader::~DocumentReader() = default;

void DocumentReader::read(std::string_view json, RecordContent& document) {
  document.clear();
  repaired_ = false;
  json_ = json;
  if (parser_->simd.capacity() > kKeepParser && json.size() < kKeepParser) parser_ = std::make_unique<Parser>();
  element root;
  simdjson::error_code error = parser_->simd.parse(json_.data(), json_.size(), false).get(root);
  if (error == simdjson::UTF8_ERROR) {
    json_ = valid_utf8(json, storage_);
    repaired_ = true;
    error = parser_->simd.parse(json_.data(), json_.size(), true).get(root);
  }
  if (error) {
    if (json_is_deeper(json_, kRecordDepth)) fail("unsupported", "nested more than ", kRecordDepth, " levels deep");
    // A number of more than 64 bits is JSON all the same; for the rest this parser tells where the mistake is.
    try {
      storage_ = nlohmann::ordered_json::parse(json_).dump();
    } catch (const nlohmann::json::exception& problem) {
      const std::string text = problem.what();
      const size_t at = text.find("] ");
      fail("format", "not JSON: ", at == text.npos ? text : text.substr(at + 2));
    }
    json_ = storage_;
    error = parser_->simd.parse(json_.data(), json_.size(), true).get(root);
    if (error) fail("format", "not JSON: ", simdjson::error_message(error));
  }
  if (root.type() != element_type::OBJECT) return;
  const Fields record(simdjson::dom::object(root), source_field_);
  document.source = record.text.holds()                                   ? packet_source::text_corpus
                    : record.instruction.holds() || record.prompt.holds() ? packet_source::instruction
                                                                          : packet_source::chat;
  document.has_source_field = record.source.present;
  if (record.source.is(element_type::STRING)) document.source_field = record.source.text();
  if (record.source.is(element_type::INT64)) document.source_field = std::to_string(int64_t(record.source.value));
  document.plain = read_plain(record, document);
  if (!document.plain) document.messages.clear();
}

}  // namespace qeng
