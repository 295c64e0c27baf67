#include "engine/convert/document.h"

#include <simdjson.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/convert/roles.h"
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
bool absent(const Field& field) { return !field.present || field.is(element_type::NULL_VALUE); }

// What the general way refuses by name beside anything that is trained.
constexpr std::string_view kMedia[] = {"images", "image", "videos", "video", "audios", "audio"};
// What of a conversation only the general way uses, or refuses by name, where it says something.
constexpr std::string_view kOtherFields[] = {
    "tools", "functions", "chat_template_kwargs", "system_prompt", "history", "chosen", "label", "kto_tag", "rejected"};
// The same of a message.
constexpr std::string_view kOtherKeys[] = {"tool_calls",      "function_call", "reasoning_content",
                                           "reasoning",       "thinking",      "train_detail",
                                           "training_detail", "refusal",       "audio"};
constexpr std::string_view kFlags[] = {"train", "training", "trainable", "loss"};

template <size_t n>
bool among(const std::string_view (&names)[n], std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Null says nothing, and no more do tools as "[]", which sets of function calls have beside plain conversations.
bool says_nothing(std::string_view key, const element& value) {
  if (value.type() == element_type::STRING)
    return std::string_view(value).empty() || (key == "tools" && std::string_view(value) == "[]");
  if (value.type() == element_type::ARRAY) return simdjson::dom::array(value).size() == 0;
  return value.type() == element_type::NULL_VALUE;
}

struct Fields {
  Field messages, conversations, system, prompt, completion, instruction, input, output, text, source;
  bool media = false, others = false;  // one of kMedia, one of kOtherFields says something

  Fields(simdjson::dom::object object, const std::string& source_field) {
    for (const auto& [key, value] : object) {  // of a key given twice the last counts
      if (key == "messages") messages = {true, value};
      if (key == "conversations") conversations = {true, value};
      if (key == "system") system = {true, value};
      if (key == "prompt") prompt = {true, value};
      if (key == "completion") completion = {true, value};
      if (key == "instruction") instruction = {true, value};
      if (key == "input") input = {true, value};
      if (key == "output") output = {true, value};
      if (key == "text") text = {true, value};
      if (!source_field.empty() && key == source_field) source = {true, value};
      media = media || (among(kMedia, key) && !says_nothing(key, value));
      others = others || (among(kOtherFields, key) && !says_nothing(key, value));
    }
  }
};

// The message of a turn, where that is plain.
bool read_turn(const element& turn, Message& message) {
  if (turn.type() != element_type::OBJECT) return false;
  Field role, from, content, value, weight, flags[std::size(kFlags)];
  for (const auto& [key, field] : simdjson::dom::object(turn)) {
    if (key == "role") role = {true, field};
    if (key == "from") from = {true, field};
    if (key == "content") content = {true, field};
    if (key == "value") value = {true, field};
    if (key == "weight") weight = {true, field};
    for (size_t i = 0; i < std::size(kFlags); ++i)
      if (key == kFlags[i]) flags[i] = {true, field};
    if (among(kOtherKeys, key) && field.type() != element_type::NULL_VALUE) return false;
  }
  if (role.present == from.present || content.present == value.present) return false;
  const Field &speaker = role.present ? role : from, &said = content.present ? content : value;
  if (!speaker.is(element_type::STRING) || !said.is(element_type::STRING)) return false;
  message.role = role_of(speaker.text()), message.content = said.text();
  if (message.role == "developer") message.role = "system";  // what is plain is rendered as ChatML
  if (weight.is(element_type::INT64) && uint64_t(int64_t(weight.value)) <= 1)
    message.train = int64_t(weight.value) == 1;
  else if (!absent(weight))
    return false;
  for (const Field& flag : flags) {
    if (absent(flag)) continue;
    if (!flag.is(element_type::BOOL) || (bool(flag.value) && message.role != "assistant")) return false;
    message.train = message.train && bool(flag.value);
  }
  return message.role == "system" || message.role == "user" || message.role == "assistant";
}

bool read_turns(const Field& turns, RecordContent& document) {
  if (!turns.is(element_type::ARRAY)) return false;
  for (const element turn : simdjson::dom::array(turns.value)) {
    Message message;
    if (!read_turn(turn, message)) return false;
    document.messages.push_back(message);
  }
  return !document.messages.empty();
}

bool read_pair(const Field& question, const Field& answer, RecordContent& document) {
  if (!question.is(element_type::STRING) || !answer.is(element_type::STRING)) return false;
  document.messages.push_back({"user", question.text()});
  document.messages.push_back({"assistant", answer.text()});
  return true;
}

bool read_alpaca(const Fields& record, RecordContent& document) {
  if (!read_pair(record.instruction, record.output, document)) return false;
  if (!record.input.present) return true;
  if (!record.input.is(element_type::STRING)) return false;
  if (record.input.text().empty()) return true;
  document.joined = record.instruction.text();
  document.joined += "\n\n";
  document.joined += record.input.text();
  document.messages.front().content = document.joined;
  return true;
}

bool read_conversation(const Fields& record, RecordContent& document) {
  if (record.messages.present) return read_turns(record.messages, document);
  if (record.conversations.present) return read_turns(record.conversations, document);
  if (record.prompt.present && record.completion.present) return read_pair(record.prompt, record.completion, document);
  return read_alpaca(record, document);
}

// The record's own system message goes before the others.
bool add_system(const Field& system, RecordContent& document) {
  if (absent(system)) return true;
  if (!system.is(element_type::STRING)) return false;
  if (system.text().empty()) return true;
  if (document.messages.front().role == "system") return false;
  document.messages.insert(document.messages.begin(), {"system", system.text()});
  return true;
}

bool read_plain(const Fields& record, RecordContent& document) {
  if (record.media) return false;
  const bool conversation = record.messages.present || record.conversations.present ||
                            (record.prompt.present && record.completion.present) ||
                            (record.instruction.present && record.output.present);
  if (conversation) return !record.others && read_conversation(record, document) && add_system(record.system, document);
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
