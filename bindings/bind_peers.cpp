// q.peers and q.keys: processes on other machines, what they exchange, and the keys by which they know each other.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <utility>

#include "bindings/interrupt.h"
#include "bindings/peer_frame.h"
#include "bindings/register.h"
#include "bindings/runtime.h"
#include "engine/peers/beacon.h"
#include "engine/peers/keys.h"

namespace qeng {
namespace {

// Who was not let in: so many keys that one process holds, as strangers may have any number.
class Refused {
 public:
  struct Stranger {
    std::string key, address;
  };
  void add(const std::string& key, const std::string& address) {
    const std::lock_guard<std::mutex> lock(lock_);
    if (keys_.size() < kMost && keys_.insert(key).second) untold_.push_back({key, address});
  }
  std::vector<Stranger> take() {
    const std::lock_guard<std::mutex> lock(lock_);
    return std::exchange(untold_, {});
  }

 private:
  static constexpr size_t kMost = 32;
  std::mutex lock_;
  std::set<std::string> keys_;
  std::vector<Stranger> untold_;
};

// What Lua holds of an open Peers: with the keys that it was opened with.
struct OpenPeers {
  std::shared_ptr<const PeerKeys> keys;
  std::shared_ptr<Refused> refused;
  std::unique_ptr<Peers> peers;
};

struct Beacon {
  std::unique_ptr<PeerBroadcast> broadcast;
};

struct Ear {
  std::map<std::string, std::string> known;  // keys by name
  std::unique_ptr<PeerBroadcast> broadcast;
  std::set<std::string> told;
};

}  // namespace
}  // namespace qeng

QENG_LUA_CLASS(qeng::OpenPeers, "Peers")
QENG_LUA_CLASS(qeng::Beacon, "Beacon")
QENG_LUA_CLASS(qeng::Ear, "Ear")

namespace qeng {
namespace {
using lua::Call;
using lua::Options;
using lua::set_field;
using Clock = std::chrono::steady_clock;

constexpr double kSlice = 0.05;  // seconds: how soon a wait without events sees Ctrl-C

// Calls once(seconds) for short whiles until it is true, the time is over, or a Ctrl-C waits. True: once() was.
template <class Once>
bool in_slices(double seconds, const Once& once) {
  const auto end = Clock::now() + std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9));
  for (;;) {
    const double left = std::chrono::duration<double>(end - Clock::now()).count();
    if (once(std::clamp(left, 0.0, kSlice))) return true;
    if (left <= 0 || interrupt_came()) return false;
  }
}

// ---------------------------------------------------------------- keys

void say_made(const PeerKeys& keys) {
  if (!keys.made()) return;
  std::fprintf(stderr, "keys: made a pair for %s in %s\n", keys.own().name.c_str(), keys.folder().c_str());
}

std::shared_ptr<const PeerKeys> keys_at(const Options& opt, const char* option) {
  const auto keys =
      std::make_shared<const PeerKeys>(opt.has(option) ? opt.get<std::string>(option) : PeerKeys::default_folder());
  say_made(*keys);
  return keys;
}

int keys(Call& call) {
  Options opt(call, 1, {"folder", "name", "know", "forget"});
  PeerKeys keys(opt.get("folder", opt.has("folder") ? "" : PeerKeys::default_folder()),
                opt.get<std::string>("name", ""));
  if (opt.has("know")) {
    const auto peer = opt.get<std::map<std::string, std::string>>("know");
    if (peer.size() != 2 || !peer.count("name") || !peer.count("public"))
      fail("value", "keys: know is {name = \"...\", public = \"40 characters\"}");
    keys.know(peer.at("name"), peer.at("public"));
  }
  if (opt.has("forget")) keys.forget(opt.get<std::string>("forget"));
  const PeerCertificate& own = keys.own();
  say_made(keys);
  std::string text = own.name + "  " + own.public_key + "  (this machine; its keys are in " + keys.folder() + ")";
  lua_State* L = call.L;
  lua_newtable(L);
  set_field(L, "name", own.name);
  set_field(L, "public", own.public_key);
  set_field(L, "folder", keys.folder());
  lua_newtable(L);
  int count = 0;
  for (const auto& [name, key] : keys.known()) {
    lua_newtable(L);
    set_field(L, "name", name);
    set_field(L, "public", key);
    lua_rawseti(L, -2, ++count);
    text += "\n" + name + "  " + key;
  }
  lua_setfield(L, -2, "known");
  lua_newtable(L);  // what print shows
  lua::Value<std::string>::push(L, text);
  lua_pushcclosure(
      L,
      [](lua_State* state) {
        lua_pushvalue(state, lua_upvalueindex(1));
        return 1;
      },
      1);
  lua_setfield(L, -2, "__tostring");
  lua_setmetatable(L, -2);
  return 1;
}

