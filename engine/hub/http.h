// One HTTP request after another over libcurl, connections kept open between them. It follows no redirect by itself:
// who asks decides whether to, and whether the next host may see the token.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hub/url.h"
#include "kernels/error.h"

namespace qeng {

// The connection failed, was cut or stalled: asking again may help. Error("network").
struct ConnectionError : Error {
  explicit ConnectionError(const std::string& message) : Error("network", message) {}
};

struct HttpResponse {
  long status = 0;
  std::map<std::string, std::string> headers;         // names in lower case
  std::string header(const std::string& name) const;  // "" where absent
};

struct HttpRequest {
  Url url;
  bool head = false;
  std::vector<std::string> headers;  // "Name: value"
};

class HttpClient {
 public:
  // Seconds to connect, and without a byte before a transfer counts as stalled.
  HttpClient(double connect_timeout, double stall_timeout);
  ~HttpClient();

  // sink is given the body as it comes, behind its headers; tick is called ten times a second. What they throw ends the
  // request and is thrown from here.
  using Sink = std::function<void(const HttpResponse&, std::string_view)>;
  HttpResponse perform(const HttpRequest& request, const Sink& sink, const std::function<void()>& tick);

 private:
  struct Handles;
  std::unique_ptr<Handles> handles_;
  double connect_timeout_, stall_timeout_;
};

}  // namespace qeng
