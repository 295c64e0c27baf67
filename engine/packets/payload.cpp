#include "engine/packets/payload.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"
#include "kernels/math/bf16.h"

namespace qeng {
namespace {

struct Name {
  FrameType type;
  const char* name;
};
constexpr Name kNames[] = {{FrameType::float32, "float32"},     {FrameType::float16, "float16"},
                           {FrameType::bfloat16, "bfloat16"},   {FrameType::int8, "int8"},
                           {FrameType::ternary, "ternary"},     {FrameType::one_bit, "one_bit"},
                           {FrameType::utf8, "utf8"},           {FrameType::meta, "meta"},
                           {FrameType::token_ids, "token_ids"}, {FrameType::loss_mask, "loss_mask"}};

[[noreturn]] void no_such_value(FrameType type, size_t at, double value, const char* expected) {
  fail("value", "value ", at + 1, " of the ", frame_type_name(type), " payload is ", value, ", expected ", expected);
}

// The bits of a value, `unit` bytes of them.
uint32_t float_bits(FrameType type, double value, size_t at) {
  const auto x = static_cast<float>(value);
  uint32_t bits = bits_of(x);
  bool infinite = std::isinf(x);
  if (type == FrameType::float16) bits = to_f16(x).bits, infinite = std::isinf(to_f32(f16{to_f16(x).bits}));
  if (type == FrameType::bfloat16) bits = to_bf16(x).bits, infinite = std::isinf(to_f32(to_bf16(x)));
  if (infinite && std::isfinite(value)) no_such_value(type, at, value, "a number of its range");
  return bits;
}

double float_value(FrameType type, const uint8_t* p) {
  const auto half = static_cast<uint16_t>(p[0] << 8 | p[1]);
  if (type == FrameType::float16) return static_cast<double>(to_f32(f16{half}));
  if (type == FrameType::bfloat16) return static_cast<double>(to_f32(bf16{half}));
  return static_cast<double>(float_of(uint32_t{half} << 16 | uint32_t{p[2]} << 8 | p[3]));
}

std::string utf8_problem(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const int length = utf8_length(text.substr(at));
    if (length <= 0) return "byte " + std::to_string(at) + " begins no UTF-8 character";
    at += static_cast<size_t>(length);
  }
  return "";
}

}  // namespace

const char* frame_type_name(FrameType type) {
  for (const Name& known : kNames)
    if (known.type == type) return known.name;
  return "unknown";
}

std::optional<FrameType> payload_type_from_name(std::string_view name) {
  for (const Name& known : kNames)
    if (is_payload(known.type) && name == known.name) return known.type;
  return std::nullopt;
}

std::string payload_type_names() {
  std::string names;
  for (const Name& known : kNames)
    if (is_payload(known.type)) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

std::string payload_problem(FrameType type, std::span<const uint8_t> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!is_payload(type)) return std::string(frame_type_name(type)) + " is no type of a payload";
  if (bytes.size() % payload_unit(type) != 0)
    return std::to_string(bytes.size()) + " bytes are no whole number of " + frame_type_name(type) + " values";
  if (type == FrameType::ternary) {
    const auto bad = std::find_if(bytes.begin(), bytes.end(), [](uint8_t b) { return (b & b >> 1 & 0x55) != 0; });
    if (bad != bytes.end()) return "byte " + std::to_string(bad - bytes.begin()) + " holds the ternary code 11";
  }
  if (type == FrameType::utf8) return utf8_problem(text);
  if (type == FrameType::meta && !nlohmann::json::accept(text)) return "it is not JSON";
  return "";
}

void append_payload(std::vector<uint8_t>& out, FrameType type, std::span<const uint8_t> bytes, uint8_t src, uint8_t dst,
                    CrcVariant variant) {
  if (const std::string problem = payload_problem(type, bytes); !problem.empty())
    fail("value", "a ", frame_type_name(type), " payload cannot be written: ", problem);
  const size_t frames = payload_frames(type, bytes.size()), full = full_payload(type);
  if (frames > kMaxRecordFrames)
    fail("value", "a payload of ", bytes.size(), " bytes is too long for one record: split it");
  for (size_t frame = 0; frame < frames; ++frame)
    append_frame(out, src, dst, type, bytes.subspan(frame * full, std::min(full, bytes.size() - frame * full)),
                 variant);
}

std::vector<uint8_t> pack_values(FrameType type, std::span<const double> values) {
  const size_t group = values_per_byte(type), unit = payload_unit(type);
  if (!is_payload(type) || type == FrameType::utf8 || type == FrameType::meta)
    fail("value", frame_type_name(type), " holds no numbers");
  if (values.size() % group != 0)
    fail("value", "a ", frame_type_name(type), " payload holds a multiple of ", group, " values, given ", values.size(),
         ": pad it");
  std::vector<uint8_t> out(values.size() * unit / group);
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = values[i];
    uint8_t& byte = out[i * unit / group];
    if (type == FrameType::ternary) {
      if (value != 0 && value != 1 && value != -1) no_such_value(type, i, value, "-1, 0 or 1");
      byte = static_cast<uint8_t>(byte | (value == 0 ? 0 : value == 1 ? 1 : 2) << (i % 4 * 2));
    } else if (type == FrameType::one_bit) {
      if (value != 1 && value != -1) no_such_value(type, i, value, "-1 or 1");
      byte = static_cast<uint8_t>(byte | (value == 1) << (i % 8));
    } else if (type == FrameType::int8) {
      if (value != std::floor(value) || value < -128 || value > 127)
        no_such_value(type, i, value, "a whole number from -128 to 127");
      byte = static_cast<uint8_t>(static_cast<int8_t>(value));
    } else {
      const uint32_t bits = float_bits(type, value, i);
      for (size_t b = 0; b < unit; ++b) (&byte)[b] = static_cast<uint8_t>(bits >> 8 * (unit - 1 - b));
    }
  }
  return out;
}

std::vector<double> unpack_values(FrameType type, std::span<const uint8_t> bytes) {
  const size_t group = values_per_byte(type), unit = payload_unit(type);
  std::vector<double> out(bytes.size() / unit * group);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint8_t* p = &bytes[i * unit / group];
    if (type == FrameType::ternary) {
      const int code = *p >> (i % 4 * 2) & 3;
      out[i] = code == 2 ? -1 : code;
    } else if (type == FrameType::one_bit) {
      out[i] = *p >> (i % 8) & 1 ? 1 : -1;
    } else {
      out[i] = type == FrameType::int8 ? static_cast<double>(static_cast<int8_t>(*p)) : float_value(type, p);
    }
  }
  return out;
}

void swap_elements(std::span<uint8_t> bytes, size_t unit) {
  for (size_t at = 0; unit > 1 && at + unit <= bytes.size(); at += unit) std::reverse(&bytes[at], &bytes[at] + unit);
}

}  // namespace qeng
