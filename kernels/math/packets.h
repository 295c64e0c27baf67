// Where the tokens and mask bits of a record lie in its frames (the format is described in engine/packets/frame.h; a
// record of n tokens is regular, so that each place is a formula of n and the token's number).
#pragma once
#include <cstdint>

#include "kernels/math/host_device.h"

namespace qeng {

constexpr int64_t kPacketHeader = 6, kPacketOverhead = 8;         // bytes before a payload, and of a frame beside it
constexpr int64_t kPacketTokens = 16383, kPacketPayload = 65535;  // tokens and bytes of a full frame

// Byte of token i, big-endian i32, from the start of its record.
QENG_HD int64_t packet_token_byte(int64_t i) {
  return i / kPacketTokens * (kPacketOverhead + 4 * kPacketTokens) + kPacketHeader + i % kPacketTokens * 4;
}
// Byte that holds the mask bit of token i, bit i % 8, in a masked record of so many tokens.
QENG_HD int64_t packet_mask_byte(int64_t tokens, int64_t i) {
  const int64_t masks = (tokens / kPacketTokens + 1) * kPacketOverhead + 4 * tokens, byte = i / 8;
  return masks + byte / kPacketPayload * (kPacketOverhead + kPacketPayload) + kPacketHeader + byte % kPacketPayload;
}
// Bytes of a whole record.
QENG_HD int64_t packet_record_bytes(int64_t tokens, bool masked) {
  const int64_t bytes = (tokens / kPacketTokens + 1) * kPacketOverhead + 4 * tokens, mask = (tokens + 7) / 8;
  return masked ? bytes + (mask + kPacketPayload - 1) / kPacketPayload * kPacketOverhead + mask : bytes;
}

// A row of the pieces that DecodePackets takes (kernels/ops.h).
struct PacketPiece {
  int64_t slot, tokens, record, begin, record_tokens, masked;
};

QENG_HD bool packet_piece_fits(const PacketPiece& piece, int64_t slots, int64_t bytes) {
  const int64_t limit = int64_t{1} << 40;  // keeps the sums below from overflowing
  if (piece.tokens == 0) return piece.slot >= 0 && piece.slot <= slots;
  return piece.slot >= 0 && piece.tokens >= 0 && piece.slot <= slots && piece.tokens <= slots - piece.slot &&
         piece.begin >= 0 && piece.begin < limit && piece.record_tokens >= 0 && piece.record_tokens < limit &&
         piece.tokens <= piece.record_tokens - piece.begin && piece.record >= 0 && piece.record <= bytes &&
         packet_record_bytes(piece.record_tokens, piece.masked != 0) <= bytes - piece.record;
}

QENG_HD int32_t packet_token(const uint8_t* record, int64_t i) {
  const uint8_t* p = record + packet_token_byte(i);
  return static_cast<int32_t>(uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]});
}

// What slot piece.slot + i of a batch holds.
struct PacketSlot {
  int32_t token, target, position;
};
QENG_HD PacketSlot packet_slot(const PacketPiece& piece, const uint8_t* frames, int64_t i) {
  const uint8_t* record = frames + piece.record;
  const int64_t place = piece.begin + i, next = place + 1;
  PacketSlot slot = {packet_token(record, place), -1, static_cast<int32_t>(i)};
  if (i + 1 == piece.tokens) return slot;
  const bool trained = !piece.masked || (record[packet_mask_byte(piece.record_tokens, next)] >> (next % 8) & 1);
  if (trained) slot.target = packet_token(record, next);
  return slot;
}

}  // namespace qeng
