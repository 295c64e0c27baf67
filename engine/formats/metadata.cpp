#include "engine/formats/metadata.h"

#include <cstring>

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

}  // namespace

const char* metadata_type_name(MetadataType type) { return kTypeNames[static_cast<size_t>(type)]; }

std::optional<MetadataType> metadata_type_from_name(const std::string& name) {
  for (size_t i = 0; i < std::size(kTypeNames); ++i)
    if (name == kTypeNames[i] && static_cast<MetadataType>(i) != MetadataType::array)
      return static_cast<MetadataType>(i);
  return std::nullopt;
}

MetadataValue MetadataArray::at(uint64_t i) const {
  switch (type) {
    case MetadataType::u8: return uint64_t{load<uint8_t>(numbers + i)};
    case MetadataType::i8: return int64_t{load<int8_t>(numbers + i)};
    case MetadataType::u16: return uint64_t{load<uint16_t>(numbers + 2 * i)};
    case MetadataType::i16: return int64_t{load<int16_t>(numbers + 2 * i)};
    case MetadataType::u32: return uint64_t{load<uint32_t>(numbers + 4 * i)};
    case MetadataType::i32: return int64_t{load<int32_t>(numbers + 4 * i)};
    case MetadataType::f32: return double{load<float>(numbers + 4 * i)};
    case MetadataType::boolean: return load<uint8_t>(numbers + i) != 0;
    case MetadataType::string: return strings[i];
    case MetadataType::array: return arrays[i];
    case MetadataType::u64: return load<uint64_t>(numbers + 8 * i);
    case MetadataType::i64: return load<int64_t>(numbers + 8 * i);
    case MetadataType::f64: break;
  }
  return load<double>(numbers + 8 * i);
}

}  // namespace qeng
