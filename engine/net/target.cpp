#include "engine/net/target.h"

namespace qeng {
namespace {
int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}
}  // namespace

std::optional<std::string> percent_decoded(std::string_view text, bool plus_is_space) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = hex_digit(text[i + 1]), low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (c == 0) return std::nullopt;
    decoded += c;
  }
  return decoded;
}

std::optional<RequestTarget> parse_target(std::string_view text) {
  if (text.empty() || text[0] != '/') return std::nullopt;
  const size_t question = text.find('?');
  auto path = percent_decoded(text.substr(0, question), false);
  if (!path) return std::nullopt;
  RequestTarget target{std::move(*path), {}};
  std::string_view rest = question == text.npos ? std::string_view() : text.substr(question + 1);
  while (!rest.empty()) {
    const size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    rest = end == rest.npos ? std::string_view() : rest.substr(end + 1);
    const size_t equals = pair.find('=');
    const auto name = percent_decoded(pair.substr(0, equals), true);
    const auto value = percent_decoded(equals == pair.npos ? std::string_view() : pair.substr(equals + 1), true);
    if (!name || !value) return std::nullopt;
    if (!name->empty()) target.query[*name] = *value;
  }
  return target;
}

}  // namespace qeng
