// Addresses that a hub's files come from. Everything is https; http only on this machine's own loopback, where tests
// and mirrors run.
#pragma once
#include <string>

namespace qeng {

struct Url {
  std::string text;                // whole, as it is asked for
  std::string scheme, host, port;  // the port is given even where it is the scheme's own
};

// Error("value") where the text is no http or https address, or carries a user's name or password.
Url parse_url(const std::string& text);
// What `location`, absolute or relative, means in an answer from `base`.
Url resolve_url(const Url& base, const std::string& location);

bool is_loopback(const Url& url);                        // localhost, 127.x.y.z, [::1]
bool same_origin(const Url& a, const Url& b);            // scheme, host and port: who may see the token
std::string escape_path(const std::string& path);        // "/" stays, all else but letters, digits and -._~ becomes %XX
std::string escape_segment(const std::string& segment);  // "/" too

// Error("io") unless https, or http between loopback addresses. from: who sends us there, or null.
void check_transport(const Url& url, const Url* from);

}  // namespace qeng