// ---------------------------------------------------------------- frames

std::span<const uint8_t> frame_of(const Call& call) { return call.self<HeldFrame>()->bytes(call.name); }

int frame_bytes(Call& call) { return call.push(frame_of(call).size()); }

int frame_data(Call& call) {
  const auto data = frame_of(call);
  lua_pushlstring(call.L, reinterpret_cast<const char*>(data.data()), data.size());
  return 1;
}

void fill(const Call& call, std::span<const uint8_t> data, Tensor& x) {
  const size_t expected = x.view.bytes();
  if (data.size() != expected)
    fail("shape", call.name, ": the frame has ", data.size(), " bytes, and a tensor ", shape_text(x.view), " has ",
         expected);
  require_writable(x, call.name);
  if (expected) write_bytes(x, data.data());
}

int frame_tensor(Call& call) {
  const std::span<const uint8_t> data = frame_of(call);
  const TensorPtr x = make_tensor(device(), call.arg<Shape>(1), call.arg<DType>(2));
  fill(call, data, *x);
  return call.push(x);
}

int frame_into(Call& call) {
  const TensorPtr x = call.arg<TensorPtr>(1);
  fill(call, frame_of(call), *x);
  return call.push(x);
}

int frame_free(Call& call) { return *call.self<HeldFrame>() = {nullptr, true}, 0; }

// Data as send() takes it: a string, a tensor's bytes or those of a frame that came.
std::shared_ptr<const PeerData> data_of(Call& call, const Options& opt) {
  if (!opt.has("data")) return nullptr;
  lua_State* L = call.L;
  opt.push("data");
  const int index = lua_gettop(L);
  std::shared_ptr<PeerData> data;
  if (lua_type(L, index) == LUA_TSTRING) {
    size_t size = 0;
    const char* text = lua_tolstring(L, index, &size);
    data = PeerData::of(size);
    if (size) std::memcpy(data->bytes.get(), text, size);
  } else if (const auto held = lua::to_object<HeldFrame>(L, index)) {
    held->bytes(call.name);
    lua_pop(L, 1);
    return held->data;
  } else if (lua::is_class(L, index, "Tensor")) {
    const TensorPtr x = opt.get<TensorPtr>("data");
    data = PeerData::of(x->view.bytes());
    if (data->size) read_bytes(*x, data->bytes.get());
  } else {
    fail("value", "bad option 'data' of '", call.name, "': string, Tensor or Frame expected, got ",
         lua::type_text(L, index));
  }
  lua_pop(L, 1);
  return data;
}

// ---------------------------------------------------------------- peers

Peers& peers_of(const Call& call) { return *call.self<OpenPeers>()->peers; }

int open(Call& call) {
  const Options opt(call, 1, {"keys", "listen", "limit"});
  const auto keys = keys_at(opt, "keys");
  PeerOptions options;
  options.listen = opt.get<std::string>("listen", "");
  options.limit = opt.get("limit", options.limit);
  options.public_key = keys->own().public_key;
  options.secret_key = keys->own().secret_key;
  options.who = [keys](const std::string& key) { return keys->name_of(key); };
  const auto refused = std::make_shared<Refused>();
  options.refused = [refused](const std::string& key, const std::string& address) { refused->add(key, address); };
  auto peers = peer_library().open(options);
  return call.push(std::make_shared<OpenPeers>(OpenPeers{keys, refused, std::move(peers)}));
}

int port(Call& call) { return call.push(peers_of(call).port()); }

