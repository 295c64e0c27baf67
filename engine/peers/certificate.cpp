#include "engine/peers/certificate.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <sstream>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr char kZ85[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
constexpr const char* kSpace = " \t\r";

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(kSpace), last = text.find_last_not_of(kSpace);
  return first == text.npos ? "" : text.substr(first, last - first + 1);
}

// What is between quotation marks, or the word.
std::string value_of(const std::string& text) {
  const std::string value = trimmed(text);
  if (value.empty() || (value[0] != '"' && value[0] != '\'')) return trimmed(value.substr(0, value.find('#')));
  const size_t end = value.find(value[0], 1);
  return end == value.npos ? "" : value.substr(1, end - 1);
}

}  // namespace

bool is_peer_key(const std::string& text) {
  if (text.size() != 40) return false;
  for (size_t at = 0; at < text.size(); at += 5) {
    uint64_t word = 0;
    for (size_t i = at; i < at + 5; ++i) {
      const char* digit = text[i] ? std::strchr(kZ85, text[i]) : nullptr;
      if (!digit) return false;
      word = word * 85 + static_cast<uint64_t>(digit - kZ85);
    }
    if (word > UINT32_MAX) return false;
  }
  return true;
}

std::string certificate_text(const PeerCertificate& certificate) {
  const bool secret = !certificate.secret_key.empty();
  std::string text = secret ? "#   ZeroMQ CURVE **Secret** Certificate\n"
                              "#   DO NOT PROVIDE THIS FILE TO OTHER USERS nor change its permissions.\n\n"
                            : "#   ZeroMQ CURVE Public Certificate\n\n";
  text +=
      "metadata\n    name = \"" + certificate.name + "\"\ncurve\n    public-key = \"" + certificate.public_key + "\"\n";
  if (secret) text += "    secret-key = \"" + certificate.secret_key + "\"\n";
  return text;
}

PeerCertificate parse_certificate(const std::string& text, const std::string& path) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const std::string words = trimmed(line);
    if (words.empty() || words[0] == '#') continue;
    const size_t equals = words.find('=');
    if (line[0] != ' ' && line[0] != '\t')
      section = trimmed(words.substr(0, equals));
    else if (equals != words.npos)
      values[section + "/" + trimmed(words.substr(0, equals))] = value_of(words.substr(equals + 1));
  }
  const PeerCertificate read{values["metadata/name"], values["curve/public-key"], values["curve/secret-key"]};
  if (!is_peer_key(read.public_key)) fail("format", path, ": has no public-key of 40 characters in Z85");
  if (!read.secret_key.empty() && !is_peer_key(read.secret_key))
    fail("format", path, ": its secret-key is not one of 40 characters in Z85");
  return read;
}

}  // namespace qeng
