#include "engine/formats/gguf.h"

#include "engine/formats/gguf_types.h"
#include "kernels/error.h"

namespace qeng {
namespace {

const char* kind_of(const MetadataEntry& entry) { return metadata_type_name(entry.type); }

}  // namespace

std::string Gguf::readable_types() const {
  std::string known;
  for (const GgufTensorType& type : kGgufTensorTypes)
    if (type.dtype) known += (known.empty() ? "" : ", ") + std::string(type.name);
  return known;
}

std::optional<std::string> Gguf::text(const std::string& key) const {
  const MetadataEntry* entry = find_entry(key);
  if (!entry) return std::nullopt;
  const auto* value = std::get_if<std::string_view>(&entry->value);
  if (!value) fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected a string");
  return std::string(*value);
}

std::optional<int64_t> Gguf::integer(const std::string& key) const {
  const MetadataEntry* entry = find_entry(key);
  if (!entry) return std::nullopt;
  if (const auto* value = std::get_if<int64_t>(&entry->value)) return *value;
  const auto* value = std::get_if<uint64_t>(&entry->value);
  if (!value || *value > INT64_MAX)
    fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected an integer of at most 63 bits");
  return static_cast<int64_t>(*value);
}

std::optional<bool> Gguf::flag(const std::string& key) const {
  const MetadataEntry* entry = find_entry(key);
  if (!entry) return std::nullopt;
  const auto* value = std::get_if<bool>(&entry->value);
  if (!value) fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected true or false");
  return *value;
}

const MetadataArray* Gguf::array(const std::string& key) const {
  const MetadataEntry* entry = find_entry(key);
  if (!entry) return nullptr;
  const auto* value = std::get_if<std::shared_ptr<const MetadataArray>>(&entry->value);
  if (!value) fail("format", path_, ": ", key, " is of type ", kind_of(*entry), ", expected an array");
  return value->get();
}

const MetadataArray* Gguf::strings(const std::string& key) const {
  const MetadataArray* values = array(key);
  if (values && values->type != MetadataType::string)
    fail("format", path_, ": ", key, " is an array of ", metadata_type_name(values->type), ", expected one of strings");
  return values;
}

const MetadataArray* Gguf::numbers(const std::string& key) const {
  const MetadataArray* values = array(key);
  if (values && (values->type == MetadataType::string || values->type == MetadataType::array ||
                 values->type == MetadataType::boolean))
    fail("format", path_, ": ", key, " is an array of ", metadata_type_name(values->type), ", expected one of numbers");
  return values;
}

}  // namespace qeng
