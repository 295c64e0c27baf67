#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include "engine/formats/gguf.h"
#include "engine/formats/gguf_types.h"
#include "kernels/error.h"

namespace qeng {
namespace {

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_string(std::string& out, const std::string& text) {
  append(out, uint64_t{text.size()});
  out += text;
}

template <class T>
void append_integer(std::string& out, const std::string& key, MetadataType type, const GgufMetadata::Scalar& value) {
  T fitted{};
  bool fits = false;
  std::visit(
      [&](const auto& number) {
        using Given = std::decay_t<decltype(number)>;
        if constexpr (std::is_same_v<Given, double>) {
          // The upper limit as a double may be one too large, so it is not itself a value that fits.
          fits = number == std::floor(number) && number >= static_cast<double>(std::numeric_limits<T>::min()) &&
                 number < std::ldexp(1.0, std::numeric_limits<T>::digits);
          if (fits) fitted = static_cast<T>(number);
        } else if constexpr (std::is_integral_v<Given> && !std::is_same_v<Given, bool>) {
          fits = std::in_range<T>(number);
          fitted = static_cast<T>(number);
        }
      },
      value);
  if (!fits) fail("value", "GGUF entry ", key, ": its value does not fit the type ", metadata_type_name(type));
  append(out, fitted);
}

double real(const std::string& key, MetadataType type, const GgufMetadata::Scalar& value) {
  return std::visit(
      [&](const auto& number) -> double {
        using Given = std::decay_t<decltype(number)>;
        if constexpr (std::is_arithmetic_v<Given> && !std::is_same_v<Given, bool>)
          return static_cast<double>(number);
        else
          fail("value", "GGUF entry ", key, ": expected a number of type ", metadata_type_name(type));
      },
      value);
}

void append_value(std::string& out, const std::string& key, MetadataType type, const GgufMetadata::Scalar& value) {
  switch (type) {
    case MetadataType::u8: return append_integer<uint8_t>(out, key, type, value);
    case MetadataType::i8: return append_integer<int8_t>(out, key, type, value);
    case MetadataType::u16: return append_integer<uint16_t>(out, key, type, value);
    case MetadataType::i16: return append_integer<int16_t>(out, key, type, value);
    case MetadataType::u32: return append_integer<uint32_t>(out, key, type, value);
    case MetadataType::i32: return append_integer<int32_t>(out, key, type, value);
    case MetadataType::u64: return append_integer<uint64_t>(out, key, type, value);
    case MetadataType::i64: return append_integer<int64_t>(out, key, type, value);
    case MetadataType::f32: return append(out, static_cast<float>(real(key, type, value)));
    case MetadataType::f64: return append(out, real(key, type, value));
    case MetadataType::boolean:
      if (!std::holds_alternative<bool>(value)) fail("value", "GGUF entry ", key, ": expected true or false");
      return append(out, static_cast<uint8_t>(std::get<bool>(value)));
    case MetadataType::string:
      if (!std::holds_alternative<std::string>(value)) fail("value", "GGUF entry ", key, ": expected a string");
      return append_string(out, std::get<std::string>(value));
    case MetadataType::array: break;
  }
  fail("value", "GGUF entry ", key, ": arrays of arrays are not written");
}

}  // namespace

bool GgufMetadata::has(const std::string& key) const { return keys_.count(key) > 0; }

void GgufMetadata::begin(const std::string& key) {
  if (key.empty() || key.size() > 65535) fail("value", "a GGUF key of ", key.size(), " bytes; expected 1 to 65535");
  if (!keys_.insert(key).second) fail("value", "GGUF entry ", key, " is given twice");
  append_string(encoded_, key);
}

void GgufMetadata::add(const std::string& key, MetadataType type, const Scalar& value) {
  begin(key);
  append(encoded_, static_cast<uint32_t>(type));
  append_value(encoded_, key, type, value);
}

void GgufMetadata::add(const std::string& key, MetadataType element, const std::vector<Scalar>& values) {
  begin(key);
  append(encoded_, static_cast<uint32_t>(MetadataType::array));
  append(encoded_, static_cast<uint32_t>(element));
  append(encoded_, uint64_t{values.size()});
  for (const Scalar& value : values) append_value(encoded_, key, element, value);
}

size_t GgufSpec::bytes() const {
  const DTypeInfo& info = dtype_info(dtype);
  if (shape.empty() || shape.size() > kMaxRank)
    fail("shape", "tensor ", name, " has ", shape.size(), " dimensions; GGUF takes 1 to ", kMaxRank);
  if (shape.back() % info.elements != 0)
    fail("shape", "tensor ", name, ": rows of ", shape.back(), " elements are not whole blocks of ", info.name, " (",
         info.elements, ")");
  size_t total = static_cast<size_t>(info.bytes);
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t dim = i + 1 == shape.size() ? shape[i] / info.elements : shape[i];
    if (dim <= 0 || __builtin_mul_overflow(total, static_cast<size_t>(dim), &total))
      fail("shape", "tensor ", name, ": a dimension is not positive, or its size overflows");
  }
  return total;
}

