#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/formats/safetensors.h"
#include "engine/formats/safetensors_dtype.h"
#include "kernels/error.h"

namespace qeng {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

int width_bits(const TensorSpec& spec) {
  return spec.stored_as ? spec.stored_as->bits : static_cast<int>(8 * stored_width(spec.dtype));
}

std::vector<TensorSpec> widest_first(std::vector<TensorSpec> specs) {
  std::stable_sort(specs.begin(), specs.end(),
                   [](const TensorSpec& a, const TensorSpec& b) { return width_bits(a) > width_bits(b); });
  return specs;
}

bool is_packed(const TensorSpec& spec) { return !spec.stored_as && is_packed_words(spec.dtype); }

// What the metadata says of packed tensors is of these specs alone, though a caller may hand on that of another file.
Metadata with_packed(const std::vector<TensorSpec>& specs, Metadata metadata) {
  std::erase_if(metadata, [](const auto& entry) { return entry.first.starts_with(kPackedKey); });
  for (const TensorSpec& spec : specs)
    if (is_packed(spec)) metadata[kPackedKey + spec.name] = dtype_name(spec.dtype);
  return metadata;
}

std::vector<int64_t> stored_shape(const TensorSpec& spec) {
  std::vector<int64_t> shape = spec.shape;
  if (is_packed(spec)) shape.back() /= word_elements(spec.dtype);
  return shape;
}

// model-00001-of-00002.safetensors
bool is_shard_name(const std::string& name) {
  unsigned shard = 0, shards = 0;
  int end = 0;
  return std::sscanf(name.c_str(), "model-%5u-of-%5u.safetensors%n", &shard, &shards, &end) == 2 &&
         static_cast<size_t>(end) == name.size();
}

std::string header_of(const std::string& path, const std::vector<TensorSpec>& specs, const Metadata& metadata) {
  json header = json::object();
  if (const Metadata notes = with_packed(specs, metadata); !notes.empty()) header["__metadata__"] = notes;
  uint64_t offset = 0;
  std::set<std::string> names;
  for (const TensorSpec& spec : specs) {
    if (spec.name.empty() || spec.name == "__metadata__")
      fail("value", path, ": \"", spec.name, "\" cannot name a tensor");
    if (!names.insert(spec.name).second) fail("value", path, ": tensor ", spec.name, " is declared twice");
    uint64_t end = offset + spec.bytes();
    const char* type = spec.stored_as ? spec.stored_as->name : safetensors_type_name(spec.dtype);
    header[spec.name] = {{"dtype", type}, {"shape", stored_shape(spec)}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail("value", path, ": a tensor name or metadata entry is not UTF-8");
  }
  text.resize((text.size() + 8 + 15) / 16 * 16 - 8, ' ');  // with its length: GPUs read vectors of 16 bytes in place
  return text;
}

}  // namespace

size_t TensorSpec::bytes() const {
  const int elements = stored_as ? 1 : dtype_info(dtype).elements;
  if (elements > 1 && !is_packed_words(dtype))
    fail("dtype", "tensor ", name, " is ", dtype_name(dtype), ", which safetensors files lack");
  if (elements > 1 && (shape.empty() || shape.back() % elements != 0))
    fail("shape", "tensor ", name, ": rows of ", dtype_name(dtype), " are whole blocks of ", elements);
  size_t total = static_cast<size_t>(stored_as ? stored_as->bits : dtype_info(dtype).bytes);
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t dim = i + 1 == shape.size() ? shape[i] / elements : shape[i];
    if (dim < 0 || __builtin_mul_overflow(total, static_cast<size_t>(dim), &total))
      fail("shape", "tensor ", name, ": its shape has a negative dimension or overflows");
  }
  return stored_as ? (total + 7) / 8 : total;
}

SafeTensorsWriter::SafeTensorsWriter(const std::string& path, std::vector<TensorSpec> specs, const Metadata& metadata)
    : specs_(widest_first(std::move(specs))), file_(path) {
  std::string header = header_of(path, specs_, metadata);
  uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<uint8_t>(header.size() >> (8 * i));
  file_.write(length, 8);
  file_.write(header);
  skip_finished();
}

