// What a file of weights says beside its tensors: a key, the value's type, the value. The types are GGUF's, with its
// numbers; formats with fewer use some of them (safetensors: strings).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace qeng {

enum class MetadataType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
const char* metadata_type_name(MetadataType type);                             // "u8" ... "bool", "string"
std::optional<MetadataType> metadata_type_from_name(const std::string& name);  // not "array"

struct MetadataArray;
// Strings lie in the open file.
using MetadataValue =
    std::variant<bool, uint64_t, int64_t, double, std::string_view, std::shared_ptr<const MetadataArray>>;

struct MetadataArray {
  MetadataType type = MetadataType::u8;  // of the elements
  uint64_t count = 0;
  const std::byte* numbers = nullptr;  // as they lie in the file; absent for strings and arrays
  std::vector<std::string_view> strings;
  std::vector<std::shared_ptr<const MetadataArray>> arrays;
  MetadataValue at(uint64_t i) const;
};

struct MetadataEntry {
  std::string key;
  MetadataType type = MetadataType::u8;
  MetadataValue value;
};

}  // namespace qeng
