// What a hop between peers costs on loopback, with and without encryption: qeng_unit "peers: figures", which is no part
// of a test run.
#include <algorithm>
#include <thread>

#include "tests/unit/peers_fixture.h"

namespace qeng {
using namespace peers_test;

TEST_CASE("peers: figures", "[.bench]") {
  for (bool plain : {false, true}) {
    const Scratch scratch;
    const PeerKeys keys(scratch / "keys", "anna");
    PeerOptions options{.listen = "127.0.0.1:0",
                        .public_key = keys.own().public_key,
                        .secret_key = keys.own().secret_key,
                        .who = [&](const std::string& key) { return keys.name_of(key); },
                        .plain = plain};
    const auto listener = peer_library().open(options);
    options.listen = "";
    const auto dialer = peer_library().open(options);
    const int there = dialer->dial(local(listener->port()), {keys.own().public_key});
    here(*dialer);
    const int back = here(*listener).peer;
    const auto round_trip = [&](size_t bytes, int count) {
      std::thread echo([&] {
        for (int i = 0; i < count; ++i) {
          const PeerFramePtr came = frame(*listener);
          listener->send(back, step(came->header.request, came->shared_data()));
        }
      });
      const auto data = PeerData::of(bytes);
      std::fill_n(data->bytes.get(), bytes, 7);
      const double began = now();
      for (int i = 0; i < count; ++i) {
        dialer->send(there, step(1, data));
        frame(*dialer);
      }
      const double seconds = (now() - began) / count;
      echo.join();
      return seconds;
    };
    const auto one_way = [&](size_t bytes, int count) {
      const auto data = PeerData::of(bytes);
      std::fill_n(data->bytes.get(), bytes, 7);
      const double began = now();
      std::thread sink([&] {
        for (int i = 0; i < count; ++i) frame(*listener);
      });
      for (int i = 0; i < count; ++i) {
        while (dialer->room(there) < bytes + 1000) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        dialer->send(there, step(1, data));
      }
      sink.join();
      return static_cast<double>(bytes) * count / (now() - began) / 1e9;
    };
    round_trip(8192, 200);
    std::printf(
        "%s: 8 KiB there and back %.0f us, 4 MiB %.2f ms; one way, 4 MiB each: %.2f GB/s, 8 KiB each: %.3f GB/s\n",
        plain ? "plain" : "CURVE", 1e6 * round_trip(8192, 3000), 1e3 * round_trip(4 << 20, 40), one_way(4 << 20, 200),
        one_way(8192, 20000));
  }
}

}  // namespace qeng
