// The bytes of an answer.
#pragma once
#include <optional>
#include <string>

#include "engine/net/http_server.h"

namespace qeng {

enum class Framing { length, chunked, until_close, none };  // none: statuses 204 and 304, which have no body

struct AnswerHead {
  int status = 200;
  Framing framing = Framing::length;
  size_t length = 0;
  bool keep_alive = true;
  std::string lines;  // further header lines, each with its line end
};

std::string head_text(const AnswerHead& head);

// Error("value") for names that are none, for values with line ends or NUL, and for headers that are the listener's.
std::string header_lines(const HttpHeaders& headers);

bool has_no_body(int status);
std::string chunk(std::string_view text);  // "" for no text, which would end the body
constexpr const char* kLastChunk = "0\r\n\r\n";

}  // namespace qeng