GgufWriter::GgufWriter(const std::string& path, std::vector<GgufSpec> specs, const GgufMetadata& metadata,
                       size_t part_bytes)
    : path_(path), specs_(std::move(specs)) {
  std::set<std::string> names;
  for (const GgufSpec& spec : specs_) {
    if (!find_gguf_type(spec.dtype))
      fail("dtype", path, ": tensor ", spec.name, " is ", dtype_name(spec.dtype), ", a type that GGUF lacks");
    if (spec.name.empty() || !names.insert(spec.name).second)
      fail("value", path, ": tensor name \"", spec.name, "\" is empty or declared twice");
  }
  divide(part_bytes);
  GgufMetadata of_part = metadata;
  size_t begin = 0;
  for (part_ = 0; part_ < parts_.size(); ++part_) {
    if (parts_.size() > 1) {
      of_part.add("split.no", MetadataType::u16, uint64_t{part_});
      of_part.add("split.count", MetadataType::u16, uint64_t{parts_.size()});
      of_part.add("split.tensors.count", MetadataType::i32, uint64_t{specs_.size()});
    }
    write_header(parts_[part_], begin, of_part);
    begin = parts_[part_].end;
    of_part = {};
  }
  part_ = 0;
}

void GgufWriter::divide(size_t part_bytes) {
  size_t bytes = 0;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const size_t more = specs_[i].bytes();
    if (parts_.empty() || (part_bytes && bytes + more > part_bytes && bytes)) {
      parts_.push_back({nullptr, i});
      bytes = 0;
    }
    bytes += more;
    parts_.back().end = i + 1;
  }
  if (parts_.size() <= 1) {
    parts_.resize(1);
    parts_[0] = {std::make_unique<AtomicFile>(path_), specs_.size()};
    return;
  }
  if (parts_.size() > 65535)
    fail("value", path_, ": ", parts_.size(), " parts, more than a split file has (65535): let them be larger");
  const std::string stem = path_.ends_with(".gguf") ? path_.substr(0, path_.size() - 5) : path_;
  for (size_t i = 0; i < parts_.size(); ++i) {
    char ending[40];
    std::snprintf(ending, sizeof ending, "-%05u-of-%05u.gguf", static_cast<unsigned>(i + 1),
                  static_cast<unsigned>(parts_.size()));
    if (std::error_code ignored; std::filesystem::exists(stem + ending, ignored))
      fail("value", stem, ending,
           ": is there already; remove the parts of the earlier file, or give this one another name");
    parts_[i].file = std::make_unique<AtomicFile>(stem + ending);
  }
}

void GgufWriter::write_header(const Part& part, size_t begin, const GgufMetadata& metadata) {
  std::string header = "GGUF";
  append(header, uint32_t{3});
  append(header, uint64_t{part.end - begin});
  append(header, metadata.count());
  header += metadata.encoded();
  uint64_t offset = 0;
  for (size_t i = begin; i < part.end; ++i) {
    const GgufSpec& spec = specs_[i];
    append_string(header, spec.name);
    append(header, static_cast<uint32_t>(spec.shape.size()));
    for (size_t dim = spec.shape.size(); dim-- > 0;) append(header, static_cast<uint64_t>(spec.shape[dim]));
    append(header, find_gguf_type(spec.dtype)->id);
    append(header, offset);
    offset += (spec.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }
  part.file->write(header);
  pad();
}

void GgufWriter::pad() {
  const char zeros[kAlignment] = {};
  file().write(zeros, (kAlignment - file().position() % kAlignment) % kAlignment);
}

void GgufWriter::write(const std::string& name, const void* data, size_t bytes) {
  if (current_ == specs_.size() || specs_[current_].name != name)
    fail("value", path_, ": tensor ", name, " is not the next to be written");
  const size_t total = specs_[current_].bytes();
  if (bytes > total - written_)
    fail("value", path_, ": tensor ", name, " has ", total, " bytes, ", written_ + bytes, " were given");
  if (current_ == parts_[part_].end) ++part_;
  file().write(data, bytes);
  written_ += bytes;
  if (written_ < total) return;
  pad();
  ++current_;
  written_ = 0;
}

void GgufWriter::commit() {
  if (current_ < specs_.size())
    fail("value", path_, ": tensor ", specs_[current_].name, " has ", written_, " of its ", specs_[current_].bytes(),
         " bytes");
  for (const Part& part : parts_) part.file->sync();  // on a full disk no part appears
  for (size_t i = parts_.size(); i-- > 0;) parts_[i].file->commit();
}

std::vector<std::string> GgufWriter::paths() const {
  std::vector<std::string> paths;
  for (const Part& part : parts_) paths.push_back(part.file->path());
  return paths;
}

}  // namespace qeng
