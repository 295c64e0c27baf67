// DecodePackets by reading the frames one after another, as engine/packets/frame.h describes them.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// Records one after another, some masked, now and then one of several frames; pieces of them with gaps between.
Op decode_packets(Draw& draw) {
  DecodePackets op;
  std::vector<double> bytes, pieces;
  const auto put = [&](int64_t value, int count) {
    for (int shift = 8 * (count - 1); shift >= 0; shift -= 8)
      bytes.push_back(static_cast<double>(value >> shift & 255));
  };
  int64_t slots = draw.integer(0, 3);
  for (int64_t record = 0, records = draw.integer(0, 6); record < records; ++record) {
    const int64_t all = draw.integer(0, 19) ? draw.size(60) : draw.pick<int64_t>({16383, 16384, 16390});
    const bool masked = draw.flip();
    const int64_t begin = draw.integer(0, all - 1), count = draw.flip() ? all - begin : draw.integer(1, all - begin);
    for (int64_t value : {slots, count, static_cast<int64_t>(bytes.size()), begin, all, int64_t{masked}})
      pieces.push_back(static_cast<double>(value));
    for (int64_t first = 0; first <= all; first += 16383) {
      const int64_t tokens = std::min<int64_t>(16383, all - first);
      put(0xAA0100, 3), put(0x01, 1), put(4 * tokens, 2);
      for (int64_t i = 0; i < tokens; ++i) put(draw.integer(0, INT32_MAX), 4);
      put(draw.integer(0, 65535), 2);
    }
    if (masked) {
      put(0xAA0100, 3), put(0x08, 1), put((all + 7) / 8, 2);
      for (int64_t i = 0; i < (all + 7) / 8; ++i) put(draw.integer(0, 255), 1);
      put(draw.integer(0, 65535), 2);
    }
    slots += count + draw.integer(0, 2);
  }
  slots = std::max<int64_t>(slots, 1);
  for (int64_t unused = draw.integer(0, 2); unused > 0; --unused)
    for (int64_t value : {slots, int64_t{0}, int64_t{0}, int64_t{0}, int64_t{0}, int64_t{0}})
      pieces.push_back(static_cast<double>(value));
  op.frames = draw.values(DType::u8, bytes);
  op.pieces = draw.values(DType::i64, pieces);
  op.pieces.rank = 2, op.pieces.shape[0] = static_cast<int64_t>(pieces.size()) / 6, op.pieces.shape[1] = 6;
  op.tokens = draw.empty(DType::i32, {slots}), op.targets = draw.empty_like(op.tokens),
  op.positions = draw.empty_like(op.tokens);
  op.pad = draw.pick({0, 151643});
  return op;
}

}  // namespace

template <class T>
void reference(const DecodePackets& op, Sheet<T>& sheet) {
  const std::vector<int64_t> bytes = sheet.integers(op.frames), pieces = sheet.integers(op.pieces);
  Array<T>&tokens = sheet.out(op.tokens, Sheet<T>::Check::exact),
  &targets = sheet.out(op.targets, Sheet<T>::Check::exact),
  &positions = sheet.out(op.positions, Sheet<T>::Check::exact);
  for (int64_t t = 0; t < tokens.size(); ++t) tokens[t] = T(op.pad), targets[t] = T(-1), positions[t] = T(0);
  for (size_t p = 0; p < pieces.size(); p += 6) {
    const int64_t slot = pieces[p], count = pieces[p + 1], begin = pieces[p + 3], all = pieces[p + 4];
    if (count == 0) continue;
    std::vector<int64_t> words, bits;
    size_t at = static_cast<size_t>(pieces[p + 2]);
    const auto frame = [&](int64_t type,
                           auto&& payload) {  // one frame: AA, SRC, DST, TYP, LEN in two bytes, payload, CRC
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
      if (i + 1 < count && (bits.empty() || bits.at(place + 1)))
        targets[slot + i] = T(static_cast<double>(words.at(place + 1)));
    }
  }
}

QENG_CONFORMANCE(DecodePackets, .make = decode_packets, .free_shape = {"frames"});

}  // namespace qeng::conformance
