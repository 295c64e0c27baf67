// Records that hold no tokens: numbers, text or JSON, as frames of one type.
//   All frames but the last hold exactly full_payload(type) bytes, the most whole elements that fit a frame; the last
//   holds fewer (perhaps none), so that bare frames show where the record ends, as with tokens.
//
//   float32, float16, bfloat16   IEEE bits, big-endian, as all numbers in frames
//   int8                         two's complement
//   ternary    four a byte, lowest bits first: 00 is 0, 01 is +1, 10 is -1; 11 is refused
//   one_bit    eight a byte, lowest bit first: 0 is -1, 1 is +1
//   utf8       well-formed UTF-8          meta       one JSON value
//
// Ternary and one-bit records hold whole bytes: 4 or 8 values at a time. (As little-endian words they are the packing
// of 16 and 32 values a word.)
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "engine/packets/frame.h"

namespace qeng {

constexpr bool is_payload(FrameType type) {
  return type >= FrameType::float32 && type <= FrameType::meta && type != FrameType::loss_mask;
}
const char* frame_type_name(FrameType type);  // "float32", "token_ids"
std::optional<FrameType> payload_type_from_name(std::string_view name);
std::string payload_type_names();  // for messages: "float32, float16, ..."

constexpr size_t payload_unit(FrameType type) {  // bytes of an element
  return type == FrameType::float32 ? 4 : type == FrameType::float16 || type == FrameType::bfloat16 ? 2 : 1;
}
constexpr size_t full_payload(FrameType type) { return kMaxPayload / payload_unit(type) * payload_unit(type); }
constexpr size_t kLeastFullPayload = full_payload(FrameType::float32);  // of all types
constexpr size_t payload_frames(FrameType type, size_t bytes) { return bytes / full_payload(type) + 1; }
constexpr size_t values_per_byte(FrameType type) {
  return type == FrameType::ternary ? 4 : type == FrameType::one_bit ? 8 : 1;
}

// What is wrong with these bytes as a whole record of `type`; "" where nothing is.
std::string payload_problem(FrameType type, std::span<const uint8_t> bytes);

// Appends the frames of one record. Bytes with a payload_problem, or too many for kMaxRecordFrames: Error("value").
void append_payload(std::vector<uint8_t>& out, FrameType type, std::span<const uint8_t> bytes, uint8_t src, uint8_t dst,
                    CrcVariant variant = CrcVariant::ccitt_false);

// Numbers to bytes and back, for the numeric types. A number that the type does not hold (it would become infinite, or
// is none of -1, 0, 1) is Error("value") with its place; floats are rounded to nearest. unpack: of bytes without a
// payload_problem.
std::vector<uint8_t> pack_values(FrameType type, std::span<const double> values);
std::vector<double> unpack_values(FrameType type, std::span<const uint8_t> bytes);

// Big-endian elements of `unit` bytes to this machine's order, or back.
void swap_elements(std::span<uint8_t> bytes, size_t unit);

}  // namespace qeng
