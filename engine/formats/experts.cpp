#include "engine/formats/experts.h"

#include <cstring>
#include <map>

#include "kernels/error.h"

namespace qeng {
namespace {

constexpr size_t kMostDigits = 5;  // no model has a hundred thousand experts

// "a.experts.12.up_proj.weight": the joined name and the number. No name if the tensor is of no expert.
struct Place {
  std::string name;
  size_t number = 0;
};
Place place_of(const std::string& name) {
  constexpr std::string_view kWord = ".experts.", kEnding = ".weight";
  const size_t word = name.find(kWord);
  if (word == std::string::npos || !name.ends_with(kEnding)) return {};
  const size_t digits = word + kWord.size(), after = name.find_first_not_of("0123456789", digits);
  if (after == digits || after == std::string::npos || after - digits > kMostDigits || name[after] != '.') return {};
  if (name.size() - kEnding.size() <= after) return {};  // experts.3.weight: a part without a name
  return {name.substr(0, digits) + name.substr(after + 1), std::stoul(name.substr(digits, after - digits))};
}

// Where a tensor's bytes begin in what its dtype takes.
size_t decoded_bytes(const StoredTensor& stored) {
  View view;
  view.dtype = stored.decoder ? stored.decoder->dtype : *stored.dtype;
  for (const int64_t dim : stored.shape) view.shape[view.rank++] = dim;
  return view.bytes();
}

class JoinedExperts : public WeightFile {
 public:
  explicit JoinedExperts(std::shared_ptr<const WeightFile> stored) : stored_(std::move(stored)) {
    path_ = stored_->path(), files_ = stored_->files(), remarks_ = stored_->remarks();
    for (const MetadataEntry& entry : stored_->entries()) add_entry(entry);
    for (const StoredTensor& tensor : stored_->tensors()) {
      const Place place = place_of(tensor.name);
      if (!place.name.empty() && tensor.shape.size() == 2) experts_[place.name].emplace(place.number, &tensor);
    }
    for (const StoredTensor& tensor : stored_->tensors()) list(tensor);
  }
  bool joins() const { return !experts_.empty(); }
  std::string readable_types() const override { return stored_->readable_types(); }

 private:
  void list(const StoredTensor& tensor) {
    const Place place = place_of(tensor.name);
    const auto found = experts_.find(place.name);
    const bool joined = found != experts_.end() && tensor.shape.size() == 2;
    if (joined && find(place.name)) return;
    if (const StoredTensor* other = add(joined ? whole(place.name, found->second) : tensor))
      fail("format", path_, ": tensor ", other->name, " is there as a whole, and for each expert");
  }

  StoredTensor whole(const std::string& name, const std::map<size_t, const StoredTensor*>& experts) const {
    const StoredTensor& first = *experts.begin()->second;
    StoredTensor result{name, first.type_name};
    size_t next = 0;
    for (const auto& [number, part] : experts) {
      if (number != next++)
        fail("format", path_, ": of ", name, " expert ", next - 1, " is missing, and expert ", number, " is there");
      if (part->shape != first.shape)
        fail("shape", path_, ": tensor ", part->name, " is ", dims_text(part->shape), ", that of another expert ",
             dims_text(first.shape));
      if (part->type_name != first.type_name || part->readable() != first.readable())
        fail("dtype", path_, ": tensor ", part->name, " is of type ", part->type_name, ", that of another expert ",
             first.type_name);
      result.parts.push_back(part);
      result.bytes += part->bytes;
    }
    result.file = first.file;
    result.shape = {static_cast<int64_t>(experts.size()), first.shape[0], first.shape[1]};
    if (first.readable()) result.decoder = decoder_of(result.parts);
    return result;
  }

  static Decoder decoder_of(std::vector<const StoredTensor*> parts) {
    const StoredTensor& first = *parts[0];
    return {first.decoder ? first.decoder->name : dtype_name(*first.dtype),
            first.decoder ? first.decoder->dtype : *first.dtype, first.keeps_dtype(),
            [parts = std::move(parts)](std::byte* out) {
              for (const StoredTensor* part : parts) {
                const size_t bytes = decoded_bytes(*part);
                if (part->decoder)
                  part->decoder->decode(out);
                else if (bytes > 0)
                  std::memcpy(out, part->data, bytes);
                out += bytes;
              }
            }};
  }

  std::shared_ptr<const WeightFile> stored_;
  std::map<std::string, std::map<size_t, const StoredTensor*>> experts_;  // by the joined name, then by number
};

}  // namespace

std::shared_ptr<const WeightFile> join_experts(std::shared_ptr<const WeightFile> stored) {
  auto joined = std::make_shared<JoinedExperts>(stored);
  return joined->joins() ? joined : stored;
}

}  // namespace qeng
