#include "engine/hub/settings.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "kernels/error.h"

namespace qeng {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string home() {
  if (const std::string given = variable("HOME"); !given.empty()) return given;
  const passwd* user = ::getpwuid(::getuid());
  if (!user) fail("io", "HOME is not set: set it, or HF_HOME, to say where downloads go");
  return user->pw_dir;
}

std::string expanded(const std::string& path) {
  return path == "~" || path.rfind("~/", 0) == 0 ? home() + path.substr(1) : path;
}

bool yes(const char* name) {
  std::string value = variable(name);
  for (char& c : value) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 32 : c);
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

double seconds(const char* name, double fallback) {
  const std::string text = variable(name);
  if (text.empty()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (*end || !(value > 0 && value < 1e6)) fail("value", name, " is '", text, "'; expected a number of seconds");
  return value;
}

std::string token_of(const std::string& path) {
  std::ifstream file(path);
  std::string token;
  file >> token;
  return token;
}

}  // namespace

HubSettings hub_settings() {
  HubSettings settings;
  if (const std::string endpoint = variable("HF_ENDPOINT"); !endpoint.empty()) settings.endpoint = endpoint;
  while (settings.endpoint.size() > 1 && settings.endpoint.back() == '/') settings.endpoint.pop_back();

  std::string root = expanded(variable("HF_HOME"));
  if (root.empty()) {
    const std::string caches = expanded(variable("XDG_CACHE_HOME"));
    root = (caches.empty() ? home() + "/.cache" : caches) + "/huggingface";
  }
  settings.cache = expanded(variable("HF_HUB_CACHE"));
  if (settings.cache.empty()) settings.cache = expanded(variable("HUGGINGFACE_HUB_CACHE"));
  if (settings.cache.empty()) settings.cache = root + "/hub";

  settings.token = variable("HF_TOKEN");
  if (settings.token.empty() && !yes("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
    const std::string path = expanded(variable("HF_TOKEN_PATH"));
    settings.token = token_of(path.empty() ? root + "/token" : path);
  }
  while (!settings.token.empty() &&
         (settings.token.back() == '\n' || settings.token.back() == '\r' || settings.token.back() == ' '))
    settings.token.pop_back();
  for (const unsigned char c : settings.token)
    if (c <= 32 || c >= 127)
      fail("value", "the hub's token (HF_TOKEN, or the file ", root, "/token) holds a blank or a strange character");

  settings.offline = yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE");
  settings.connect_timeout = seconds("HF_HUB_ETAG_TIMEOUT", settings.connect_timeout);
  settings.stall_timeout = seconds("HF_HUB_DOWNLOAD_TIMEOUT", settings.stall_timeout);
  return settings;
}

}  // namespace qeng
