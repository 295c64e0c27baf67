#include "engine/net/answer.h"

#include <strings.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "engine/net/request_reader.h"
#include "kernels/error.h"

namespace qeng {
namespace {
std::string date() {
  const time_t now = std::time(nullptr);
  tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  static const char* const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static const char* const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};  // whatever the locale
  const int size = std::snprintf(text, sizeof text, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[parts.tm_wday % 7],
                                 parts.tm_mday % 100, months[parts.tm_mon % 12], (parts.tm_year + 1900) % 10000,
                                 parts.tm_hour % 100, parts.tm_min % 100, parts.tm_sec % 100);
  return std::string(text, static_cast<size_t>(size));
}

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) || (c != 0 && std::strchr("!#$%&'*+-.^_`|~", c));
  });
}
}  // namespace

bool has_no_body(int status) { return status == 204 || status == 304; }

std::string head_text(const AnswerHead& head) {
  std::string text = "HTTP/1.1 " + std::to_string(head.status) + " " + reason_phrase(head.status) +
                     "\r\nServer: qeng\r\nDate: " + date() + "\r\n" + head.lines;
  if (head.framing == Framing::length) text += "Content-Length: " + std::to_string(head.length) + "\r\n";
  if (head.framing == Framing::chunked) text += "Transfer-Encoding: chunked\r\n";
  if (!head.keep_alive) text += "Connection: close\r\n";
  return text + "\r\n";
}

std::string header_lines(const HttpHeaders& headers) {
  std::string lines;
  for (const auto& [name, value] : headers) {
    if (!is_name(name)) fail("value", "'", name, "' is no name of a header");
    for (const char* own : {"content-length", "transfer-encoding", "connection", "server", "date"})
      if (strcasecmp(name.c_str(), own) == 0) fail("value", "the header ", name, " is the listener's: leave it out");
    if (value.find_first_of(std::string_view("\r\n\0", 3)) != value.npos)
      fail("value", "the header ", name, " has a line end or a NUL: a header is one line");
    lines += name + ": " + value + "\r\n";
  }
  return lines;
}

std::string chunk(std::string_view text) {
  if (text.empty()) return "";
  char size[24];
  const int digits = std::snprintf(size, sizeof size, "%zx\r\n", text.size());
  std::string framed;
  framed.reserve(static_cast<size_t>(digits) + text.size() + 2);
  return framed.append(size, static_cast<size_t>(digits)).append(text).append("\r\n");
}

}  // namespace qeng
