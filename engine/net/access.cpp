#include "engine/net/access.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <strings.h>

#include <algorithm>

namespace qeng {
namespace {
bool same_word(std::string_view a, std::string_view b) {
  return a.size() == b.size() && strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// "[::1]:8080" and "::1" are the host "::1", "Localhost:80" is "Localhost".
std::string_view host_name(std::string_view text) {
  if (!text.empty() && text[0] == '[') return text.substr(1, std::min(text.find(']'), text.size()) - 1);
  const size_t colon = text.find(':');
  return colon != text.npos && text.find(':', colon + 1) == text.npos ? text.substr(0, colon) : text;
}

// The text after "SCHEME " in an Authorization header.
std::optional<std::string_view> credentials(std::string_view header, std::string_view scheme) {
  if (header.size() <= scheme.size() || header[scheme.size()] != ' ' ||
      !same_word(header.substr(0, scheme.size()), scheme))
    return std::nullopt;
  header.remove_prefix(scheme.size());
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

// The password of Basic credentials.
std::optional<std::string> password(std::string_view encoded) {
  if (encoded.empty() || encoded.size() % 4 != 0 || encoded.size() > 4096) return std::nullopt;
  std::string text(encoded.size() / 4 * 3, '\0');
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(encoded.data()), static_cast<int>(encoded.size()));
  const size_t padding = encoded.size() - (encoded.find_last_not_of('=') + 1);
  if (size < 3 || padding > 2) return std::nullopt;
  text.resize(static_cast<size_t>(size) - padding);
  const size_t colon = text.find(':');
  if (colon == text.npos) return std::nullopt;
  return text.substr(colon + 1);
}

std::array<unsigned char, 32> digest(std::string_view text) {
  std::array<unsigned char, 32> bytes;
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes.data());
  return bytes;
}
}  // namespace

AccessRules::AccessRules(const HttpOptions& options)
    : open_(options.open),
      origins_(options.origins),
      hosts_(options.hosts),
      scheme_(options.cert.empty() ? "http://" : "https://") {
  for (const std::string& key : options.keys) keys_.push_back(digest(key));
}

bool AccessRules::listed_origin(std::string_view origin) const {
  return std::any_of(origins_.begin(), origins_.end(), [&](const auto& listed) { return same_word(listed, origin); });
}

std::string AccessRules::origin_headers(const RequestHead& head) const {
  const std::string_view origin = head.header("origin");
  if (origin.empty() || !listed_origin(origin)) return "";
  return "Access-Control-Allow-Origin: " + std::string(origin) + "\r\nVary: Origin\r\n";
}

// Each key that a request shows is compared with all: digests of one length, in constant time, so that how long it
// takes tells nothing of a key.
bool AccessRules::knows_key(const RequestHead& head) const {
  std::vector<Digest> shown;
  if (const auto bearer = credentials(head.header("authorization"), "Bearer")) shown.push_back(digest(*bearer));
  if (const auto basic = credentials(head.header("authorization"), "Basic"))
    if (const auto word = password(*basic)) shown.push_back(digest(*word));
  if (head.headers.count("x-api-key")) shown.push_back(digest(head.header("x-api-key")));
  bool known = false;
  for (const Digest& candidate : shown)
    for (const Digest& key : keys_) known |= CRYPTO_memcmp(candidate.data(), key.data(), key.size()) == 0;
  return known;
}

std::optional<HttpRefusal> AccessRules::check(const RequestHead& head, const std::string& path) const {
  const std::string_view host = head.header("host"), origin = head.header("origin");
  if (hosts_ && std::none_of(hosts_->begin(), hosts_->end(),
                             [&](const auto& name) { return same_word(host_name(name), host_name(host)); }))
    return HttpRefusal{421, "this server does not answer for the host '" + std::string(host_name(host)) + "'", "", ""};
  if (!origin.empty() && !same_word(origin, scheme_ + std::string(host))) {
    if (!listed_origin(origin))
      return HttpRefusal{403, "pages of " + std::string(origin) + " may not ask this server", "", ""};
    if (head.method == "OPTIONS" && head.headers.count("access-control-request-method")) {
      std::string lines = "Access-Control-Allow-Methods: GET, HEAD, POST, PUT, PATCH, DELETE\r\n";
      if (const auto asked = head.header("access-control-request-headers"); !asked.empty())
        lines += "Access-Control-Allow-Headers: " + std::string(asked) + "\r\n";
      return HttpRefusal{204, "", "", lines + "Access-Control-Max-Age: 600\r\n"};
    }
  }
  if (!keys_.empty() && !is_open(path) && !knows_key(head))
    return HttpRefusal{401, "this server wants a key: send Authorization: Bearer KEY, or x-api-key: KEY",
                       "invalid_api_key", "WWW-Authenticate: Basic realm=\"qeng\"\r\n"};
  return std::nullopt;
}

bool AccessRules::is_open(const std::string& path) const {
  return std::find(open_.begin(), open_.end(), path) != open_.end();
}

}  // namespace qeng
