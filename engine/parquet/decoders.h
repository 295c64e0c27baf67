// Encodings of Parquet's pages, one value at a time. Source: parquet-format, Encodings.md.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/error.h"

namespace qeng {

// Bytes of a page, read front to back; Error("format") beyond their end.
class PageBytes {
 public:
  PageBytes() = default;
  explicit PageBytes(std::string_view bytes) : rest_(bytes) {}
  std::string_view take(size_t size) {
    if (size > rest_.size()) fail("format", "a page ends early");
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  uint64_t word(size_t bytes) {  // little-endian
    uint64_t value = 0;
    const std::string_view taken = take(bytes);
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(taken[i])) << (8 * i);
    return value;
  }
  uint64_t varint() {
    uint64_t n = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint64_t b = word(1);
      n |= (b & 127) << shift;
      if (b < 128) return n;
    }
    fail("format", "a number in a page is too long");
  }
  int64_t zigzag() {
    const uint64_t n = varint();
    return static_cast<int64_t>(n >> 1) ^ -static_cast<int64_t>(n & 1);
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

// Numbers of `width` bits, packed from the least significant bit on.
class PackedBits {
 public:
  PackedBits() = default;
  PackedBits(std::string_view bytes, int width) : bytes_(bytes), width_(width) {}
  uint64_t next() {
    uint64_t value = 0;
    for (int got = 0; got < width_;) {
      const size_t at = bit_ / 8;
      if (at >= bytes_.size()) fail("format", "packed numbers end early");
      const int shift = static_cast<int>(bit_ % 8), some = std::min(8 - shift, width_ - got);
      value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes_[at]) >> shift & ((1 << some) - 1)) << got;
      got += some, bit_ += static_cast<size_t>(some);
    }
    return value;
  }

 private:
  std::string_view bytes_;
  int width_ = 0;
  size_t bit_ = 0;
};

// Runs of one value and of packed ones: levels, indices of a dictionary, booleans.
class RunReader {
 public:
  RunReader() = default;
  RunReader(std::string_view bytes, int width) : bytes_(bytes), width_(width) {
    if (width < 0 || width > 32) fail("format", "runs of ", width, " bits");
  }
  uint32_t next() {
    while (left_ == 0) begin_run();
    --left_;
    return packed_run_ ? static_cast<uint32_t>(packed_.next()) : value_;
  }

 private:
  void begin_run() {
    if (width_ == 0 && bytes_.rest().empty()) return void(left_ = UINT64_MAX);  // nothing but zeros
    const uint64_t head = bytes_.varint();
    packed_run_ = head & 1;
    if (packed_run_) {
      left_ = head >> 1;
      if (left_ > bytes_.rest().size()) fail("format", "a packed run is longer than its page");
      const size_t size = std::min(bytes_.rest().size(), static_cast<size_t>(left_) * static_cast<size_t>(width_));
      packed_ = PackedBits(bytes_.take(size), width_);
      left_ *= 8;
    } else {
      left_ = head >> 1;
      value_ = static_cast<uint32_t>(bytes_.word(static_cast<size_t>(width_ + 7) / 8));
    }
  }
  PageBytes bytes_;
  int width_ = 0;
  uint64_t left_ = 0;
  bool packed_run_ = false;
  uint32_t value_ = 0;
  PackedBits packed_;
};

// DELTA_BINARY_PACKED: integers as differences in blocks.
class DeltaReader {
 public:
  DeltaReader() = default;
  explicit DeltaReader(std::string_view page) : bytes_(page) {
    const uint64_t block = bytes_.varint(), minis = bytes_.varint();
    left_ = bytes_.varint();
    value_ = static_cast<uint64_t>(bytes_.zigzag());
    if (minis == 0 || minis > 4096 || block == 0 || block % minis != 0 || block / minis > 1 << 20 ||
        block / minis % 8 != 0)
      fail("format", "a block of ", block, " differences in ", minis, " parts");
    minis_ = minis, per_mini_ = block / minis;
  }
  uint64_t count() const { return left_; }
  uint64_t next() {
    if (left_ == 0) fail("format", "differences end early");
    const uint64_t given = value_;
    if (--left_ > 0) {
      if (in_mini_ == 0) begin_mini();
      --in_mini_;
      value_ += least_ + packed_.next();
    }
    return given;
  }
  std::string_view rest() const { return bytes_.rest(); }  // behind the last block, once all are read

 private:
  void begin_mini() {
    if (mini_ == minis_) mini_ = 0;
    if (mini_ == 0) {
      least_ = static_cast<uint64_t>(bytes_.zigzag());
      widths_ = bytes_.take(minis_);
    }
    const auto width = static_cast<uint8_t>(widths_[mini_++]);
    if (width > 64) fail("format", "differences of ", width, " bits");
    packed_ = PackedBits(bytes_.take(per_mini_ / 8 * width), width);
    in_mini_ = per_mini_;
  }
  PageBytes bytes_;
  std::string_view widths_;
  uint64_t minis_ = 0, per_mini_ = 0, mini_ = 0, in_mini_ = 0, left_ = 0, value_ = 0, least_ = 0;
  PackedBits packed_;
};

}  // namespace qeng
