// libqeng_peers.so: Peers, certificates and beacons by ZeroMQ and CZMQ. Built where CZMQ's headers are (Debian's
// libczmq-dev).
#include <czmq.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <vector>

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

// A zbeacon for each network, as one is on one.
class CzmqBroadcast final : public PeerBroadcast {
 public:
  CzmqBroadcast(int port, const std::string& interface, const std::string& datagram)
      : port_(port), interface_(interface), datagram_(datagram) {
    if (datagram.size() > kMostDatagram)
      fail("value", "a beacon of ", datagram.size(), " bytes, at most ", kMostDatagram);
    refresh();
    if (actors_.empty() && (datagram.empty() || !interface.empty()))
      fail("io", "no beacon at UDP port ", port, ": ",
           interface.empty() ? "no interface that can broadcast is up"
                             : "the interface " + interface + " cannot broadcast",
           "; name another, or give addresses");
  }

  std::vector<std::string> refresh() override {
    std::map<std::string, std::string> networks;  // an interface with its address: the interface
    if (interface_.empty()) {
      ziflist_t* list = ziflist_new();
      for (const char* name = list ? ziflist_first(list) : nullptr; name; name = ziflist_next(list))
        networks.emplace(name + std::string(" ") + ziflist_address(list), name);
      ziflist_destroy(&list);
    } else {
      networks.emplace(interface_, interface_);
    }
    std::erase_if(actors_, [&](const auto& actor) { return !networks.count(actor.first); });
    for (const auto& [network, name] : networks) {
      if (actors_.count(network)) continue;
      if (Voice voice = begin(name); voice.actor) actors_.emplace(network, std::move(voice));
    }
    std::vector<std::string> hosts;
    for (const auto& [network, voice] : actors_) hosts.push_back(voice.host.get());
    return hosts;
  }

  bool hear(double seconds, std::string* address, std::string* datagram) override {
    std::vector<zmq_pollitem_t> items;
    std::vector<zactor_t*> heard;
    for (const auto& [network, voice] : actors_) {
      heard.push_back(voice.actor.get());
      items.push_back({zsock_resolve(voice.actor.get()), 0, ZMQ_POLLIN, 0});
    }
    if (zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(seconds * 1000)) <= 0) return false;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!(items[i].revents & ZMQ_POLLIN)) continue;
      zsock_set_rcvtimeo(heard[i], 100);  // both parts are there
      const Text from(zstr_recv(heard[i]));
      zframe_t* frame = from ? zframe_recv(heard[i]) : nullptr;
      if (!frame) return false;
      *address = from.get();
      datagram->assign(reinterpret_cast<const char*>(zframe_data(frame)), zframe_size(frame));
      zframe_destroy(&frame);
      return true;
    }
    return false;
  }

 private:
  struct End {
    void operator()(zactor_t* actor) const {
      const std::lock_guard<std::mutex> lock(beacons().lock);
      if (beacons().actors.erase(actor)) zactor_destroy(&actor);
    }
  };
  struct Voice {
    std::unique_ptr<zactor_t, End> actor;
    Text host;  // the address of this machine on that network
  };

  // Without an actor where that interface cannot broadcast.
  Voice begin(const std::string& interface) {
    Voice voice;
    auto& [actor, host] = voice;
    {
      const std::lock_guard<std::mutex> lock(beacons().lock);  // the interface is the whole process's
      zsys_set_interface(interface.c_str());
      actor.reset(zactor_new(zbeacon, nullptr));
      if (!actor) return {};  // no more sockets or threads: the next refresh tries again
      beacons().actors.insert(actor.get());
      zsock_send(actor.get(), "si", "CONFIGURE", port_);
      host.reset(zstr_recv(actor.get()));
    }
    if (!host || !*host) return {};
    if (datagram_.empty())
      zsock_send(actor.get(), "sb", "SUBSCRIBE", "", size_t{0});
    else
      zsock_send(actor.get(), "sbi", "PUBLISH", datagram_.data(), datagram_.size(), kBroadcastEveryMs);
    return voice;
  }

  const int port_;
  const std::string interface_, datagram_;
  std::map<std::string, Voice> actors_;
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
