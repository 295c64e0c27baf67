// CRC-16 with the CCITT polynomial x^16 + x^12 + x^5 + 1 (0x1021), most significant bit first, no final xor.
// "123456789" gives 0x29B1 from kCrcCcittFalse and 0x31C3 from kCrcXmodem. A sum continues where another stopped:
// crc16(crc16(start, a), b) is the sum of a followed by b.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace qeng {

constexpr uint16_t kCrcCcittFalse = 0xFFFF;
constexpr uint16_t kCrcXmodem = 0x0000;

// One byte, without a table: the four shifts are x^8 * byte reduced by the polynomial. For devices and short headers.
constexpr uint16_t crc16_byte(uint16_t crc, uint8_t byte) {
  uint32_t x = static_cast<uint8_t>(crc >> 8) ^ byte;
  x ^= x >> 4;
  return static_cast<uint16_t>((crc << 8) ^ (x << 12) ^ (x << 5) ^ x);
}

// tables[k][b]: the sum of byte b followed by k zero bytes, so that eight bytes are summed by eight independent
// look-ups.
struct Crc16Tables {
  uint16_t at[8][256];
};
constexpr Crc16Tables make_crc16_tables() {
  Crc16Tables tables{};
  for (int b = 0; b < 256; ++b) tables.at[0][b] = crc16_byte(0, static_cast<uint8_t>(b));
  for (int k = 1; k < 8; ++k)
    for (int b = 0; b < 256; ++b) tables.at[k][b] = crc16_byte(tables.at[k - 1][b], 0);
  return tables;
}
inline constexpr Crc16Tables kCrc16Tables = make_crc16_tables();

inline uint16_t crc16(uint16_t crc, const void* data, size_t bytes) {
  const auto* p = static_cast<const uint8_t*>(data);
  const auto& t = kCrc16Tables.at;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    crc = static_cast<uint16_t>(t[7][p[0] ^ (crc >> 8)] ^ t[6][p[1] ^ (crc & 0xFF)] ^ t[5][p[2]] ^ t[4][p[3]] ^
                                t[3][p[4]] ^ t[2][p[5]] ^ t[1][p[6]] ^ t[0][p[7]]);
  }
  for (; bytes > 0; --bytes, ++p) crc = static_cast<uint16_t>((crc << 8) ^ t[0][(crc >> 8) ^ *p]);
  return crc;
}

}  // namespace qeng
