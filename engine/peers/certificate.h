// A certificate of ZeroMQ's CURVE as CZMQ's zcert writes it: sections, each with indented lines NAME = "VALUE".
//   metadata
//       name = "anna"
//   curve
//       public-key = "40 characters of Z85"
//       secret-key = "and 40 more", in the owner's file alone
#pragma once
#include <string>

namespace qeng {

struct PeerCertificate {
  std::string name, public_key, secret_key;  // no secret: somebody else's
};

bool is_peer_key(const std::string& text);  // 32 bytes in Z85 (rfc.zeromq.org/spec/32)
std::string certificate_text(const PeerCertificate& certificate);
// Error("format") names the path where the keys are none or not there. The name may be missing.
PeerCertificate parse_certificate(const std::string& text, const std::string& path);

}  // namespace qeng
