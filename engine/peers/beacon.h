// The datagram by which a peer that listens is found on its network (numbers little-endian):
//   "qpb1" | version u16 | TCP port u16 | nonce, 16 bytes | the first 16 bytes of SHA-256(nonce, its public key in Z85)
// Only who knows the key recognises it, and nothing else is told. The address is the datagram's. A copy that another
// machine sends leads to that machine, which has not the key, so that no connection comes of it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace qeng {

constexpr size_t kBeaconBytes = 40;
constexpr int kBeaconPort = 28765;

std::string make_beacon(int port, const std::string& key);  // with a nonce of its own

struct HeardBeacon {
  std::string name, key;
  int port = 0;
};
// Whose it is, of known keys by name; false for a datagram that is no beacon, or of somebody else.
bool recognise_beacon(std::string_view datagram, const std::map<std::string, std::string>& known, HeardBeacon* heard);

}  // namespace qeng