void SafeTensorsWriter::skip_finished() {
  while (current_ < specs_.size() && written_ == specs_[current_].bytes()) ++current_, written_ = 0;
}

void SafeTensorsWriter::write(const std::string& name, const void* data, size_t bytes) {
  if (bytes == 0) return;  // an empty tensor is complete as declared
  if (current_ == specs_.size())
    fail("value", file_.path(), ": all declared tensors are written, ", name, " is one more");
  const TensorSpec& spec = specs_[current_];
  if (name != spec.name) fail("value", file_.path(), ": tensor ", name, " is written where ", spec.name, " is due");
  if (bytes > spec.bytes() - written_)
    fail("value", file_.path(), ": tensor ", name, " takes ", spec.bytes(), " bytes, ", written_ + bytes,
         " are written");
  file_.write(data, bytes);
  written_ += bytes;
  skip_finished();
}

void SafeTensorsWriter::commit() {
  if (current_ != specs_.size())
    fail("value", file_.path(), ": tensor ", specs_[current_].name, " has ", written_, " of its ",
         specs_[current_].bytes(), " bytes");
  file_.commit();
}

ShardedWriter::ShardedWriter(const std::string& folder, const std::vector<TensorSpec>& specs, size_t max_shard_bytes,
                             const Metadata& metadata)
    : folder_(folder) {
  std::vector<std::vector<TensorSpec>> groups(1);
  size_t filled = 0;
  for (const TensorSpec& spec : specs) {
    size_t bytes = spec.bytes();
    if (!groups.back().empty() && (bytes > max_shard_bytes || filled > max_shard_bytes - bytes))
      groups.emplace_back(), filled = 0;
    groups.back().push_back(spec);
    filled += bytes;
    total_bytes_ += bytes;
    if (!shard_of_.emplace(spec.name, groups.size() - 1).second)
      fail("value", folder, ": tensor ", spec.name, " is declared twice");
  }
  for (size_t i = 0; i < groups.size(); ++i) {
    char name[64] = "";
    if (groups.size() == 1) std::snprintf(name, sizeof name, "%s", kWholeName);
    if (groups.size() > 1) std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, groups.size());
    names_.push_back(name);
    shards_.push_back(std::make_unique<SafeTensorsWriter>(folder + "/" + name, std::move(groups[i]), metadata));
    order_.insert(order_.end(), shards_.back()->order().begin(), shards_.back()->order().end());
  }
}

void ShardedWriter::write(const std::string& name, const void* data, size_t bytes) {
  auto shard = shard_of_.find(name);
  if (shard == shard_of_.end()) fail("value", folder_, ": tensor ", name, " was not declared");
  shards_[shard->second]->write(name, data, bytes);
}

void ShardedWriter::commit() {
  // The index says which files count, and model.safetensors is what counts without one: both go before shards of the
  // same names come, so that there is never a mixture of two models.
  const fs::path folder = folder_, index = folder / kIndexName;
  if (fs::exists(index)) {
    fs::remove(folder / kWholeName);
    fs::remove(index);
  }
  for (auto& shard : shards_) shard->commit();
  if (shards_.size() > 1) {
    json map = json::object();
    for (const auto& [name, shard] : shard_of_) map[name] = names_[shard];
    json content = {{"metadata", {{"total_size", total_bytes_}}}, {"weight_map", map}};
    write_file_atomically(index.string(), content.dump(2) + "\n");
  }
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const bool ours = std::find(names_.begin(), names_.end(), name) != names_.end();
    if (!ours && (name == kWholeName || is_shard_name(name))) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path);
}

void save_safetensors(const std::string& path, const std::vector<NamedView>& tensors, const Metadata& metadata) {
  std::vector<TensorSpec> specs;
  std::unordered_map<std::string, const void*> data;
  for (const NamedView& tensor : tensors) {
    const View& view = tensor.view;
    specs.push_back({tensor.name, view.dtype, std::vector<int64_t>(view.shape, view.shape + view.rank)});
    data[tensor.name] = view.data;
  }
  SafeTensorsWriter writer(path, std::move(specs), metadata);
  for (const TensorSpec& spec : writer.order()) writer.write(spec.name, data[spec.name], spec.bytes());
  writer.commit();
}

}  // namespace qeng
