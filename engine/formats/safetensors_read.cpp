#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/formats/json_depth.h"
#include "engine/formats/safetensors.h"
#include "engine/formats/safetensors_dtype.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference reader's limit
constexpr const char* kMetadataKey = "__metadata__";

// JSON whose top-level keys are all different: nlohmann would keep the last of two silently.
json parse_object(const std::string& file, std::string_view text) {
  check_json_depth(file, text);
  std::set<std::string> keys;
  auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1 && !keys.insert(value.get<std::string>()).second)
      fail("format", file, ": the header names \"", value.get<std::string>(), "\" twice");
    return true;
  };
  json object;
  try {
    object = json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& reason) {
    fail("format", file, ": the header is not JSON: ", reason.what());
  }
  if (!object.is_object()) fail("format", file, ": the header is not a JSON object");
  return object;
}

uint64_t whole_number(const std::string& where, const char* field, const json& value) {
  if (!value.is_number_unsigned())
    fail("format", where, ": ", field, " holds ", value.dump(), ", expected a whole number");
  return value.get<uint64_t>();
}

const json& field_of(const std::string& where, const json& entry, const char* field) {
  auto found = entry.find(field);
  if (found == entry.end()) fail("format", where, " has no \"", field, "\"");
  return *found;
}

struct Extent {
  StoredTensor tensor;
  uint64_t begin = 0, end = 0;
};

Extent read_entry(const std::string& file, const std::string& name, const json& entry) {
  std::string where = file + ": tensor " + name;
  if (!entry.is_object()) fail("format", where, " is not a JSON object");
  Extent extent;
  extent.tensor.name = name;

  const json& dtype = field_of(where, entry, "dtype");
  const SafeTensorsType* type =
      dtype.is_string() ? find_safetensors_type(dtype.get_ref<const std::string&>()) : nullptr;
  if (!type) fail("format", where, " has dtype ", dtype.dump(), ", which the safetensors format does not define");
  extent.tensor.type_name = type->name;
  extent.tensor.dtype = type->dtype;

  const json& shape = field_of(where, entry, "shape");
  if (!shape.is_array()) fail("format", where, ": shape is not a list");
  uint64_t bits = static_cast<uint64_t>(type->bits);
  for (const json& item : shape) {
    uint64_t dim = whole_number(where, "shape", item);
    if (dim > INT64_MAX || __builtin_mul_overflow(bits, dim, &bits))
      fail("format", where, ": shape ", shape.dump(), " overflows");
    extent.tensor.shape.push_back(static_cast<int64_t>(dim));
  }

  const json& offsets = field_of(where, entry, "data_offsets");
  if (!offsets.is_array() || offsets.size() != 2) fail("format", where, ": data_offsets is not [begin, end]");
  extent.begin = whole_number(where, "data_offsets", offsets[0]);
  extent.end = whole_number(where, "data_offsets", offsets[1]);
  if (extent.begin > extent.end) fail("format", where, ": data_offsets ", offsets.dump(), " run backwards");
  if (bits % 8 != 0 || bits / 8 != extent.end - extent.begin)
    fail("format", where, ": ", type->name, " ", shape.dump(), " takes ", bits / 8, " bytes, data_offsets ",
         offsets.dump(), " give ", extent.end - extent.begin);
  extent.tensor.bytes = extent.end - extent.begin;
  return extent;
}

// A tensor of words that the metadata calls one_bit or ternary becomes that.
void unpack_words(const std::string& file, const std::string& name, const std::string& kind, StoredTensor& tensor) {
  if (kind != dtype_name(DType::one_bit) && kind != dtype_name(DType::ternary))
    fail("format", file, ": __metadata__ says that tensor ", name, " is ", kind, ", expected one_bit or ternary");
  const DType dtype = dtype_from_name(kind);
  const int64_t elements = word_elements(dtype), words = dtype_info(dtype).bytes / 4;
  if (tensor.type_name != safetensors_type_name(dtype) || tensor.shape.empty() || tensor.shape.back() % words != 0 ||
      tensor.shape.back() > INT64_MAX / elements)
    fail("format", file, ": __metadata__ says that tensor ", name, " is ", kind, ", but it is not ",
         words > 1 ? "pairs" : "rows", " of U32 words");
  tensor.dtype = dtype;
  tensor.shape.back() *= elements;
}

}  // namespace

