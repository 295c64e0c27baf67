#include <algorithm>
#include <filesystem>

#include "engine/formats/json_depth.h"
#include "engine/formats/packed_layers.h"
#include "engine/formats/safetensors.h"
#include "kernels/error.h"

namespace qeng {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kMaxConfigBytes = 16 << 20;  // real ones have less than 100 KB

std::vector<const Packing*>& packings() {
  static std::vector<const Packing*> all;
  return all;
}

// Python writes numbers that JSON does not have: NaN, Infinity and -Infinity. Here they become null.
std::string without_nan(std::string_view text) {
  std::string result;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (!in_string && (rest.starts_with("NaN") || rest.starts_with("Infinity"))) {
      if (result.ends_with('-')) result.pop_back();
      result += "null";
      i += (rest[0] == 'N' ? 3 : 8) - 1;
      continue;
    }
    result += text[i];
    if (in_string && text[i] == '\\' && rest.size() > 1)
      result += text[++i];
    else if (text[i] == '"')
      in_string = !in_string;
  }
  return result;
}

const json* member(const json& object, const std::string& key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string text_of(const json* value) {
  if (!value) return "missing";
  if (value->is_structured()) return value->is_object() ? "an object" : "a list";
  return value->is_string() ? value->get<std::string>() : value->dump();
}

// Letters in a setting have no case.
json lower(json value) {
  if (!value.is_string()) return value;
  auto text = value.get<std::string>();
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return text;
}

// "awq, bitsandbytes, gptq or mxfp4"
std::string known_methods() {
  std::vector<std::string> names;
  for (const Packing* each : packings()) names.emplace_back(each->method);
  std::sort(names.begin(), names.end());
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " or ") + names[i];
  return text;
}

std::string config_of(const std::string& folder) { return (fs::path(folder) / "config.json").string(); }

json settings_of(const std::string& path) {
  const auto file = MappedFile::open(path);
  if (file->size() > kMaxConfigBytes)
    fail("format", path, ": is of ", file->size(), " bytes; a config.json has at most ", kMaxConfigBytes);
  return quantization_of(path, file->text());
}

bool takes(const std::string& path) {
  if (!fs::is_directory(path)) return false;
  const bool weights = fs::exists(fs::path(path) / kIndexName) || fs::exists(fs::path(path) / kWholeName);
  return weights && fs::is_regular_file(config_of(path)) && !settings_of(config_of(path)).is_null();
}
std::shared_ptr<const WeightFile> open_folder(const std::string& path) { return PackedLayers::open(path); }
const WeightReader reader(nullptr, takes, open_folder);

}  // namespace

json quantization_of(const std::string& path, std::string_view text) {
  check_json_depth(path, text, kRecordDepth);
  json config;
  try {
    config = json::parse(without_nan(text));
  } catch (const json::exception& reason) {
    fail("format", path, ": not a JSON object: ", reason.what());
  }
  if (!config.is_object()) fail("format", path, ": not a JSON object");
  const json* inner = member(config, "text_config");
  const json* found = inner ? member(*inner, "quantization_config") : nullptr;
  if (!found) found = member(config, "quantization_config");
  return found ? *found : json();
}

std::string described(const StoredTensor& stored) {
  return (stored.dtype ? dtype_name(*stored.dtype) : stored.type_name) + (" " + dims_text(stored.shape));
}

void check_part(const std::string& where, const char* part, const StoredTensor& stored, DType dtype,
                const std::vector<int64_t>& shape) {
  if (stored.dtype != dtype || stored.shape != shape)
    fail("shape", where, ": ", part, " is ", described(stored), ", expected ", dtype_name(dtype), " ",
         dims_text(shape));
}

Packing::Packing(const char* method_, Join join_) : method(method_), join(join_) { packings().push_back(this); }

PackedLayers::PackedLayers(std::shared_ptr<const WeightFile> stored, std::string config, json settings)
    : stored_(std::move(stored)), config_(std::move(config)), settings_(std::move(settings)) {
  path_ = stored_->path(), files_ = stored_->files();
  for (const MetadataEntry& entry : stored_->entries()) add_entry(entry);
}

std::shared_ptr<const WeightFile> PackedLayers::open(std::shared_ptr<const WeightFile> stored,
                                                     const std::string& config, const json& settings) {
  const std::shared_ptr<PackedLayers> layers(new PackedLayers(std::move(stored), config, settings));
  const json* method = layers->setting("quant_method");
  for (const Packing* packing : packings()) {
    if (!method || *method != packing->method) continue;
    packing->join(*layers);
    layers->list();
    return layers;
  }
  layers->refuse("quant_method", known_methods());
}

std::shared_ptr<const WeightFile> PackedLayers::open(const std::string& folder) {
  return open(SafeTensors::open(folder), config_of(folder), settings_of(config_of(folder)));
}

const json* PackedLayers::setting(const std::string& key) const { return member(settings_, key); }

void PackedLayers::refuse(const std::string& key, const std::string& supported) const {
  fail("unsupported", config_, ": quantization_config.", key, " is ", text_of(setting(key)), "; ", supported,
       " is supported: convert the unquantized model instead");
}

void PackedLayers::allow(const std::string& key, const json& value) const {
  const json* given = setting(key);
  if (given && lower(*given) != value) refuse(key, text_of(&value));
}

void PackedLayers::require(const std::string& key, const json& value) const {
  if (!setting(key)) refuse(key, text_of(&value));
  allow(key, value);
}

const std::string& PackedLayers::file_of(const StoredTensor& stored) const {
  return files_[static_cast<size_t>(stored.file)]->path();
}

void PackedLayers::join(std::string name, std::vector<int64_t> shape, std::vector<const StoredTensor*> parts,
                        Decoder decoder, int64_t ways) {
  StoredTensor weight{std::move(name), decoder.name, std::nullopt, std::move(decoder), std::move(shape)};
  weight.file = parts[0]->file;
  for (const StoredTensor* part : parts) weight.bytes += part->bytes / static_cast<size_t>(ways);
  const StoredTensor* first = parts[0];
  weight.parts = std::move(parts);
  parts_.insert(weight.parts.begin(), weight.parts.end());
  joined_[first].push_back(std::move(weight));
}

void PackedLayers::list() {
  for (const StoredTensor& stored : stored_->tensors()) {
    const auto found = joined_.find(&stored);
    if (found == joined_.end() && parts_.contains(&stored)) continue;
    for (StoredTensor& each : found == joined_.end() ? std::vector{stored} : found->second)
      if (const StoredTensor* other = add(std::move(each)))
        fail("format", file_of(stored), ": tensor ", other->name, " is there packed, and as it is");
  }
  joined_.clear(), parts_.clear();
}

}  // namespace qeng
