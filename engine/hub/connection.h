// Requests to one hub: who sees the token, which redirects are followed, which failures are worth another try.
#pragma once
#include <functional>
#include <string>

#include "engine/hub/http.h"
#include "engine/hub/settings.h"

namespace qeng {

// Asking again later may help. seconds: how long the server wants us to wait, below 0 where it says nothing.
struct TryAgain : ConnectionError {
  TryAgain(const std::string& message, double wait) : ConnectionError(message), seconds(wait) {}
  double seconds;
};

class HubConnection {
 public:
  // Called ten times a second; note: what is waited for, "" while bytes come. May throw.
  using Tick = std::function<void(const std::string& note)>;

  explicit HubConnection(const HubSettings& settings);

  // One request for endpoint + path, redirects followed. Bodies of 200 and 206 go to `sink`. stay: only on the hub
  // itself; the answer is then perhaps a redirect to elsewhere. Throws TryAgain or ConnectionError, or Error("io")
  // where the hub refuses; `what` names the thing in the message.
  HttpResponse once(const std::string& path, const std::string& what, bool head, uint64_t from, bool stay,
                    const HttpClient::Sink& sink, const Tick& tick);

  // Runs `attempt` until it returns true. Failures that may pass are waited out; settings.attempts of them with no
  // progress between (attempt returned false, or told so) are the Error("network") of the last one.
  void insist(const std::function<bool(bool& progress)>& attempt, const Tick& tick);

 private:
  HttpClient client_;
  Url endpoint_;
  std::string base_, token_;
  int attempts_;
  double backoff_;
};

}  // namespace qeng
