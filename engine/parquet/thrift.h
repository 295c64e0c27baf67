// Thrift's compact protocol, as far as Parquet's footers and page headers need it. Source: thrift-compact-protocol.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "kernels/error.h"

namespace qeng {

class ThriftReader {
 public:
  enum Type : uint8_t {
    stop = 0,
    yes = 1,
    no = 2,
    i8 = 3,
    i16 = 4,
    i32 = 5,
    i64 = 6,
    real = 7,
    binary = 8,
    list = 9,
    set = 10,
    map = 11,
    record = 12
  };

  explicit ThriftReader(std::string_view bytes)
      : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  size_t consumed() const { return static_cast<size_t>(at_ - begin_); }

  // field(id, type) for each field of a record; it reads the value, or leaves it to skip(type).
  template <class Field>
  void fields(Field field) {
    int id = 0;
    const Nested nested(*this);
    for (;;) {
      const uint8_t head = byte();
      const auto type = static_cast<Type>(head & 15);
      if (type == stop) return;
      id = head >> 4 ? id + (head >> 4) : static_cast<int>(integer());
      field(id, type);
    }
  }
  // element(type) for each of a list.
  template <class Element>
  void elements(Element element) {
    const Nested nested(*this);
    const uint8_t head = byte();
    const uint64_t count = head >> 4 == 15 ? unsigned_integer() : head >> 4;
    if (count > static_cast<uint64_t>(end_ - at_)) damaged();  // each takes a byte at least
    for (uint64_t i = 0; i < count; ++i) element(static_cast<Type>(head & 15));
  }
  int64_t integer() {
    const uint64_t n = unsigned_integer();
    return static_cast<int64_t>(n >> 1) ^ -static_cast<int64_t>(n & 1);
  }
  std::string_view text() {
    const uint64_t size = unsigned_integer();
    if (size > static_cast<uint64_t>(end_ - at_)) damaged();
    at_ += size;
    return {at_ - size, static_cast<size_t>(size)};
  }
  void skip(Type type) {
    switch (type) {
      case yes:
      case no: return;
      case i8: byte(); return;
      case i16:
      case i32:
      case i64: unsigned_integer(); return;
      case real:
        if (end_ - at_ < 8) damaged();
        at_ += 8;
        return;
      case binary: text(); return;
      case list:
      case set: return elements([&](Type of) { of == yes || of == no ? void(byte()) : skip(of); });
      case record: return fields([&](int, Type of) { skip(of); });
      default: damaged();
    }
  }

 private:
  struct Nested {
    ThriftReader& reader;
    explicit Nested(ThriftReader& of) : reader(of) {
      if (++reader.depth_ > 32) reader.damaged();
    }
    ~Nested() { --reader.depth_; }
  };
  [[noreturn]] void damaged() const { fail("format", "its metadata are damaged"); }
  uint8_t byte() {
    if (at_ == end_) damaged();
    return static_cast<uint8_t>(*at_++);
  }
  uint64_t unsigned_integer() {
    uint64_t n = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t b = byte();
      n |= static_cast<uint64_t>(b & 127) << shift;
      if (b < 128) return n;
    }
    damaged();
  }
  const char *begin_, *at_, *end_;
  int depth_ = 0;
};

}  // namespace qeng
