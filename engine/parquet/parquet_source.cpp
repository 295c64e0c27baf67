#include "engine/parquet/parquet_source.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "engine/formats/mapped_file.h"
#include "engine/parquet/column.h"
#include "engine/tokenizer/unicode.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr size_t kMostRow = 1 << 28;  // bytes of JSON

void append_string(std::string& json, std::string_view text) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\', json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      json += escaped;
    } else {
      json += c;
    }
  }
  json += '"';
}

template <class Number>
void append_number(std::string& json, Number number) {
  char text[64];
  json.append(text, std::to_chars(text, text + sizeof text, number).ptr);
}

// JSON has no infinities and no NaN: null, as pandas and browsers write them.
template <class Float>
void append_float(std::string& json, Float number) {
  if (!std::isfinite(number)) return void(json += "null");
  const size_t before = json.size();
  append_number(json, number);
  if (json.find_first_of(".e", before) == json.npos) json += ".0";
}

float from_half(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const float magnitude = exponent == 0    ? std::ldexp(static_cast<float>(fraction), -24)
                          : exponent == 31 ? (fraction ? NAN : INFINITY)
                                           : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
  return half >> 15 ? -magnitude : magnitude;
}

// Proleptic Gregorian, days from 1970-01-01 (Hinnant, days_from_civil's inverse).
void append_padded(std::string& json, int64_t number, size_t digits) {
  if (number < 0) json += '-', number = -number;
  const std::string text = std::to_string(number);
  json.append(digits - std::min(digits, text.size()), '0').append(text);
}

// Proleptic Gregorian, days from 1970-01-01 (Hinnant's civil_from_days).
void append_date(std::string& json, int64_t days) {
  days += 719468;
  const int64_t era = (days >= 0 ? days : days - 146096) / 146097, of_era = days - era * 146097;
  const int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  const int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100),
                month = (5 * of_year + 2) / 153;
  append_padded(json, year_of_era + era * 400 + (month >= 10), 4);
  json += '-';
  append_padded(json, month < 10 ? month + 3 : month - 9, 2);
  json += '-';
  append_padded(json, of_year - (153 * month + 2) / 5 + 1, 2);
}

void append_time(std::string& json, int64_t ticks, int64_t per_second) {
  const int64_t seconds = ticks / per_second, rest = ticks % per_second;
  append_padded(json, seconds / 3600, 2);
  json += ':';
  append_padded(json, seconds / 60 % 60, 2);
  json += ':';
  append_padded(json, seconds % 60, 2);
  if (rest == 0) return;
  json += '.';
  append_padded(json, rest, per_second == 1000 ? 3 : per_second == 1'000'000 ? 6 : 9);
}

void append_timestamp(std::string& json, int64_t ticks, int64_t per_second, bool utc) {
  const int64_t per_day = per_second * 86400;
  int64_t days = ticks / per_day, rest = ticks % per_day;
  if (rest < 0) rest += per_day, --days;
  json += '"';
  append_date(json, days);
  json += 'T';
  append_time(json, rest, per_second);
  json += utc ? "Z\"" : "\"";
}

