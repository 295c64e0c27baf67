#include "kernels/math/crc16.h"

#include <vector>

#include "tests/catch.h"

using namespace qeng;

TEST_CASE("crc16 gives the published check values") {
  CHECK(crc16(kCrcCcittFalse, "123456789", 9) == 0x29B1);
  CHECK(crc16(kCrcXmodem, "123456789", 9) == 0x31C3);
  CHECK(crc16(kCrcCcittFalse, "", 0) == 0xFFFF);
}

// The expected figures are those of Python's binascii.crc_hqx(data, start) for bytes (7 i + 3) mod 256.
TEST_CASE("crc16 equals binascii.crc_hqx at every kind of length") {
  struct Known {
    size_t bytes;
    uint16_t ccitt_false, xmodem;
  };
  const Known known[] = {{1, 0xd193, 0x3063},  {7, 0xa9fc, 0x5832},   {8, 0xae14, 0x9f2a},   {9, 0xc71c, 0xdf6e},
                         {15, 0x1e92, 0x5051}, {16, 0xccd5, 0xa6df},  {63, 0x56dc, 0xc5b9},  {64, 0x8064, 0x56be},
                         {65, 0x1ca7, 0x6d1c}, {255, 0xf12c, 0x17f0}, {1000, 0xa232, 0xa791}};
  std::vector<uint8_t> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(7 * i + 3);
  for (const Known& k : known) {
    CHECK(crc16(kCrcCcittFalse, data.data(), k.bytes) == k.ccitt_false);
    CHECK(crc16(kCrcXmodem, data.data(), k.bytes) == k.xmodem);
  }
}

TEST_CASE("crc16 continued over pieces equals the whole and the bit-by-bit definition") {
  std::vector<uint8_t> data(300);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * i + 11 * i);
  uint16_t slow = kCrcCcittFalse;
  for (uint8_t byte : data) {
    slow = static_cast<uint16_t>(slow ^ (byte << 8));
    for (int bit = 0; bit < 8; ++bit) slow = static_cast<uint16_t>(slow & 0x8000 ? (slow << 1) ^ 0x1021 : slow << 1);
  }
  const uint16_t whole = crc16(kCrcCcittFalse, data.data(), data.size());
  CHECK(whole == slow);
  for (size_t cut = 0; cut <= data.size(); cut += 7)
    CHECK(crc16(crc16(kCrcCcittFalse, data.data(), cut), data.data() + cut, data.size() - cut) == whole);
}
