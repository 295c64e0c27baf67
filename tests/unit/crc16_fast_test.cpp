#include "kernels/crc16_fast.h"

#include <random>
#include <vector>

#include "kernels/math/crc16.h"
#include "tests/catch.h"

using namespace qeng;

TEST_CASE("the fast crc16 equals the bytewise sum at every length, alignment and start") {
  std::mt19937 random(1);
  std::vector<uint8_t> data(1100);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  for (uint16_t start : {kCrcCcittFalse, kCrcXmodem, uint16_t{0x1234}}) {
    int wrong = 0;
    for (size_t offset = 0; offset < 17; ++offset) {
      uint16_t slow = start;
      for (size_t bytes = 0; offset + bytes < data.size(); ++bytes) {
        wrong += crc16_fast(start, &data[offset], bytes) != slow;
        slow = crc16_byte(slow, data[offset + bytes]);
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the fast crc16 continues where another sum stopped") {
  std::mt19937 random(2);
  std::vector<uint8_t> data(70000);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random());
  uint16_t whole = kCrcCcittFalse;
  for (uint8_t byte : data) whole = crc16_byte(whole, byte);
  CHECK(crc16_fast(kCrcCcittFalse, data.data(), data.size()) == whole);
  for (int i = 0; i < 200; ++i) {
    const size_t cut = random() % data.size();
    const uint16_t first = crc16_fast(kCrcCcittFalse, data.data(), cut);
    CHECK(crc16_fast(first, data.data() + cut, data.size() - cut) == whole);
  }
}
