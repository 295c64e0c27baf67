#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
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
void append_integer(std::string& out, const std::string& key, GgufType type, const GgufMetadata::Scalar& value) {
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
  if (!fits) fail("value", "GGUF entry ", key, ": its value does not fit the type ", gguf_type_name(type));
  append(out, fitted);
}

double real(const std::string& key, GgufType type, const GgufMetadata::Scalar& value) {
  return std::visit(
      [&](const auto& number) -> double {
        using Given = std::decay_t<decltype(number)>;
        if constexpr (std::is_arithmetic_v<Given> && !std::is_same_v<Given, bool>)
          return static_cast<double>(number);
        else
          fail("value", "GGUF entry ", key, ": expected a number of type ", gguf_type_name(type));
      },
      value);
}

void append_value(std::string& out, const std::string& key, GgufType type, const GgufMetadata::Scalar& value) {
  switch (type) {
    case GgufType::u8: return append_integer<uint8_t>(out, key, type, value);
    case GgufType::i8: return append_integer<int8_t>(out, key, type, value);
    case GgufType::u16: return append_integer<uint16_t>(out, key, type, value);
    case GgufType::i16: return append_integer<int16_t>(out, key, type, value);
    case GgufType::u32: return append_integer<uint32_t>(out, key, type, value);
    case GgufType::i32: return append_integer<int32_t>(out, key, type, value);
    case GgufType::u64: return append_integer<uint64_t>(out, key, type, value);
    case GgufType::i64: return append_integer<int64_t>(out, key, type, value);
    case GgufType::f32: return append(out, static_cast<float>(real(key, type, value)));
    case GgufType::f64: return append(out, real(key, type, value));
    case GgufType::boolean:
      if (!std::holds_alternative<bool>(value)) fail("value", "GGUF entry ", key, ": expected true or false");
      return append(out, static_cast<uint8_t>(std::get<bool>(value)));
    case GgufType::string:
      if (!std::holds_alternative<std::string>(value)) fail("value", "GGUF entry ", key, ": expected a string");
      return append_string(out, std::get<std::string>(value));
    case GgufType::array: break;
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

void GgufMetadata::add(const std::string& key, GgufType type, const Scalar& value) {
  begin(key);
  append(encoded_, static_cast<uint32_t>(type));
  append_value(encoded_, key, type, value);
}

void GgufMetadata::add(const std::string& key, GgufType element, const std::vector<Scalar>& values) {
  begin(key);
  append(encoded_, static_cast<uint32_t>(GgufType::array));
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

GgufWriter::GgufWriter(const std::string& path, std::vector<GgufSpec> specs, const GgufMetadata& metadata)
    : specs_(std::move(specs)), file_(path) {
  std::string header = "GGUF";
  append(header, uint32_t{3});
  append(header, uint64_t{specs_.size()});
  append(header, metadata.count());
  header += metadata.encoded();
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const GgufSpec& spec : specs_) {
    const GgufTensorType* type = find_gguf_type(spec.dtype);
    if (!type) fail("dtype", path, ": tensor ", spec.name, " is ", dtype_name(spec.dtype), ", a type that GGUF lacks");
    if (spec.name.empty() || !names.insert(spec.name).second)
      fail("value", path, ": tensor name \"", spec.name, "\" is empty or declared twice");
    append_string(header, spec.name);
    const size_t bytes = spec.bytes();
    append(header, static_cast<uint32_t>(spec.shape.size()));
    for (size_t i = spec.shape.size(); i-- > 0;) append(header, static_cast<uint64_t>(spec.shape[i]));
    append(header, type->id);
    append(header, offset);
    offset += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  file_.write(header);
  pad();
}

void GgufWriter::pad() {
  const char zeros[kAlignment] = {};
  file_.write(zeros, (kAlignment - file_.position() % kAlignment) % kAlignment);
}

void GgufWriter::write(const std::string& name, const void* data, size_t bytes) {
  if (current_ == specs_.size() || specs_[current_].name != name)
    fail("value", file_.path(), ": tensor ", name, " is not the next to be written");
  const size_t total = specs_[current_].bytes();
  if (bytes > total - written_)
    fail("value", file_.path(), ": tensor ", name, " has ", total, " bytes, ", written_ + bytes, " were given");
  file_.write(data, bytes);
  written_ += bytes;
  if (written_ < total) return;
  pad();
  ++current_;
  written_ = 0;
}

void GgufWriter::commit() {
  if (current_ < specs_.size())
    fail("value", file_.path(), ": tensor ", specs_[current_].name, " has ", written_, " of its ",
         specs_[current_].bytes(), " bytes");
  file_.commit();
}

}  // namespace qeng
