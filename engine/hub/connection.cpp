#include "engine/hub/connection.h"

#include <curl/curl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <thread>

namespace qeng {
namespace {

constexpr int kRedirects = 10;
constexpr double kLongestWait = 300;  // seconds that we wait because a server asks for it

bool is_redirect(long status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}
bool may_pass(long status) { return status == 408 || status == 425 || status == 429 || status >= 500; }

// Seconds of Retry-After, which is a number or a date; below 0 where it is absent.
double asked_wait(const std::string& text) {
  if (text.empty()) return -1;
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (!*end && std::isfinite(number)) return std::max(0.0, number);
  const time_t when = curl_getdate(text.c_str(), nullptr);
  return when < 0 ? -1 : std::max(0.0, std::difftime(when, std::time(nullptr)));
}

[[noreturn]] void refuse(const HttpResponse& response, const std::string& what, const Url& endpoint, bool token) {
  const std::string code = response.header("x-error-code"), said = response.header("x-error-message").substr(0, 200);
  const std::string from = "the hub " + endpoint.host + " answers " + std::to_string(response.status) + " for " + what;
  const std::string words = said.empty() ? "" : " (" + said + ")";
  if (code == "GatedRepo")
    fail("io", from, words,
         ": it is open to those who accept its conditions on its page, with HF_TOKEN set to their token");
  if (code == "RevisionNotFound") fail("io", from, words, ": there is no such revision; check the part behind @");
  if (code == "EntryNotFound") fail("io", from, words, ": there is no such file");
  if (response.status == 401 || response.status == 403)
    fail("io", from, words,
         token ? ": the token in HF_TOKEN, or in HF_HOME/token, is not valid or may not read it"
               : ": there is no such repository, or it is private: set HF_TOKEN to a token that may read it");
  if (response.status == 404) fail("io", from, words, ": there is nothing of this name; check its spelling");
  fail("io", from, words);
}

}  // namespace

HubConnection::HubConnection(const HubSettings& settings)
    : client_(settings.connect_timeout, settings.stall_timeout),
      endpoint_(parse_url(settings.endpoint)),
      base_(settings.endpoint),
      token_(settings.token),
      attempts_(settings.attempts),
      backoff_(settings.backoff) {
  check_transport(endpoint_, nullptr);
}

HttpResponse HubConnection::once(const std::string& path, const std::string& what, bool head, uint64_t from, bool stay,
                                 const HttpClient::Sink& sink, const Tick& tick) {
  Url url = parse_url(base_ + path);
  for (int hop = 0; hop <= kRedirects; ++hop) {
    HttpRequest request{url, head, {"Accept-Encoding: identity"}};  // sizes and ranges are of the file itself
    const bool at_hub = same_origin(url, endpoint_);
    if (at_hub && !token_.empty()) request.headers.push_back("Authorization: Bearer " + token_);
    if (from > 0) request.headers.push_back("Range: bytes=" + std::to_string(from) + "-");
    const auto body = [&](const HttpResponse& response, std::string_view bytes) {
      if (response.status == 200 || response.status == 206) sink(response, bytes);
    };
    const HttpResponse response = client_.perform(request, body, [&] { tick(""); });
    if (response.status == 200 || response.status == 206 || response.status == 416) return response;
    if (is_redirect(response.status)) {
      const std::string location = response.header("location");
      if (location.empty()) throw TryAgain(url.host + " redirects to nowhere", -1);
      Url next = resolve_url(url, location);
      check_transport(next, &url);
      if (stay && (!same_origin(next, endpoint_) || !response.header("x-linked-etag").empty())) return response;
      url = std::move(next);
      continue;
    }
    // A host that the hub sends us to may refuse because the address it gave has expired: the hub gives a new one.
    if (may_pass(response.status) || !at_hub)
      throw TryAgain(url.host + " answers " + std::to_string(response.status) + " for " + what,
                     asked_wait(response.header("retry-after")));
    refuse(response, what, endpoint_, !token_.empty());
  }
  fail("network", url.host, ": more than ", kRedirects, " redirects for ", what);
}

void HubConnection::insist(const std::function<bool(bool& progress)>& attempt, const Tick& tick) {
  double pause = backoff_;
  for (int failures = 0;;) {
    bool progress = false;
    double wait = -1;
    std::string why;
    try {
      if (attempt(progress)) return;
      why = "the answer was not whole";
    } catch (const TryAgain& error) {
      why = error.what(), wait = error.seconds;
    } catch (const ConnectionError& error) {
      why = error.what();
    }
    if (progress) failures = 0, pause = backoff_;
    if (++failures >= attempts_) fail("network", why, "; tried ", attempts_, " times: run it again when it may work");
    if (wait > kLongestWait)
      fail("network", why, ", and asks to be left alone for ", std::lround(wait), " seconds: run it again then");
    if (wait < 0) wait = pause, pause = std::min(2 * pause, 30.0);
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait);
    for (auto now = std::chrono::steady_clock::now(); now < until; now = std::chrono::steady_clock::now()) {
      tick(why + "; next try in " +
           std::to_string(std::lround(std::ceil(std::chrono::duration<double>(until - now).count()))) + " s");
      std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(std::chrono::milliseconds(100), until - now));
    }
  }
}

}  // namespace qeng
