// Who may ask: the Host and Origin headers, and keys (HttpOptions: keys, open, hosts, origins). Decided from the head of
// a request, before its body is read.
#pragma once
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/net/http_server.h"
#include "engine/net/request_reader.h"

namespace qeng {

struct HttpRefusal {
  int status = 0;
  std::string message;
  std::string code;     // "" for none
  std::string headers;  // further lines, each with its line end
};

class AccessRules {
 public:
  explicit AccessRules(const HttpOptions& options);

  // Nothing for a request that may be asked. A preflight of an origin in the list is "refused" with 204.
  std::optional<HttpRefusal> check(const RequestHead& head, const std::string& path) const;

  bool is_open(const std::string& path) const;  // needs no key

  // Header lines that let a browser's page of an origin in the list read the answer; "" for other requests.
  std::string origin_headers(const RequestHead& head) const;

 private:
  using Digest = std::array<unsigned char, 32>;
  bool knows_key(const RequestHead& head) const;
  bool listed_origin(std::string_view origin) const;
  std::vector<Digest> keys_;
  std::vector<std::string> open_, origins_;
  std::optional<std::vector<std::string>> hosts_;
  std::string scheme_;
};

}  // namespace qeng
