#include "engine/packets/frame.h"

#include <algorithm>

#include "kernels/crc16_fast.h"
#include "kernels/error.h"
#include "kernels/math/crc16.h"

namespace qeng {

uint16_t frame_crc(std::span<const uint8_t> bytes, CrcVariant variant) {
  return crc16_fast(variant == CrcVariant::xmodem ? kCrcXmodem : kCrcCcittFalse, bytes.data(), bytes.size());
}

namespace {

uint16_t big16(const uint8_t* p) { return static_cast<uint16_t>(p[0] << 8 | p[1]); }
uint32_t big32(const uint8_t* p) { return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3]; }
void put32(uint8_t* p, uint32_t v) {
  p[0] = static_cast<uint8_t>(v >> 24), p[1] = static_cast<uint8_t>(v >> 16);
  p[2] = static_cast<uint8_t>(v >> 8), p[3] = static_cast<uint8_t>(v);
}
bool known_type(uint8_t type) {
  return type >= static_cast<uint8_t>(FrameType::token_ids) && type <= static_cast<uint8_t>(FrameType::meta);
}

// Room for a frame at the end of out, header written; returns where the payload goes. seal() then writes the CRC.
uint8_t* open_frame(std::vector<uint8_t>& out, uint8_t src, uint8_t dst, FrameType type, size_t payload) {
  const size_t at = out.size();
  out.resize(at + payload + kFrameOverhead);
  uint8_t* p = out.data() + at;
  p[0] = kFrameStart, p[1] = src, p[2] = dst, p[3] = static_cast<uint8_t>(type);
  p[4] = static_cast<uint8_t>(payload >> 8), p[5] = static_cast<uint8_t>(payload);
  return p + kFrameHeader;
}
void seal(uint8_t* payload, size_t bytes, CrcVariant variant) {
  const uint16_t crc = frame_crc({payload - kFrameHeader + 1, kFrameHeader - 1 + bytes}, variant);
  payload[bytes] = static_cast<uint8_t>(crc >> 8), payload[bytes + 1] = static_cast<uint8_t>(crc);
}

}  // namespace

void append_frame(std::vector<uint8_t>& out, uint8_t src, uint8_t dst, FrameType type, std::span<const uint8_t> payload,
                  CrcVariant variant) {
  if (payload.size() > kMaxPayload)
    fail("value", "a frame's payload of ", payload.size(), " bytes is over ", kMaxPayload);
  uint8_t* p = open_frame(out, src, dst, type, payload.size());
  std::copy(payload.begin(), payload.end(), p);
  seal(p, payload.size(), variant);
}

bool parse_frame(std::span<const uint8_t> bytes, CrcVariant variant, Frame& frame) {
  if (bytes.size() < kFrameOverhead || bytes[0] != kFrameStart || !known_type(bytes[3])) return false;
  const size_t payload = big16(&bytes[4]);
  if (bytes.size() < payload + kFrameOverhead) return false;
  const uint16_t crc = frame_crc(bytes.subspan(1, kFrameHeader - 1 + payload), variant);
  if (crc != big16(&bytes[kFrameHeader + payload])) return false;
  frame = {bytes[1], bytes[2], static_cast<FrameType>(bytes[3]), bytes.subspan(kFrameHeader, payload)};
  return true;
}

void append_record(std::vector<uint8_t>& out, std::span<const int32_t> tokens, std::span<const uint8_t> mask,
                   uint8_t src, uint8_t dst, CrcVariant variant) {
  if (tokens.empty()) fail("value", "a record needs at least one token");
  if (!mask.empty() && mask.size() != tokens.size())
    fail("value", "the loss mask has ", mask.size(), " entries for ", tokens.size(), " tokens");
  if (tokens.size() > UINT32_MAX || token_frames(tokens.size()) + mask_frames(tokens.size()) > kMaxRecordFrames)
    fail("value", "a document of ", tokens.size(), " tokens is too long for one record: split it");
  for (size_t t = 0; t < tokens.size(); ++t)
    if (tokens[t] < 0) fail("value", "token ", t, " of the document is ", tokens[t], ", which is negative");

  for (size_t frame = 0, frames = token_frames(tokens.size()); frame < frames; ++frame) {
    const auto part =
        tokens.subspan(frame * kFrameTokens, std::min(kFrameTokens, tokens.size() - frame * kFrameTokens));
    uint8_t* p = open_frame(out, src, dst, FrameType::token_ids, part.size() * 4);
    for (size_t i = 0; i < part.size(); ++i) put32(p + 4 * i, static_cast<uint32_t>(part[i]));
    seal(p, part.size() * 4, variant);
  }
  for (size_t at = 0; at < mask.size(); at += kMaxPayload * 8) {
    const auto part = mask.subspan(at, std::min(kMaxPayload * 8, mask.size() - at));
    uint8_t* p = open_frame(out, src, dst, FrameType::loss_mask, mask_bytes(part.size()));
    for (size_t i = 0; i < part.size(); ++i) p[i / 8] = static_cast<uint8_t>(p[i / 8] | (part[i] != 0) << (i % 8));
    seal(p, mask_bytes(part.size()), variant);
  }
}

bool append_tokens(std::vector<int32_t>& tokens, std::span<const uint8_t> payload) {
  if (payload.size() % 4 != 0) return false;
  const size_t at = tokens.size(), count = payload.size() / 4;
  tokens.resize(at + count);
  for (size_t i = 0; i < count; ++i) tokens[at + i] = static_cast<int32_t>(big32(payload.data() + 4 * i));
  return true;
}

void append_mask(std::vector<uint8_t>& mask, std::span<const uint8_t> payload, size_t tokens) {
  const size_t at = mask.size(), count = std::min(tokens - at, payload.size() * 8);
  mask.resize(at + count);
  for (size_t i = 0; i < count; ++i) mask[at + i] = payload[i / 8] >> (i % 8) & 1;
}

}  // namespace qeng
