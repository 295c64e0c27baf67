#include "engine/hub/http.h"

#include <curl/curl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <mutex>

namespace qeng {
namespace {

struct Transfer {
  HttpResponse response;
  const HttpClient::Sink* sink;
  std::exception_ptr thrown;
};

size_t on_header(char* data, size_t size, size_t count, void* user) {
  auto& transfer = *static_cast<Transfer*>(user);
  const std::string_view line(data, size * count);
  if (line.rfind("HTTP/", 0) == 0) transfer.response = {};  // a further answer, after a proxy's or 100 Continue
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return size * count;
  std::string name(line.substr(0, colon));
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  std::string_view value = line.substr(colon + 1);
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  while (!value.empty() && static_cast<unsigned char>(value.back()) <= ' ') value.remove_suffix(1);
  std::string& kept = transfer.response.headers[name];
  kept = value;
  for (char& c : kept)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';  // it may stand in a message on a terminal
  return size * count;
}

// Where other distributions keep the authorities' certificates, for a bundled libcurl that looks in Debian's place.
const char* certificates() {
  for (const char* name : {"CURL_CA_BUNDLE", "SSL_CERT_FILE"}) {
    const char* path = std::getenv(name);
    if (path && *path) return path;
  }
  static const char* const places[] = {"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt",
                                       "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"};
  for (const char* path : places)
    if (::access(path, R_OK) == 0) return path;
  return nullptr;
}

struct Body {
  Transfer* transfer;
  CURL* easy;
};
size_t on_body(char* data, size_t size, size_t count, void* user) {
  auto& body = *static_cast<Body*>(user);
  Transfer& transfer = *body.transfer;
  try {
    curl_easy_getinfo(body.easy, CURLINFO_RESPONSE_CODE, &transfer.response.status);
    (*transfer.sink)(transfer.response, {data, size * count});
  } catch (...) {  // it must not unwind through libcurl; perform() throws it on
    transfer.thrown = std::current_exception();
    return 0;
  }
  return size * count;
}

}  // namespace

struct HttpClient::Handles {
  CURLM* multi = nullptr;
  CURL* easy = nullptr;
};

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

HttpClient::HttpClient(double connect_timeout, double stall_timeout)
    : handles_(std::make_unique<Handles>()), connect_timeout_(connect_timeout), stall_timeout_(stall_timeout) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  handles_->multi = curl_multi_init();
  handles_->easy = curl_easy_init();
  if (!handles_->multi || !handles_->easy) fail("memory", "libcurl could not be set up");
}

HttpClient::~HttpClient() {
  curl_easy_cleanup(handles_->easy);
  curl_multi_cleanup(handles_->multi);
}

HttpResponse HttpClient::perform(const HttpRequest& request, const Sink& sink, const std::function<void()>& tick) {
  CURL* easy = handles_->easy;
  curl_easy_reset(easy);  // options only: connections live on
  Transfer transfer{{}, &sink, nullptr};
  Body body{&transfer, easy};
  char reason[CURL_ERROR_SIZE] = "";
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> headers(nullptr, &curl_slist_free_all);
  for (const std::string& line : request.headers) headers.reset(curl_slist_append(headers.release(), line.c_str()));
  curl_easy_setopt(easy, CURLOPT_URL, request.url.text.c_str());
  curl_easy_setopt(easy, CURLOPT_NOBODY, request.head ? 1L : 0L);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "qeng");
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, std::lround(connect_timeout_ * 1000));
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, std::max(1L, std::lround(stall_timeout_)));
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, reason);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &transfer);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);  // the default of 16 kB costs a call for every 16 kB
  if (is_loopback(request.url)) curl_easy_setopt(easy, CURLOPT_PROXY, "");
  if (const char* path = certificates()) curl_easy_setopt(easy, CURLOPT_CAINFO, path);

  struct Added {
    CURLM* multi;
    CURL* easy;
    ~Added() { curl_multi_remove_handle(multi, easy); }
  };
  if (curl_multi_add_handle(handles_->multi, easy) != CURLM_OK) fail("memory", "libcurl could not begin a request");
  const Added added{handles_->multi, easy};
  for (int running = 1; running > 0;) {
    if (curl_multi_perform(handles_->multi, &running) != CURLM_OK) fail("internal", "libcurl failed");
    if (running > 0) curl_multi_poll(handles_->multi, nullptr, 0, 100, nullptr);
    if (transfer.thrown) std::rethrow_exception(transfer.thrown);
    tick();
  }
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  CURLcode result = CURLE_OK;
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(handles_->multi, &left))
    if (message->msg == CURLMSG_DONE) result = message->data.result;
  curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &transfer.response.status);
  if (result == CURLE_OK) return transfer.response;
  const std::string what = request.url.host + ": " + (*reason ? reason : curl_easy_strerror(result));
  if (result == CURLE_PEER_FAILED_VERIFICATION || result == CURLE_SSL_CACERT_BADFILE)
    fail("io", what, "; its certificate is not trusted here: install ca-certificates, or name a file in SSL_CERT_FILE");
  throw ConnectionError(what);
}

}  // namespace qeng
