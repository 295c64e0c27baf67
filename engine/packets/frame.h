// NDP frames, what packets are made of (numbers big-endian):
//   0xAA | SRC u8 | DST u8 | TYP u8 | LEN u16 | payload, LEN bytes | CRC-16 of SRC .. end of payload
// A record is one document: TOKEN_IDS frames (tokens as i32), of which all but the last hold exactly kFrameTokens
// tokens (so a document of a multiple of that length ends with an empty frame), then, where not every token is trained,
// LOSS_MASK frames (bit t of the payloads laid end to end, least significant first, says whether token t is a target).
// A record may be a payload of another type instead: engine/packets/payload.h.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace qeng {

constexpr uint8_t kFrameStart = 0xAA;
constexpr size_t kFrameOverhead = 8;
constexpr size_t kMaxPayload = 65535;   // LEN is a u16
constexpr size_t kFrameTokens = 16383;  // the most i32 that fit a payload
constexpr size_t kMaxRecordFrames = 65535;
constexpr size_t kFrameHeader = 6;  // bytes before the payload

enum class FrameType : uint8_t {
  token_ids = 0x01,
  float32 = 0x02,
  float16 = 0x03,
  int8 = 0x04,
  ternary = 0x05,
  bfloat16 = 0x06,
  one_bit = 0x07,
  loss_mask = 0x08,
  utf8 = 0x09,
  meta = 0x0A,
};
// Who made the data (0x40 .. 0x7F are the user's), and which parameters it is to move.
namespace packet_source {
constexpr uint8_t text_corpus = 0x01, code_repo = 0x02, chat = 0x03, instruction = 0x04, gradient = 0x05,
                  activation = 0x06, kv_cache = 0x07, synthetic = 0x08;
}
namespace packet_destination {
constexpr uint8_t all = 0x00, embedding = 0x01, attention = 0x02, ffn = 0x03, norm = 0x04, lora = 0x05, lm_head = 0x06;
}

enum class CrcVariant : uint8_t { ccitt_false, xmodem };

// payload points into the bytes that were parsed.
struct Frame {
  uint8_t src = 0, dst = 0;
  FrameType type = FrameType::token_ids;
  std::span<const uint8_t> payload;
  size_t bytes() const { return payload.size() + kFrameOverhead; }
};

// Appends one frame to `out`. A payload over kMaxPayload is Error("value").
void append_frame(std::vector<uint8_t>& out, uint8_t src, uint8_t dst, FrameType type, std::span<const uint8_t> payload,
                  CrcVariant variant = CrcVariant::ccitt_false);

// The sum that stands at the end of a frame; bytes: SRC .. end of payload.
uint16_t frame_crc(std::span<const uint8_t> bytes, CrcVariant variant);

// True, and `frame` set, where `bytes` begins with a whole frame whose CRC is right.
bool parse_frame(std::span<const uint8_t> bytes, CrcVariant variant, Frame& frame);

// Frames that a document of so many tokens takes, and their bytes.
constexpr size_t token_frames(size_t tokens) { return tokens / kFrameTokens + 1; }
constexpr size_t mask_bytes(size_t tokens) { return (tokens + 7) / 8; }
constexpr size_t mask_frames(size_t tokens) { return (mask_bytes(tokens) + kMaxPayload - 1) / kMaxPayload; }
constexpr size_t record_bytes(size_t tokens, bool masked) {
  return token_frames(tokens) * kFrameOverhead + tokens * 4 +
         (masked ? mask_frames(tokens) * kFrameOverhead + mask_bytes(tokens) : 0);
}

// Appends the frames of one document. mask: one byte a token, nonzero where it is a target, or empty: every token is.
// A mask of another length, a negative token, no token or more than kMaxRecordFrames frames is Error("value").
void append_record(std::vector<uint8_t>& out, std::span<const int32_t> tokens, std::span<const uint8_t> mask,
                   uint8_t src, uint8_t dst, CrcVariant variant = CrcVariant::ccitt_false);

// Payloads to values, appended. token_ids whose length is not a multiple of 4 gives false.
bool append_tokens(std::vector<int32_t>& tokens, std::span<const uint8_t> payload);
void append_mask(std::vector<uint8_t>& mask, std::span<const uint8_t> payload, size_t tokens);

// Damage, never silent: frames whose CRC failed, by the SRC that their header shows.
struct FrameErrors {
  std::array<uint64_t, 256> by_source{};
  uint64_t total = 0;
  void count(uint8_t src) { ++by_source[src], ++total; }
};

}  // namespace qeng
