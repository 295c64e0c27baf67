// Where the hub is, where its files go, and how patient we are: from the environment, under the names that Hugging
// Face's own tools use.
#pragma once
#include <string>

namespace qeng {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";
  std::string token;  // "": none
  std::string cache;  // the folder "hub" of the layout in cache.h
  bool offline = false;
  double connect_timeout = 10, stall_timeout = 30;  // seconds
  int attempts = 5;                                 // requests in a row that bring nothing, before giving up
  double backoff = 1;                               // seconds before the second one; doubles to at most 30
};

// HF_ENDPOINT; HF_TOKEN, or the file that HF_TOKEN_PATH names, or HF_HOME/token (none of these two with
// HF_HUB_DISABLE_IMPLICIT_TOKEN); HF_HUB_CACHE, or HF_HOME/hub, or XDG_CACHE_HOME/huggingface/hub, or ~/.cache/...;
// HF_HUB_OFFLINE; HF_HUB_ETAG_TIMEOUT (to connect), HF_HUB_DOWNLOAD_TIMEOUT (stalled). Error("value") where one makes
// no sense.
HubSettings hub_settings();

}  // namespace qeng