int dial(Call& call) {
  const auto self = call.self<OpenPeers>();
  const auto address = call.arg<std::string>(1);
  std::vector<std::string> candidates;
  if (call.has(2)) {
    candidates.push_back(self->keys->key_of(call.arg<std::string>(2)));
  } else {
    for (const auto& [name, key] : self->keys->known()) candidates.push_back(key);
    candidates.push_back(self->keys->own().public_key);
  }
  return call.push(self->peers->dial(address, candidates));
}

int hang_up(Call& call) { return peers_of(call).hang_up(call.arg<int>(1)), 0; }

int send(Call& call) {
  const auto self = call.self<OpenPeers>();
  const int peer = call.arg<int>(1);
  const Options opt(call, 2, {"type", "request", "position", "epoch", "text", "data"});
  PeerHeader header;
  header.type = peer_frame_type(opt.get<std::string>("type"));
  header.request = opt.get<uint64_t>("request", 0);
  header.position = opt.get<uint64_t>("position", 0);
  header.epoch = opt.get<uint32_t>("epoch", 0);
  self->peers->send(peer,
                    std::make_shared<const PeerFrame>(header, opt.get<std::string>("text", ""), data_of(call, opt)));
  return 0;
}

int refused(Call& call) {
  lua_State* L = call.L;
  lua_newtable(L);
  int count = 0;
  for (const Refused::Stranger& stranger : call.self<OpenPeers>()->refused->take()) {
    lua_newtable(L);
    set_field(L, "key", stranger.key);
    set_field(L, "address", stranger.address);
    lua_rawseti(L, -2, ++count);
  }
  return 1;
}

int room(Call& call) { return call.push(peers_of(call).room(call.arg<int>(1))); }

int wait(Call& call) {
  const auto self = call.self<OpenPeers>();
  std::optional<PeerEvent> event;
  const bool came = in_slices(call.arg<double>(1), [&](double slice) {
    event = self->peers->wait(slice);
    return event.has_value();
  });
  if (!came) return 0;
  lua_State* L = call.L;
  lua_newtable(L);
  set_field(L, "peer", event->peer);
  if (event->kind == PeerEvent::Kind::here) {
    set_field(L, "kind", "here");
    set_field(L, "key", event->key);
    set_field(L, "name", event->name);
  } else if (event->kind == PeerEvent::Kind::gone) {
    set_field(L, "kind", "gone");
    set_field(L, "why", event->why);
  } else {
    const PeerFrame& frame = *event->frame;
    set_field(L, "kind", "frame");
    set_field(L, "type", peer_frame_name(frame.header.type));
    set_field(L, "request", static_cast<double>(frame.header.request));
    set_field(L, "position", static_cast<double>(frame.header.position));
    set_field(L, "epoch", frame.header.epoch);
    lua_pushlstring(L, frame.text().data(), frame.text().size());
    lua_setfield(L, -2, "text");
    set_field(L, "frame", std::make_shared<HeldFrame>(HeldFrame{frame.shared_data()}));
  }
  return 1;
}

int stats(Call& call) {
  const PeerStats now = peers_of(call).stats(call.arg<int>(1));
  lua_State* L = call.L;
  lua_newtable(L);
  set_field(L, "here", now.here);
  set_field(L, "round_trip_ms", now.round_trip * 1e3);
  set_field(L, "bytes_sent", now.bytes_sent);
  set_field(L, "bytes_received", now.bytes_received);
  set_field(L, "frames_sent", now.frames_sent);
  set_field(L, "frames_received", now.frames_received);
  set_field(L, "unsent", now.unsent);
  set_field(L, "times_here", now.times_here);
  return 1;
}

int close(Call& call) {
  const auto self = call.self<OpenPeers>();
  const double seconds = call.arg<double>(1, 0.0);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  in_slices(seconds, [&](double slice) { return self->peers->sent(slice); });
  const double left = std::chrono::duration<double>(end - Clock::now()).count();
  self->peers->close(interrupt_came() ? 0 : std::clamp(left, 0.0, 1e6));
  return 0;
}

// ---------------------------------------------------------------- discovery

