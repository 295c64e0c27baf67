#include "engine/formats/weight_file.h"

#include <algorithm>
#include <cstring>

#include "engine/formats/experts.h"
#include "kernels/error.h"

namespace qeng {
namespace {

// The name with most of its beginning and end in common: prefixes differ by file, and letters by hand.
std::string nearest_name(const std::vector<StoredTensor>& tensors, const std::string& name) {
  const auto common = [](auto a, auto end, auto b, auto b_end) { return std::mismatch(a, end, b, b_end).first - a; };
  int64_t best = 0;
  std::string nearest;
  for (const StoredTensor& tensor : tensors) {
    const std::string& other = tensor.name;
    const int64_t alike = common(name.begin(), name.end(), other.begin(), other.end()) +
                          common(name.rbegin(), name.rend(), other.rbegin(), other.rend());
    if (alike > best) best = alike, nearest = other;
  }
  return nearest;
}

std::vector<const WeightReader*>& readers() {
  static std::vector<const WeightReader*> all;
  return all;
}

}  // namespace

std::string dims_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (int64_t dim : shape) text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

bool same_data(const StoredTensor& a, const StoredTensor& b) {
  if (a.type_name != b.type_name || a.shape != b.shape || a.bytes != b.bytes) return false;
  if (a.parts.empty() && b.parts.empty()) return a.bytes == 0 || std::memcmp(a.data, b.data, a.bytes) == 0;
  return std::equal(a.parts.begin(), a.parts.end(), b.parts.begin(), b.parts.end(),
                    [](const StoredTensor* x, const StoredTensor* y) { return same_data(*x, *y); });
}

const StoredTensor* WeightFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const StoredTensor& WeightFile::get(const std::string& name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  const std::string nearest = nearest_name(tensors_, name);
  fail("value", path_, ": has no tensor ", name, nearest.empty() ? "" : "; the nearest name is " + nearest);
}

View WeightFile::view(const std::string& name) const {
  const StoredTensor& tensor = get(name);
  if (!tensor.readable())
    fail("dtype", path_, ": tensor ", name, " is of type ", tensor.type_name, ", which qeng does not read; it reads ",
         readable_types());
  if (tensor.shape.size() > kMaxRank)
    fail("shape", path_, ": tensor ", name, " has ", tensor.shape.size(), " dimensions, at most ", kMaxRank,
         " are supported");
  View view;
  view.data = tensor.decoder ? nullptr : const_cast<std::byte*>(tensor.data);
  view.dtype = tensor.decoder ? tensor.decoder->dtype : *tensor.dtype;
  for (int64_t dim : tensor.shape) view.shape[view.rank++] = dim;
  return view;
}

const MetadataEntry* WeightFile::find_entry(const std::string& key) const {
  const auto found = entry_index_.find(key);
  return found == entry_index_.end() ? nullptr : &entries_[found->second];
}

const StoredTensor* WeightFile::add(StoredTensor tensor) {
  const auto [place, fresh] = index_.emplace(tensor.name, tensors_.size());
  if (!fresh) return &tensors_[place->second];
  tensors_.push_back(std::move(tensor));
  return nullptr;
}

bool WeightFile::add_entry(MetadataEntry entry) {
  if (!entry_index_.emplace(entry.key, entries_.size()).second) return false;
  entries_.push_back(std::move(entry));
  return true;
}

WeightReader::WeightReader(const char* expected_, Takes takes_, Open open_)
    : expected(expected_), takes(takes_), open(open_) {
  readers().insert(expected ? readers().end() : readers().begin(), this);
}

std::shared_ptr<const WeightFile> open_weights(const std::string& path) {
  std::string expected;
  for (const WeightReader* reader : readers()) {
    if (reader->takes(path)) return join_experts(reader->open(path));
    if (reader->expected) expected += (expected.empty() ? "" : ", or ") + std::string(reader->expected);
  }
  fail("io", path, ": holds no weights that qeng knows; expected ", expected);
}

}  // namespace qeng
