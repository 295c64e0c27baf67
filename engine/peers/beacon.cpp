#include "engine/peers/beacon.h"

#include <openssl/evp.h>
#include <openssl/rand.h>

#include <cstring>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr char kMagic[4] = {'q', 'p', 'b', '1'};
constexpr uint16_t kVersion = 1;

struct Beacon {
  char magic[4];
  uint16_t version, port;
  uint8_t nonce[16], proof[16];
};
static_assert(sizeof(Beacon) == kBeaconBytes);

void prove(const Beacon& beacon, const std::string& key, uint8_t (&proof)[16]) {
  std::string text(reinterpret_cast<const char*>(beacon.nonce), sizeof beacon.nonce);
  text += key;
  uint8_t digest[32];
  if (!EVP_Digest(text.data(), text.size(), digest, nullptr, EVP_sha256(), nullptr))
    fail("internal", "OpenSSL has no SHA-256");
  std::memcpy(proof, digest, sizeof proof);
}

}  // namespace

std::string make_beacon(int port, const std::string& key) {
  if (port < 1 || port > 65535) fail("value", "a beacon tells of port ", port, ": who listens has one of 1 to 65535");
  Beacon beacon{{}, kVersion, static_cast<uint16_t>(port), {}, {}};
  std::memcpy(beacon.magic, kMagic, sizeof kMagic);
  if (RAND_bytes(beacon.nonce, sizeof beacon.nonce) != 1) fail("internal", "OpenSSL has no random numbers");
  prove(beacon, key, beacon.proof);
  return {reinterpret_cast<const char*>(&beacon), sizeof beacon};
}

bool recognise_beacon(std::string_view datagram, const std::map<std::string, std::string>& known, HeardBeacon* heard) {
  Beacon beacon;
  if (datagram.size() != sizeof beacon) return false;
  std::memcpy(&beacon, datagram.data(), sizeof beacon);
  if (std::memcmp(beacon.magic, kMagic, sizeof kMagic) != 0 || beacon.version != kVersion || beacon.port == 0)
    return false;
  for (const auto& [name, key] : known) {
    uint8_t proof[16];
    prove(beacon, key, proof);
    if (std::memcmp(proof, beacon.proof, sizeof proof) != 0) continue;
    *heard = {name, key, beacon.port};
    return true;
  }
  return false;
}

}  // namespace qeng