void SafeTensors::add_file(const std::string& path) {
  auto file = MappedFile::open(path);
  if (file->size() < 8) fail("format", path, ": ", file->size(), " bytes is too short for a safetensors file");
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<uint8_t>(file->data()[i]);
  uint64_t available = file->size() - 8;
  if (header_bytes > kMaxHeaderBytes || header_bytes > available)
    fail("format", path, ": the header should be ", header_bytes, " bytes long, the file has ", available,
         " after its length: not a safetensors file, or cut short");
  std::string_view header = file->text().substr(8, header_bytes);
  if (header.empty() || header[0] != '{')
    fail("format", path, ": the header does not begin with '{': not a safetensors file");

  std::vector<Extent> extents;
  json entries = parse_object(path, header);
  for (const auto& [name, entry] : entries.items()) {
    if (name != kMetadataKey) {
      extents.push_back(read_entry(path, name, entry));
      continue;
    }
    if (!entry.is_object()) fail("format", path, ": __metadata__ is not a JSON object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) fail("format", path, ": __metadata__ \"", key, "\" is not a string");
      metadata_[key] = value.get<std::string>();
    }
  }
  for (Extent& extent : extents)
    if (auto kind = metadata_.find(kPackedKey + extent.tensor.name); kind != metadata_.end())
      unpack_words(path, extent.tensor.name, kind->second, extent.tensor);
  // At one offset an empty tensor comes before the one that starts there.
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end, a.tensor.name) < std::tie(b.begin, b.end, b.tensor.name);
  });
  uint64_t expected = 0;
  uint64_t data_bytes = available - header_bytes;
  const std::byte* data = file->data() + 8 + header_bytes;
  for (Extent& extent : extents) {
    if (extent.begin != expected)
      fail("format", path, ": tensor ", extent.tensor.name, " begins at byte ", extent.begin, " of the data, expected ",
           expected, extent.begin > expected ? " (a hole)" : " (an overlap)");
    if (extent.end > data_bytes)
      fail("format", path, ": tensor ", extent.tensor.name, " ends at byte ", extent.end, " of the data, the file has ",
           data_bytes, ": cut short, download it again");
    expected = extent.end;
    extent.tensor.data = data + extent.begin;
    extent.tensor.file = static_cast<int>(files_.size());
    if (const StoredTensor* other = add(std::move(extent.tensor)))
      fail("format", path, ": tensor ", other->name, " is also in ", files_[static_cast<size_t>(other->file)]->path());
  }
  if (expected != data_bytes)
    fail("format", path, ": ", data_bytes - expected, " bytes after the last tensor belong to none");
  files_.push_back(std::move(file));
}

void SafeTensors::add_files(const std::string& index_path) {
  json index = parse_object(index_path, MappedFile::open(index_path)->text());
  auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) fail("format", index_path, ": has no \"weight_map\" object");
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    std::string shard_name = shard.is_string() ? shard.get<std::string>() : "";
    // A name from a downloaded file must not lead out of its folder.
    if (shard_name.empty() || shard_name == ".." || shard_name == "." ||
        shard_name.find_first_of("/\\") != std::string::npos)
      fail("format", index_path, ": tensor ", name, " is said to be in ", shard.dump(),
           ", expected a file of the same folder");
    shards.insert(shard_name);
  }
  for (const std::string& shard : shards) add_file((fs::path(index_path).parent_path() / shard).string());
  for (const auto& [name, shard] : map->items()) {
    const StoredTensor* tensor = find(name);
    std::string expected = shard.get<std::string>();
    if (!tensor || fs::path(files_[static_cast<size_t>(tensor->file)]->path()).filename() != expected)
      fail("format", index_path, ": tensor ", name, " is said to be in ", expected, ", which does not hold it");
  }
}

std::shared_ptr<const SafeTensors> SafeTensors::open(const std::string& path) {
  auto set = std::make_shared<SafeTensors>();
  set->path_ = path;
  std::string file = path;
  if (fs::is_directory(path)) {
    file = (fs::path(path) / kIndexName).string();
    if (!fs::exists(file)) file = (fs::path(path) / kWholeName).string();
    if (!fs::exists(file)) fail("io", path, ": holds neither ", kIndexName, " nor ", kWholeName);
  }
  file.ends_with(".json") ? set->add_files(file) : set->add_file(file);
  for (const auto& [key, text] : set->metadata_) set->add_entry({key, MetadataType::string, std::string_view(text)});
  return set;
}

std::string SafeTensors::readable_types() const {
  std::string known;
  for (const SafeTensorsType& type : kSafeTensorsTypes)
    if (type.dtype) known += (known.empty() ? "" : ", ") + std::string(type.name);
  return known;
}

namespace {

bool takes(const std::string& path) {
  if (fs::is_directory(path)) return fs::exists(fs::path(path) / kIndexName) || fs::exists(fs::path(path) / kWholeName);
  return path.ends_with(".safetensors") || path.ends_with(kIndexName);
}
std::shared_ptr<const WeightFile> open_set(const std::string& path) { return SafeTensors::open(path); }
const WeightReader reader("model.safetensors or its index in a folder", takes, open_set);

}  // namespace

}  // namespace qeng
