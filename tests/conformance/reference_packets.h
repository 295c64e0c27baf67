// DecodePackets by reading the frames one after another, as engine/packets/frame.h describes them.
#pragma once
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const DecodePackets& op, Sheet<T>& sheet) {
  const std::vector<int64_t> bytes = sheet.integers(op.frames), pieces = sheet.integers(op.pieces);
  Array<T>&tokens = sheet.out(op.tokens, Sheet<T>::Check::exact), &targets = sheet.out(op.targets, Sheet<T>::Check::exact),
          &positions = sheet.out(op.positions, Sheet<T>::Check::exact);
  for (int64_t t = 0; t < tokens.size(); ++t) tokens[t] = T(op.pad), targets[t] = T(-1), positions[t] = T(0);
  for (size_t p = 0; p < pieces.size(); p += 6) {
    const int64_t slot = pieces[p], count = pieces[p + 1], begin = pieces[p + 3], all = pieces[p + 4];
    if (count == 0) continue;
    std::vector<int64_t> words, bits;
    size_t at = static_cast<size_t>(pieces[p + 2]);
    const auto frame = [&](int64_t type, auto&& payload) {  // one frame: AA, SRC, DST, TYP, LEN in two bytes, payload, CRC
      if (bytes.at(at) != 0xAA || bytes.at(at + 3) != type) throw std::logic_error("no frame of this type here");
      const size_t length = static_cast<size_t>(bytes[at + 4] * 256 + bytes[at + 5]);
      payload(at + 6, length);
      at += length + 8;
    };
    for (bool full = true; full;)
      frame(0x01, [&](size_t from, size_t length) {
        for (size_t i = from; i < from + length; i += 4)
          words.push_back(((bytes[i] * 256 + bytes[i + 1]) * 256 + bytes[i + 2]) * 256 + bytes[i + 3]);
        full = length == 16383 * 4;
      });
    while (pieces[p + 5] && static_cast<int64_t>(bits.size()) < all)
      frame(0x08, [&](size_t from, size_t length) {
        for (size_t i = from; i < from + length; ++i)
          for (int bit = 0; bit < 8; ++bit) bits.push_back(bytes[i] >> bit & 1);
      });
    for (int64_t i = 0; i < count; ++i) {
      const size_t place = static_cast<size_t>(begin + i);
      tokens[slot + i] = T(static_cast<double>(words.at(place))), positions[slot + i] = T(static_cast<double>(i));
      if (i + 1 < count && (bits.empty() || bits.at(place + 1))) targets[slot + i] = T(static_cast<double>(words.at(place + 1)));
    }
  }
}

}  // namespace qeng::conformance
