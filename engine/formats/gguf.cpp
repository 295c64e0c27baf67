#include "engine/formats/gguf.h"

#include <cstring>

#include "engine/formats/gguf_types.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr const char* kTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                      "bool", "string", "array", "u64", "i64", "f64"};

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

const char* kind_of(const GgufEntry& entry) { return gguf_type_name(entry.type); }

}  // namespace

const char* gguf_type_name(GgufType type) { return kTypeNames[static_cast<size_t>(type)]; }

std::optional<GgufType> gguf_type_from_name(const std::string& name) {
  for (size_t i = 0; i < std::size(kTypeNames); ++i)
    if (name == kTypeNames[i] && static_cast<GgufType>(i) != GgufType::array) return static_cast<GgufType>(i);
  return std::nullopt;
}

GgufValue GgufArray::at(uint64_t i) const {
  switch (type) {
    case GgufType::u8: return uint64_t{load<uint8_t>(numbers + i)};
    case GgufType::i8: return int64_t{load<int8_t>(numbers + i)};
    case GgufType::u16: return uint64_t{load<uint16_t>(numbers + 2 * i)};
    case GgufType::i16: return int64_t{load<int16_t>(numbers + 2 * i)};
    case GgufType::u32: return uint64_t{load<uint32_t>(numbers + 4 * i)};
    case GgufType::i32: return int64_t{load<int32_t>(numbers + 4 * i)};
    case GgufType::f32: return double{load<float>(numbers + 4 * i)};
    case GgufType::boolean: return load<uint8_t>(numbers + i) != 0;
    case GgufType::string: return strings[i];
    case GgufType::array: return arrays[i];
    case GgufType::u64: return load<uint64_t>(numbers + 8 * i);
    case GgufType::i64: return load<int64_t>(numbers + 8 * i);
    case GgufType::f64: break;
  }
  return load<double>(numbers + 8 * i);
}

const GgufTensor* Gguf::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

View Gguf::view(const std::string& name) const {
  const GgufTensor* tensor = find(name);
  if (!tensor) fail("value", path_, ": has no tensor ", name);
  if (!tensor->dtype) {
    std::string known;
    for (const GgufTensorType& type : kGgufTensorTypes)
      if (type.dtype) known += (known.empty() ? "" : ", ") + std::string(type.name);
    fail("dtype", path_, ": tensor ", name, " is of type ", tensor->type_name, ", which qeng does not read; it reads ",
         known);
  }
  View view;
  view.data = const_cast<std::byte*>(tensor->data);
  view.dtype = *tensor->dtype;
  for (int64_t dim : tensor->shape) view.shape[view.rank++] = dim;
  return view;
}

const GgufEntry* Gguf::find_entry(const std::string& key) const {
  const auto found = entry_index_.find(key);
  return found == entry_index_.end() ? nullptr : &entries_[found->second];
}

std::optional<std::string> Gguf::text(const std::string& key) const {
  const GgufEntry* entry = find_entry(key);
  if (!entry) return std::nullopt;
  const auto* value = std::get_if<std::string_view>(&entry->value);
  if (!value) fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected a string");
  return std::string(*value);
}

std::optional<int64_t> Gguf::integer(const std::string& key) const {
  const GgufEntry* entry = find_entry(key);
  if (!entry) return std::nullopt;
  if (const auto* value = std::get_if<int64_t>(&entry->value)) return *value;
  const auto* value = std::get_if<uint64_t>(&entry->value);
  if (!value || *value > INT64_MAX)
    fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected an integer of at most 63 bits");
  return static_cast<int64_t>(*value);
}

std::optional<bool> Gguf::flag(const std::string& key) const {
  const GgufEntry* entry = find_entry(key);
  if (!entry) return std::nullopt;
  const auto* value = std::get_if<bool>(&entry->value);
  if (!value) fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected true or false");
  return *value;
}

const GgufArray* Gguf::array(const std::string& key) const {
  const GgufEntry* entry = find_entry(key);
  if (!entry) return nullptr;
  const auto* value = std::get_if<std::shared_ptr<const GgufArray>>(&entry->value);
  if (!value) fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected an array");
  return value->get();
}

const GgufArray* Gguf::strings(const std::string& key) const {
  const GgufArray* values = array(key);
  if (values && values->type != GgufType::string)
    fail("format", path_, ": ", key, " is an array of ", gguf_type_name(values->type), ", expected one of strings");
  return values;
}

const GgufArray* Gguf::numbers(const std::string& key) const {
  const GgufArray* values = array(key);
  if (values &&
      (values->type == GgufType::string || values->type == GgufType::array || values->type == GgufType::boolean))
    fail("format", path_, ": ", key, " is an array of ", gguf_type_name(values->type), ", expected one of numbers");
  return values;
}

}  // namespace qeng