// Two's complement of any length, most significant byte first, with `scale` digits behind the point.
void append_decimal(std::string& json, std::string_view bytes, int scale) {
  const bool negative = !bytes.empty() && (bytes[0] & 0x80);
  std::string magnitude(bytes);
  if (negative) {
    for (char& byte : magnitude) byte = static_cast<char>(~byte);
    for (size_t i = magnitude.size(); i-- > 0;)
      if (++magnitude[i] != 0) break;
  }
  std::string digits;  // least significant first
  while (std::any_of(magnitude.begin(), magnitude.end(), [](char byte) { return byte != 0; })) {
    unsigned rest = 0;
    for (char& byte : magnitude) {
      rest = rest << 8 | static_cast<uint8_t>(byte);
      byte = static_cast<char>(rest / 10), rest %= 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  while (digits.size() <= static_cast<size_t>(scale)) digits += '0';
  if (negative) json += '-';
  for (size_t i = digits.size(); i-- > 0;) {
    json += digits[i];
    if (i == static_cast<size_t>(scale) && i > 0) json += '.';
  }
}

std::string big_endian(uint64_t number, int bytes) {
  std::string made;
  for (int i = bytes - 1; i >= 0; --i) made += static_cast<char>(number >> (8 * i));
  return made;
}

// Text is left as it is: who reads the line repairs it, and counts that.
void append_bytes(std::string& json, std::string_view bytes, bool text) {
  std::string storage;
  if (text || bytes.empty() || valid_utf8(bytes, storage).data() == bytes.data()) return append_string(json, bytes);
  json += "{\"bytes\": " + std::to_string(bytes.size()) + "}";
}

void append_value(std::string& json, const ParquetNode& leaf, const ParquetColumn& column) {
  const uint64_t number = column.number();
  const bool narrow = leaf.type == ParquetType::int32;
  const int64_t integer = narrow ? static_cast<int32_t>(number) : static_cast<int64_t>(number);
  const bool is_integer = narrow || leaf.type == ParquetType::int64;
  const bool is_bytes = leaf.type == ParquetType::bytes || leaf.type == ParquetType::fixed;
  if (leaf.type == ParquetType::boolean) return void(json += number ? "true" : "false");
  if (leaf.type == ParquetType::float32) return append_float(json, std::bit_cast<float>(static_cast<uint32_t>(number)));
  if (leaf.type == ParquetType::float64) return append_float(json, std::bit_cast<double>(number));
  if (leaf.type == ParquetType::int96) {  // nanoseconds of the day, and the Julian day
    int64_t nanoseconds = 0;
    uint32_t day = 0;
    std::memcpy(&nanoseconds, column.bytes().data(), 8), std::memcpy(&day, column.bytes().data() + 8, 4);
    json += '"';
    append_date(json, static_cast<int64_t>(day) - 2440588);
    json += 'T';
    append_time(json, std::clamp<int64_t>(nanoseconds, 0, 86'399'999'999'999), 1'000'000'000);
    return void(json += '"');
  }
  switch (leaf.meaning) {
    case ParquetMeaning::decimal:
      return append_decimal(json, is_integer ? big_endian(number, narrow ? 4 : 8) : column.bytes(), leaf.scale);
    case ParquetMeaning::date:
      if (!is_integer) break;
      json += '"';
      append_date(json, integer);
      return void(json += '"');
    case ParquetMeaning::time:
      if (!is_integer || leaf.per_second == 0) break;
      json += '"';
      append_time(json, std::max<int64_t>(integer, 0), leaf.per_second);
      return void(json += '"');
    case ParquetMeaning::timestamp:
      if (!is_integer || leaf.per_second == 0) break;
      return append_timestamp(json, integer, leaf.per_second, leaf.utc);
    case ParquetMeaning::uuid: {
      if (column.bytes().size() != 16 || !is_bytes) break;
      json += '"';
      for (size_t i = 0; i < 16; ++i) {
        constexpr char kDigits[] = "0123456789abcdef";
        const auto byte = static_cast<uint8_t>(column.bytes()[i]);
        if (i == 4 || i == 6 || i == 8 || i == 10) json += '-';
        json += kDigits[byte >> 4], json += kDigits[byte & 15];
      }
      return void(json += '"');
    }
    case ParquetMeaning::float16:
      if (column.bytes().size() != 2 || !is_bytes) break;
      return append_float(json, from_half(static_cast<uint16_t>(static_cast<uint8_t>(column.bytes()[0]) |
                                                                static_cast<uint8_t>(column.bytes()[1]) << 8)));
    default: break;
  }
  if (is_bytes) return append_bytes(json, column.bytes(), leaf.meaning == ParquetMeaning::text);
  if (leaf.is_unsigned) return append_number(json, narrow ? uint64_t{static_cast<uint32_t>(number)} : number);
  append_number(json, integer);
}

class ParquetSource final : public InputSource {
 public:
  explicit ParquetSource(const std::string& path) : file_(MappedFile::open(path)) {
    named([&] { read_parquet_metadata(file_->text(), metadata_); });
  }
  uint64_t consumed() const override {
    return metadata_.groups.empty() ? file_->size() : file_->size() * group_ / metadata_.groups.size();
  }
  size_t read(char* to, size_t bytes) override {
    while (at_ == line_.size())
      if (!named([&] { return next_row(); })) return 0;
    const size_t n = std::min(bytes, line_.size() - at_);
    std::memcpy(to, line_.data() + at_, n);
    at_ += n;
    return n;
  }

 private:
  // What fn raises, with the file's name.
  template <class Fn>
  auto named(Fn fn) -> decltype(fn()) {
    try {
      return fn();
    } catch (const Error& error) {
      fail(error.code.c_str(), file_->path(), ": Parquet: ", error.what());
    }
  }

  bool next_row() {
    while (row_ == rows_) {
      if (group_ == metadata_.groups.size()) return false;
      columns_.clear();
      const ParquetRowGroup& group = metadata_.groups[group_++];
      for (size_t i = 0; i < metadata_.leaves.size(); ++i)
        columns_.emplace_back(new ParquetColumn(file_->text(), *metadata_.leaves[i], group.columns[i]));
      row_ = 0, rows_ = metadata_.leaves.empty() ? 0 : group.rows;
    }
    ++row_;
    line_.clear(), at_ = 0;
    write_fields(metadata_.root);
    line_ += '\n';
    return true;
  }

  ParquetColumn& column(const ParquetNode& node) {
    ParquetColumn& column = *columns_[static_cast<size_t>(node.first_leaf)];
    if (column.done()) fail("format", "column ", node.name, " has too few values");
    return column;
  }
  // The entry of a node that is not there, or of a list that is empty: one in each column under it.
  void pass(const ParquetNode& node) {
    if (!node.group) return column(node).next();
    for (const ParquetNode& child : node.children) pass(child);
  }
  void write_fields(const ParquetNode& group) {
    line_ += '{';
    for (const ParquetNode& child : group.children) {
      if (&child != &group.children.front()) line_ += ", ";
      std::string storage;
      append_string(line_, valid_utf8(child.name, storage));
      line_ += ": ";
      write(child);
    }
    line_ += '}';
  }
  void write(const ParquetNode& node) {
    if (node.repeated) return write_repeated(node, [&] { write_one(node); });  // a list of before lists were annotated
    if (node.optional && column(node).defined() < node.defined) {
      pass(node);
      line_ += "null";
      return;
    }
    write_one(node);
  }
  void write_one(const ParquetNode& node) {
    if (line_.size() > kMostRow) fail("unsupported", "a row of over ", kMostRow >> 20, " MiB");
    if (!node.group) {
      append_value(line_, node, column(node));
      return column(node).next();
    }
    const bool wraps = node.children.size() == 1 && node.children[0].repeated;
    if (node.meaning == ParquetMeaning::list && wraps) {
      const ParquetNode& repeated = node.children[0];
      const bool is_element = !repeated.group || repeated.children.size() != 1 || repeated.name == "array" ||
                              repeated.name == node.name + "_tuple";
      return write_repeated(repeated, [&] { is_element ? write_one(repeated) : write(repeated.children[0]); });
    }
    if (node.meaning == ParquetMeaning::map && wraps && node.children[0].children.size() == 2)
      return write_map(node.children[0]);
    write_fields(node);
  }
  template <class Element>
  void write_repeated(const ParquetNode& node, Element element, char open = '[', char close = ']') {
    line_ += open;
    if (column(node).defined() < node.defined) {
      pass(node);
    } else {
      for (bool first = true;; first = false) {
        if (!first) line_ += ", ";
        element();
        const ParquetColumn& next = *columns_[static_cast<size_t>(node.first_leaf)];
        if (next.done() || next.repetition() < node.repetition) break;
      }
    }
    line_ += close;
  }
  void write_map(const ParquetNode& pairs) {
    const ParquetNode &key = pairs.children[0], &value = pairs.children[1];
    const bool is_object = !key.group && key.type == ParquetType::bytes && key.meaning == ParquetMeaning::text &&
                           !key.repeated && !key.optional;
    write_repeated(
        pairs,
        [&] {
          if (!is_object) line_ += '[';
          write(key);
          line_ += is_object ? ": " : ", ";
          write(value);
          if (!is_object) line_ += ']';
        },
        is_object ? '{' : '[', is_object ? '}' : ']');
  }

  std::shared_ptr<const MappedFile> file_;
  ParquetMetadata metadata_;
  std::vector<std::unique_ptr<ParquetColumn>> columns_;
  size_t group_ = 0;
  uint64_t row_ = 0, rows_ = 0;
  std::string line_;
  size_t at_ = 0;
};

}  // namespace

std::unique_ptr<InputSource> open_parquet(const std::string& path) { return std::make_unique<ParquetSource>(path); }

}  // namespace qeng
