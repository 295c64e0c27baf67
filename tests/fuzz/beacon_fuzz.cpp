// A datagram as a beacon, as given and with a proof made right; and as a certificate of a key.
#include <openssl/evp.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/peers/beacon.h"
#include "engine/peers/certificate.h"
#include "kernels/error.h"

namespace {
using namespace qeng;

const std::string kKey = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

void require(bool is, const char* what) {
  if (is) return;
  std::fprintf(stderr, "finding: %s\n", what);
  std::abort();
}

std::string proven(std::string datagram) {
  if (datagram.size() != kBeaconBytes) return datagram;
  const std::string text = datagram.substr(8, 16) + kKey;
  unsigned char digest[32];
  EVP_Digest(text.data(), text.size(), digest, nullptr, EVP_sha256(), nullptr);
  std::memcpy(&datagram[24], digest, 16);
  return datagram;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const std::string& datagram : {text, proven(text)}) {
    HeardBeacon heard;
    if (!recognise_beacon(datagram, {{"other", std::string(40, 'o')}, {"anna", kKey}}, &heard)) continue;
    require(heard.name == "anna" && heard.key == kKey, "a beacon of somebody else");
    require(heard.port > 0 && heard.port < 65536 && datagram.size() == kBeaconBytes, "a beacon outside its limits");
    require(proven(datagram) == datagram, "a beacon without a proof");
  }
  try {
    const PeerCertificate read = parse_certificate(text, "it");
    require(is_peer_key(read.public_key), "a key that is none");
    const PeerCertificate again = parse_certificate(certificate_text(read), "again");
    require(again.public_key == read.public_key && again.secret_key == read.secret_key,
            "another key when written anew");
  } catch (const Error&) {  // refused
  }
  return 0;
}