int beacon_port(const Options& opt) {
  const int port = opt.get("port", kBeaconPort);
  if (port < 1 || port > 65535) fail("value", "a beacon's UDP port is ", port, ", expected 1 to 65535");
  return port;
}

int beacon(Call& call) {
  const Options opt(call, 1, {"peers", "port", "interface"});
  const auto self = opt.get<std::shared_ptr<OpenPeers>>("peers");
  if (self->peers->port() == 0) fail("value", "beacon: these peers do not listen: give listen to q.peers.open");
  const std::string datagram = make_beacon(self->peers->port(), self->keys->own().public_key);
  return call.push(std::make_shared<Beacon>(
      Beacon{peer_library().broadcast(beacon_port(opt), opt.get<std::string>("interface", ""), datagram)}));
}

int beacon_close(Call& call) { return call.self<Beacon>()->broadcast.reset(), 0; }

int beacon_refresh(Call& call) { return call.push(call.self<Beacon>()->broadcast->refresh()); }

Ear ear_of(const Options& opt) {
  const auto keys = keys_at(opt, "keys");
  std::map<std::string, std::string> known = keys->known();
  known[keys->own().name] = keys->own().public_key;
  return {std::move(known), peer_library().broadcast(beacon_port(opt), opt.get<std::string>("interface", ""), ""), {}};
}

int listen(Call& call) {
  return call.push(std::make_shared<Ear>(ear_of(Options(call, 1, {"keys", "port", "interface"}))));
}

// Those that were not heard before, within so many seconds.
int push_heard(const Call& call, Ear& self, double seconds) {
  constexpr int kMostAtOnce = 1000;
  constexpr size_t kMostTold = 1000;         // who copies a beacon can send it from any address and port
  std::map<std::string, HeardBeacon> heard;  // by address
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  int left = kMostAtOnce;
  in_slices(seconds, [&](double slice) {
    std::string from, datagram;
    HeardBeacon beacon;
    for (; left > 0 && self.broadcast->hear(slice, &from, &datagram); slice = 0, --left) {
      if (!recognise_beacon(datagram, self.known, &beacon)) continue;
      const std::string address = from + ":" + std::to_string(beacon.port);
      if (self.told.size() < kMostTold && self.told.insert(address + " " + beacon.name).second) heard[address] = beacon;
    }
    return left == 0 || Clock::now() >= end;
  });
  lua_State* L = call.L;
  lua_newtable(L);
  int count = 0;
  for (const auto& [address, beacon] : heard) {
    lua_newtable(L);
    set_field(L, "name", beacon.name);
    set_field(L, "public", beacon.key);
    set_field(L, "address", address);
    lua_rawseti(L, -2, ++count);
  }
  return 1;
}

int find(Call& call) {
  const Options opt(call, 1, {"keys", "seconds", "port", "interface"});
  Ear ear = ear_of(opt);
  return push_heard(call, ear, opt.get("seconds", 1.5));
}
int heard(Call& call) { return push_heard(call, *call.self<Ear>(), call.arg<double>(1, 0.0)); }

}  // namespace

void register_peers(lua_State* L) {
  using lua::fn;
  lua::functions(L, "", {{"keys", fn<keys>}});
  lua::functions(L, "peers", {{"open", fn<open>}, {"beacon", fn<beacon>}, {"find", fn<find>}, {"listen", fn<listen>}});
  lua::methods<OpenPeers>(L, {{"port", fn<port>},
                              {"dial", fn<dial>},
                              {"hang_up", fn<hang_up>},
                              {"send", fn<send>},
                              {"room", fn<room>},
                              {"wait", fn<wait>},
                              {"refused", fn<refused>},
                              {"stats", fn<stats>},
                              {"close", fn<close>}});
  lua::methods<HeldFrame>(L, {{"bytes", fn<frame_bytes>},
                              {"data", fn<frame_data>},
                              {"tensor", fn<frame_tensor>},
                              {"into", fn<frame_into>},
                              {"free", fn<frame_free>}});
  lua::methods<Beacon>(L, {{"close", fn<beacon_close>}, {"refresh", fn<beacon_refresh>}});
  lua::methods<Ear>(L, {{"heard", fn<heard>}});
}

}  // namespace qeng
