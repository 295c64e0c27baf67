#include "engine/parquet/column.h"

#include <zlib.h>

#include <algorithm>
#include <bit>

#include "engine/parquet/thrift.h"
#include "engine/parquet/unpack.h"

namespace qeng {
namespace {

constexpr size_t kMostPage = 1 << 30;
constexpr uint64_t kMostLengths = 1 << 26;  // of the texts of one page

struct PageHeader {
  int64_t type = -1, size = 0, packed = 0, values = 0, encoding = -1, definition_bytes = 0, repetition_bytes = 0;
  int64_t crc = 0;
  bool has_crc = false, compressed = true;
};

PageHeader read_header(ThriftReader& thrift) {
  PageHeader header;
  using Type = ThriftReader::Type;
  thrift.fields([&](int id, Type type) {
    switch (id) {
      case 1: header.type = thrift.integer(); break;
      case 2: header.size = thrift.integer(); break;
      case 3: header.packed = thrift.integer(); break;
      case 4: header.crc = thrift.integer(), header.has_crc = true; break;
      case 5:
      case 7:
      case 8:
        thrift.fields([&](int inner, Type of) {
          const int encoding = id == 8 ? 4 : 2;
          if (inner == 1)
            header.values = thrift.integer();
          else if (inner == encoding)
            header.encoding = thrift.integer();
          else if (id == 8 && inner == 5)
            header.definition_bytes = thrift.integer();
          else if (id == 8 && inner == 6)
            header.repetition_bytes = thrift.integer();
          else if (id == 8 && inner == 7)
            header.compressed = of == Type::yes;
          else
            thrift.skip(of);
        });
        break;
      default: thrift.skip(type);
    }
  });
  if (header.size < 0 || header.packed < 0 || header.values < 0 || header.definition_bytes < 0 ||
      header.repetition_bytes < 0 || static_cast<uint64_t>(header.size) > kMostPage)
    fail("format", "a page of ", header.size, " bytes with ", header.values, " values");
  return header;
}

int bits_for(int most) { return std::bit_width(static_cast<unsigned>(most)); }

}  // namespace

ParquetColumn::ParquetColumn(std::string_view file, const ParquetNode& leaf, const ParquetChunk& chunk)
    : file_(file),
      leaf_(leaf),
      chunk_(chunk),
      at_(chunk.offset),
      end_(chunk.offset + chunk.bytes),
      left_in_chunk_(chunk.values) {
  next();
}

size_t ParquetColumn::width() const {
  switch (leaf_.type) {
    case ParquetType::int32:
    case ParquetType::float32: return 4;
    case ParquetType::int64:
    case ParquetType::float64: return 8;
    case ParquetType::int96: return 12;
    case ParquetType::fixed: return static_cast<size_t>(leaf_.fixed_bytes);
    default: return 0;
  }
}
bool ParquetColumn::is_text() const {
  return leaf_.type == ParquetType::bytes || leaf_.type == ParquetType::fixed || leaf_.type == ParquetType::int96;
}

// The next page of values; false at the chunk's end.
bool ParquetColumn::begin_page() {
  while (left_in_page_ == 0) {
    if (left_in_chunk_ == 0) return false;
    if (at_ >= end_) fail("format", "a column ends early");
    ThriftReader thrift(file_.substr(at_, end_ - at_));
    const PageHeader header = read_header(thrift);
    at_ += thrift.consumed();
    if (static_cast<uint64_t>(header.packed) > end_ - at_) fail("format", "a page is longer than its column");
    const std::string_view packed = file_.substr(at_, static_cast<size_t>(header.packed));
    at_ += packed.size();
    if (header.has_crc && static_cast<uint32_t>(header.crc) !=
                              crc32(0, reinterpret_cast<const Bytef*>(packed.data()), static_cast<uInt>(packed.size())))
      fail("format", "a page is damaged: its checksum differs");
    const auto size = static_cast<size_t>(header.size);
    const auto values = static_cast<uint64_t>(header.values);
    if (header.type == 2) {
      dictionary_page_ = unpack_page(chunk_.codec, packed, size);
      read_dictionary(dictionary_page_, values);
    } else if (header.type == 0) {
      page_ = unpack_page(chunk_.codec, packed, size);
      PageBytes bytes(page_);
      if (leaf_.repetition > 0) repetitions_ = RunReader(bytes.take(bytes.word(4)), bits_for(leaf_.repetition));
      if (leaf_.defined > 0) definitions_ = RunReader(bytes.take(bytes.word(4)), bits_for(leaf_.defined));
      begin_values(static_cast<int>(header.encoding), bytes.rest(), values);
    } else if (header.type == 3) {
      PageBytes bytes(packed);  // levels lie in front, not packed
      const std::string_view repetitions = bytes.take(static_cast<size_t>(header.repetition_bytes));
      const std::string_view definitions = bytes.take(static_cast<size_t>(header.definition_bytes));
      if (size < repetitions.size() + definitions.size()) fail("format", "a page is shorter than its levels");
      repetitions_ = RunReader(repetitions, bits_for(leaf_.repetition));
      definitions_ = RunReader(definitions, bits_for(leaf_.defined));
      const size_t rest = size - repetitions.size() - definitions.size();
      page_ = header.compressed && rest > 0 ? unpack_page(chunk_.codec, bytes.rest(), rest) : std::string(bytes.rest());
      begin_values(static_cast<int>(header.encoding), page_, values);
    }
  }
  return true;
}

void ParquetColumn::read_dictionary(std::string_view page, uint64_t count) {
  if (count > page.size()) fail("format", "a dictionary of ", count, " values in ", page.size(), " bytes");
  dictionary_bytes_.clear(), dictionary_numbers_.clear();
  PageBytes from(page);
  for (uint64_t i = 0; i < count; ++i) {
    plain_value(from);
    if (is_text())
      dictionary_bytes_.push_back(bytes_);
    else
      dictionary_numbers_.push_back(number_);
  }
}

void ParquetColumn::begin_values(int encoding, std::string_view page, uint64_t count) {
  left_in_page_ = std::min(count, left_in_chunk_);
  const auto lengths = [&](DeltaReader& from) {
    if (from.count() > kMostLengths) fail("unsupported", "a page of ", from.count(), " texts");
    lengths_.clear(), next_length_ = 0;
    for (uint64_t n = from.count(); n > 0; --n) lengths_.push_back(from.next());
  };
  switch (encoding) {
    case 0: encoding_ = leaf_.type == ParquetType::boolean ? Encoding::runs : Encoding::plain; break;
    case 2:
    case 8: encoding_ = Encoding::dictionary; break;
    case 3: encoding_ = Encoding::runs; break;
    case 5: encoding_ = Encoding::delta; break;
    case 6: encoding_ = Encoding::delta_lengths; break;
    case 7: encoding_ = Encoding::delta_bytes; break;
    case 9: encoding_ = Encoding::split; break;
    default: fail("unsupported", "values in encoding ", encoding);
  }
  if (page.empty()) {  // all of them null, or of no length
    plain_ = PageBytes(page);
    if (encoding_ != Encoding::plain) encoding_ = Encoding::none;
    return;
  }
  switch (encoding_) {
    case Encoding::dictionary: indices_ = RunReader(page.substr(1), static_cast<uint8_t>(page[0])); break;
    case Encoding::runs:
      if (leaf_.type != ParquetType::boolean) fail("format", "runs of values that are not booleans");
      if (encoding == 0) {  // plain booleans: one packed run
        packed_booleans_ = PackedBits(page, 1), plain_booleans_ = true;
      } else {
        PageBytes bytes(page);
        indices_ = RunReader(bytes.take(bytes.word(4)), 1), plain_booleans_ = false;
      }
      break;
    case Encoding::delta:
      if (leaf_.type != ParquetType::int32 && leaf_.type != ParquetType::int64)
        fail("format", "differences of values that are no integers");
      deltas_ = DeltaReader(page);
      break;
    case Encoding::delta_lengths: {
      if (leaf_.type != ParquetType::bytes) fail("format", "lengths of values that are not bytes");
      DeltaReader from(page);
      lengths(from);
      plain_ = PageBytes(from.rest());
      break;
    }
    case Encoding::delta_bytes: {
      if (leaf_.type != ParquetType::bytes && leaf_.type != ParquetType::fixed)
        fail("format", "prefixes of values that are not bytes");
      DeltaReader prefixes(page);
      if (prefixes.count() > kMostLengths) fail("unsupported", "a page of ", prefixes.count(), " texts");
      prefix_lengths_.clear();
      for (uint64_t n = prefixes.count(); n > 0; --n) prefix_lengths_.push_back(prefixes.next());
      DeltaReader suffixes(prefixes.rest());
      lengths(suffixes);
      if (lengths_.size() != prefix_lengths_.size()) fail("format", "prefixes and suffixes differ in number");
      plain_ = PageBytes(suffixes.rest());
      last_.clear();
      break;
    }
    case Encoding::split:
      if (width() == 0 || page.size() % width() != 0) fail("format", "split values of ", page.size(), " bytes");
      split_ = page, split_at_ = 0;
      break;
    default: plain_ = PageBytes(page);
  }
}

void ParquetColumn::plain_value(PageBytes& from) {
  if (leaf_.type == ParquetType::bytes)
    bytes_ = from.take(from.word(4));
  else if (is_text())
    bytes_ = from.take(width());
  else
    number_ = from.word(width());
}

void ParquetColumn::read_value() {
  switch (encoding_) {
    case Encoding::plain: return plain_value(plain_);
    case Encoding::runs: number_ = plain_booleans_ ? packed_booleans_.next() : indices_.next(); return;
    case Encoding::delta:
      number_ = deltas_.next();
      if (leaf_.type == ParquetType::int32) number_ &= UINT32_MAX;
      return;
    case Encoding::dictionary: {
      const uint32_t index = indices_.next();
      const size_t size = is_text() ? dictionary_bytes_.size() : dictionary_numbers_.size();
      if (index >= size) fail("format", "value ", index, " of a dictionary of ", size);
      if (is_text())
        bytes_ = dictionary_bytes_[index];
      else
        number_ = dictionary_numbers_[index];
      return;
    }
    case Encoding::delta_lengths:
    case Encoding::delta_bytes: {
      if (next_length_ == lengths_.size()) fail("format", "texts end early");
      const size_t i = next_length_++;
      const std::string_view tail = plain_.take(lengths_[i]);
      if (encoding_ == Encoding::delta_lengths) return void(bytes_ = tail);
      if (prefix_lengths_[i] > last_.size()) fail("format", "a prefix is longer than the text before");
      last_.resize(prefix_lengths_[i]);
      last_ += tail;
      if (last_.size() > kMostPage || (leaf_.type == ParquetType::fixed && last_.size() != width()))
        fail("format", "a text of ", last_.size(), " bytes");
      bytes_ = last_;
      return;
    }
    case Encoding::split: {
      const size_t values = split_.size() / width();
      if (split_at_ == values) fail("format", "split values end early");
      split_value_.clear();
      for (size_t byte = 0; byte < width(); ++byte) split_value_ += split_[byte * values + split_at_];
      ++split_at_;
      PageBytes one(split_value_);
      return plain_value(one);
    }
    default: fail("format", "a page without its values");
  }
}

void ParquetColumn::next() {
  if (!begin_page()) return void(done_ = true);
  --left_in_page_, --left_in_chunk_;
  repetition_ = leaf_.repetition > 0 ? static_cast<int>(repetitions_.next()) : 0;
  defined_ = leaf_.defined > 0 ? static_cast<int>(definitions_.next()) : 0;
  if (repetition_ > leaf_.repetition || defined_ > leaf_.defined) fail("format", "a level beyond the schema's");
  if (defined_ == leaf_.defined) read_value();
}

}  // namespace qeng
