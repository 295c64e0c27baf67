// libqeng_peers.so: Peers, certificates and beacons by ZeroMQ and CZMQ. Built where CZMQ's headers are (Debian's
// libczmq-dev).
#include <czmq.h>

#include <mutex>

#include "engine/peers/czmq_peers.h"

namespace qeng {
namespace {

constexpr int kBroadcastEveryMs = 500;
constexpr size_t kMostDatagram = 255;  // of a zbeacon

struct DestroyConfig {
  void operator()(zconfig_t* config) const { zconfig_destroy(&config); }
};
struct DestroyActor {
  void operator()(zactor_t* actor) const { zactor_destroy(&actor); }
};
struct FreeText {
  void operator()(char* text) const { zstr_free(&text); }
};
using Text = std::unique_ptr<char, FreeText>;

bool is_key(const std::string& text) {
  uint8_t bytes[32];
  return text.size() == 40 && zmq_z85_decode(bytes, text.c_str());
}

class CzmqBroadcast final : public PeerBroadcast {
 public:
  CzmqBroadcast(int port, const std::string& interface, const std::string& datagram) {
    if (datagram.size() > kMostDatagram)
      fail("value", "a beacon of ", datagram.size(), " bytes, at most ", kMostDatagram);
    {
      static std::mutex one;  // the interface is the whole process's
      const std::lock_guard<std::mutex> lock(one);
      zsys_set_interface(interface.c_str());
      actor_.reset(zactor_new(zbeacon, nullptr));
      if (!actor_) fail("io", "no beacon: ", zmq_strerror(zmq_errno()));
      zsock_send(actor_.get(), "si", "CONFIGURE", port);
      const Text host(zstr_recv(actor_.get()));
      if (!host || !*host)
        fail("io", "no beacon at UDP port ", port, ": ",
             interface.empty() ? "no interface that can broadcast is up"
                               : "the interface " + interface + " cannot broadcast",
             "; name another, or give addresses");
    }
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
  std::unique_ptr<zactor_t, DestroyActor> actor_;
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

  std::string write_certificate(const PeerCertificate& certificate) override {
    const std::unique_ptr<zconfig_t, DestroyConfig> root(zconfig_new("root", nullptr));
    zconfig_put(root.get(), "metadata/name", certificate.name.c_str());
    zconfig_put(root.get(), "curve/public-key", certificate.public_key.c_str());
    if (!certificate.secret_key.empty()) zconfig_put(root.get(), "curve/secret-key", certificate.secret_key.c_str());
    const Text text(zconfig_str_save(root.get()));
    return text.get() + std::string("\n");
  }

  PeerCertificate read_certificate(const std::string& text, const std::string& path) override {
    const std::unique_ptr<zconfig_t, DestroyConfig> root(zconfig_str_load(text.c_str()));
    if (!root) fail("format", path, ": is no certificate of ZeroMQ's; make it again, by q.keys");
    const auto get = [&](const char* name) { return std::string(zconfig_get(root.get(), name, "")); };
    PeerCertificate read{get("metadata/name"), get("curve/public-key"), get("curve/secret-key")};
    if (!is_key(read.public_key)) fail("format", path, ": has no public-key of 40 characters in Z85");
    if (read.secret_key.empty()) return read;
    char derived[41];
    if (!is_key(read.secret_key) || zmq_curve_public(derived, read.secret_key.c_str()) != 0 ||
        read.public_key != derived)
      fail("format", path, ": its secret-key is not that of its public-key");
    return read;
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
    zsys_handler_set(nullptr);    // Ctrl-C is qeng's
    zsys_set_logstream(nullptr);  // and so is what is said
    return new qeng::CzmqLibrary;
  }();
  return library;
}
