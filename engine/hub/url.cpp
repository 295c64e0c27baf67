#include "engine/hub/url.h"

#include <arpa/inet.h>
#include <curl/curl.h>

#include <memory>

#include "kernels/error.h"

namespace qeng {
namespace {

using Handle = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

std::string part(CURLU* handle, CURLUPart what, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(handle, what, &text, flags) != CURLUE_OK || !text) return "";
  std::string result = text;
  curl_free(text);
  return result;
}

Url parse(const std::string& base, const std::string& text) {
  Handle handle(curl_url(), &curl_url_cleanup);
  const auto set = [&](const std::string& url) {
    return url.find('\0') == std::string::npos &&
           curl_url_set(handle.get(), CURLUPART_URL, url.c_str(), 0) == CURLUE_OK;
  };
  if ((!base.empty() && !set(base)) || !set(text))
    fail("value", "'", text, "' is no address; expected https://HOST/...");
  Url url{part(handle.get(), CURLUPART_URL), part(handle.get(), CURLUPART_SCHEME), part(handle.get(), CURLUPART_HOST),
          part(handle.get(), CURLUPART_PORT, CURLU_DEFAULT_PORT)};
  if (url.scheme != "https" && url.scheme != "http")
    fail("value", "'", text, "': ", url.scheme, " is not supported; expected https://HOST/...");
  if (!part(handle.get(), CURLUPART_USER).empty() || !part(handle.get(), CURLUPART_PASSWORD).empty())
    fail("value", "an address with a name or password in it is not used; give the token in HF_TOKEN");
  for (char& c : url.host) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return url;
}

std::string escape(const std::string& text, const char* kept) {
  static const char digits[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (plain || (c != 0 && std::string(kept).find(static_cast<char>(c)) != std::string::npos)) {
      out += static_cast<char>(c);
    } else {
      out += {'%', digits[c >> 4], digits[c & 15]};
    }
  }
  return out;
}

}  // namespace

Url parse_url(const std::string& text) { return parse("", text); }
Url resolve_url(const Url& base, const std::string& location) { return parse(base.text, location); }

bool is_loopback(const Url& url) {
  in_addr address{};
  if (inet_pton(AF_INET, url.host.c_str(), &address) == 1) return ntohl(address.s_addr) >> 24 == 127;
  return url.host == "localhost" || url.host == "[::1]";
}

bool same_origin(const Url& a, const Url& b) { return a.scheme == b.scheme && a.host == b.host && a.port == b.port; }

std::string escape_path(const std::string& path) { return escape(path, "-._~/"); }
std::string escape_segment(const std::string& segment) { return escape(segment, "-._~"); }

void check_transport(const Url& url, const Url* from) {
  const bool local = url.scheme == "http" && is_loopback(url) && (!from || is_loopback(*from));
  if (url.scheme == "https" || local) return;
  fail("io", from ? from->host + " sends us to " : "", url.scheme, "://", url.host,
       ", which is not encrypted: only https is used (http on this machine's own loopback)");
}

}  // namespace qeng
