// libqeng_peers.so: Peers, certificates and beacons by ZeroMQ and CZMQ. Built where CZMQ's headers are (Debian's
// libczmq-dev).
#include <czmq.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "engine/peers/czmq_peers.h"

namespace qeng {
namespace {

constexpr int kBroadcastEveryMs = 500;
constexpr size_t kMostDatagram = 255;  // of a zbeacon

struct FreeText {
  void operator()(char* text) const { zstr_free(&text); }
};
using Text = std::unique_ptr<char, FreeText>;

// The beacons that there are. A process that ends with one ends it first: CZMQ would end under its thread.
struct Beacons {
  std::mutex lock;
  std::set<zactor_t*> actors;
};
Beacons& beacons() {
  static Beacons& all = *new Beacons;
  return all;
}
void end_beacons() {
  const std::lock_guard<std::mutex> lock(beacons().lock);
  for (zactor_t* actor : beacons().actors) zactor_destroy(&actor);
  beacons().actors.clear();
}

class CzmqBroadcast final : public PeerBroadcast {
 public:
  CzmqBroadcast(int port, const std::string& interface, const std::string& datagram) {
    if (datagram.size() > kMostDatagram)
      fail("value", "a beacon of ", datagram.size(), " bytes, at most ", kMostDatagram);
    {
      const std::lock_guard<std::mutex> lock(beacons().lock);  // the interface is the whole process's
      zsys_set_interface(interface.c_str());
      zactor_t* const actor = zactor_new(zbeacon, nullptr);
      if (!actor) fail("io", "no beacon: ", zmq_strerror(zmq_errno()));
      beacons().actors.insert(actor);
      actor_.reset(actor);
      zsock_send(actor, "si", "CONFIGURE", port);
      host_.reset(zstr_recv(actor));
    }
    if (!host_ || !*host_)
      fail("io", "no beacon at UDP port ", port, ": ",
           interface.empty() ? "no interface that can broadcast is up"
                             : "the interface " + interface + " cannot broadcast",
           "; name another, or give addresses");
    if (datagram.empty())
      zsock_send(actor_.get(), "sb", "SUBSCRIBE", "", size_t{0});
    else
      zsock_send(actor_.get(), "sbi", "PUBLISH", datagram.data(), datagram.size(), kBroadcastEveryMs);
  }
  bool hear(double seconds, std::string* address, std::string* datagram) override {
    zsock_set_rcvtimeo(actor_.get(), static_cast<int>(seconds * 1000));
    const Text from(zstr_recv(actor_.get()));
    if (!from) return false;
    zframe_t* frame = zframe_recv(actor_.get());
    if (!frame) return false;
    *address = from.get();
    datagram->assign(reinterpret_cast<const char*>(zframe_data(frame)), zframe_size(frame));
    zframe_destroy(&frame);
    return true;
  }

 private:
  struct End {
    void operator()(zactor_t* actor) const {
      const std::lock_guard<std::mutex> lock(beacons().lock);
      if (beacons().actors.erase(actor)) zactor_destroy(&actor);
    }
  };
  std::unique_ptr<zactor_t, End> actor_;
  Text host_;  // the address of this machine on that network
};

class CzmqLibrary final : public PeerLibrary {
 public:
  std::unique_ptr<Peers> open(const PeerOptions& options) override { return std::make_unique<CzmqPeers>(options); }

  PeerCertificate new_certificate(const std::string& name) override {
    PeerCertificate made{name, std::string(41, '\0'), std::string(41, '\0')};
    if (zmq_curve_keypair(made.public_key.data(), made.secret_key.data()) != 0)
      fail("unsupported", "this ZeroMQ has no CURVE: install one that has, as Debian's libzmq5");
    made.public_key.pop_back(), made.secret_key.pop_back();
    return made;
  }

  std::string public_key_of(const std::string& secret_key) override {
    std::string key(41, '\0');
    if (zmq_curve_public(key.data(), secret_key.c_str()) != 0) fail("format", "a secret key that is none");
    key.pop_back();
    return key;
  }

  std::unique_ptr<PeerBroadcast> broadcast(int port, const std::string& interface,
                                           const std::string& datagram) override {
    return std::make_unique<CzmqBroadcast>(port, interface, datagram);
  }
};

}  // namespace
}  // namespace qeng

extern "C" __attribute__((visibility("default"))) qeng::PeerLibrary* qeng_peer_library() {
  static qeng::CzmqLibrary* const library = [] {
    zsys_handler_set(nullptr);                                                       // Ctrl-C is qeng's
    if (FILE* nowhere = std::fopen("/dev/null", "we")) zsys_set_logstream(nowhere);  // and so is what is said
    std::atexit(qeng::end_beacons);  // before what CZMQ has just registered
    return new qeng::CzmqLibrary;
  }();
  return library;
}
