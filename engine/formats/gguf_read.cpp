// Opening a GGUF file: nothing in it is believed before it is checked against the file's size.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "engine/formats/gguf.h"
#include "engine/formats/gguf_types.h"
#include "engine/formats/nvfp4.h"
#include "kernels/error.h"

namespace qeng {
namespace {

constexpr int kMaxDepth = 4;                 // of arrays in arrays; no key in use has one level
constexpr size_t kMaxKeyBytes = 65535;       // the format's own limit
constexpr uint64_t kMaxAlignment = 1 << 20;  // 4096 is the most that is in use
constexpr uint64_t kMaxParts = 99999;        // what five digits can say

// Reads forward; every read is checked against the end of the file.
class Cursor {
 public:
  Cursor(const MappedFile& file) : file_(file) {}

  template <class T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what), sizeof(T));
    return value;
  }

  std::string_view string(const char* what) {
    const auto bytes = number<uint64_t>(what);
    return {reinterpret_cast<const char*>(take(bytes, what)), bytes};
  }

  const std::byte* take(uint64_t bytes, const char* what) {
    if (bytes > left())
      fail("format", file_.path(), ": ", what, " at byte ", at_, " takes ", bytes, " bytes, the file has ", left(),
           " more: cut short or damaged, download it again");
    const std::byte* begin = file_.data() + at_;
    at_ += bytes;
    return begin;
  }

  uint64_t left() const { return file_.size() - at_; }
  uint64_t position() const { return at_; }

 private:
  const MappedFile& file_;
  uint64_t at_ = 0;
};

size_t width_of(MetadataType type) {
  switch (type) {
    case MetadataType::u8:
    case MetadataType::i8:
    case MetadataType::boolean: return 1;
    case MetadataType::u16:
    case MetadataType::i16: return 2;
    case MetadataType::u32:
    case MetadataType::i32:
    case MetadataType::f32: return 4;
    case MetadataType::u64:
    case MetadataType::i64:
    case MetadataType::f64: return 8;
    case MetadataType::string: return 8;  // at least: its length
    case MetadataType::array: break;
  }
  return 12;  // at least: its type and count
}

struct Extent {
  StoredTensor tensor;
  const GgufTensorType* type = nullptr;  // null: of a number that is not known
  uint64_t offset = 0;
};

Decoder nvfp4(const std::byte* data, size_t bytes) {
  return {"nvfp4", DType::f16, true, [data, blocks = static_cast<int64_t>(bytes / kNvfp4Bytes)](std::byte* out) {
            decode_nvfp4(data, blocks, reinterpret_cast<f16*>(out));
          }};
}

}  // namespace

class GgufReader {
 public:
  GgufReader(Gguf& set, const std::string& path) : set_(set), file_(MappedFile::open(path)), in_(*file_) {}

  // Part `part` (from 0) of a file; returns its entries.
  std::vector<MetadataEntry> read() {
    read_header();
    std::vector<MetadataEntry> entries;
    for (uint64_t i = 0; i < entries_; ++i) entries.push_back(read_entry());
    const uint64_t alignment = alignment_of(entries);
    std::vector<Extent> extents;
    for (uint64_t i = 0; i < tensors_; ++i) extents.push_back(read_tensor(alignment));
    place(extents, alignment);
    set_.files_.push_back(file_);
    return entries;
  }

 private:
  void read_header() {
    if (file_->size() < 24 || file_->text().substr(0, 4) != "GGUF")
      fail("format", file_->path(), ": does not begin with \"GGUF\": not a GGUF file");
    in_.take(4, "magic");
    const auto version = in_.number<uint32_t>("version");
    if (version >= 0x01000000)
      fail("unsupported", file_->path(), ": a big-endian file; only little-endian ones are read, convert it");
    if (version != 2 && version != 3)
      fail("unsupported", file_->path(), ": GGUF version ", version,
           "; versions 2 and 3 are read, convert the model anew");
    tensors_ = in_.number<uint64_t>("number of tensors");
    entries_ = in_.number<uint64_t>("number of entries");
    constexpr uint64_t kLeastTensor = 8 + 4 + 8 + 4 + 8, kLeastEntry = 8 + 4 + 1;
    if (entries_ > in_.left() / kLeastEntry || tensors_ > in_.left() / kLeastTensor)
      fail("format", file_->path(), ": says it holds ", tensors_, " tensors and ", entries_, " entries, more than its ",
           file_->size(), " bytes can: cut short or damaged");
  }

  MetadataType read_type(const std::string& key) {
    const auto type = in_.number<uint32_t>("type of an entry");
    if (type > static_cast<uint32_t>(MetadataType::f64))
      fail("format", file_->path(), ": entry ", key, " is of type ", type, "; the format defines 0 to 12");
    return static_cast<MetadataType>(type);
  }

  std::shared_ptr<const MetadataArray> read_array(const std::string& key, int depth) {
    if (depth > kMaxDepth) fail("format", file_->path(), ": entry ", key, " nests arrays over ", kMaxDepth, " deep");
    auto array = std::make_shared<MetadataArray>();
    array->type = read_type(key);
    array->count = in_.number<uint64_t>("array");
    if (array->count > in_.left() / width_of(array->type))
      fail("format", file_->path(), ": entry ", key, " has ", array->count, " elements of type ",
           metadata_type_name(array->type), ", the file has ", in_.left(), " more bytes: cut short or damaged");
    if (array->type == MetadataType::string) {
      array->strings.reserve(array->count);
      for (uint64_t i = 0; i < array->count; ++i) array->strings.push_back(in_.string(key.c_str()));
    } else if (array->type == MetadataType::array) {
      for (uint64_t i = 0; i < array->count; ++i) array->arrays.push_back(read_array(key, depth + 1));
    } else {
      array->numbers = in_.take(array->count * width_of(array->type), key.c_str());
    }
    return array;
  }

  MetadataEntry read_entry() {
    MetadataEntry entry;
    entry.key = in_.string("key of an entry");
    if (entry.key.empty() || entry.key.size() > kMaxKeyBytes)
      fail("format", file_->path(), ": a key of ", entry.key.size(), " bytes; expected 1 to ", kMaxKeyBytes);
    entry.type = read_type(entry.key);
    if (entry.type == MetadataType::string) {
      entry.value = in_.string(entry.key.c_str());
    } else if (entry.type == MetadataType::array) {
      entry.value = read_array(entry.key, 1);
    } else {
      MetadataArray one;
      one.type = entry.type;
      one.numbers = in_.take(width_of(entry.type), entry.key.c_str());
      entry.value = one.at(0);
    }
    return entry;
  }

  uint64_t alignment_of(const std::vector<MetadataEntry>& entries) const {
    for (const MetadataEntry& entry : entries) {
      if (entry.key != "general.alignment") continue;
      const auto* value = std::get_if<uint64_t>(&entry.value);
      const uint64_t alignment = value ? *value : 0;
      if (alignment < 8 || alignment > kMaxAlignment || (alignment & (alignment - 1)) != 0)
        fail("format", file_->path(), ": general.alignment is ",
             value ? std::to_string(alignment) : metadata_type_name(entry.type), ", expected a power of two of 8 to ",
             kMaxAlignment);
      return alignment;
    }
    return 32;
  }

  Extent read_tensor(uint64_t alignment) {
    Extent extent;
    StoredTensor& tensor = extent.tensor;
    tensor.name = in_.string("name of a tensor");
    if (tensor.name.empty() || tensor.name.size() > kMaxKeyBytes)
      fail("format", file_->path(), ": a tensor's name of ", tensor.name.size(), " bytes; expected 1 to ",
           kMaxKeyBytes);
    const std::string where = file_->path() + ": tensor " + tensor.name;
    const auto rank = in_.number<uint32_t>("rank of a tensor");
    if (rank < 1 || rank > kMaxRank) fail("format", where, " has ", rank, " dimensions; expected 1 to ", kMaxRank);
    tensor.shape.resize(rank);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < rank; ++i) {
      const auto dim = in_.number<uint64_t>("dimension of a tensor");
      if (dim == 0) fail("format", where, ": dimension ", i, " is 0");
      if (dim > INT64_MAX || __builtin_mul_overflow(elements, dim, &elements) || elements > INT64_MAX)
        fail("format", where, ": its dimensions overflow");
      tensor.shape[rank - 1 - i] = static_cast<int64_t>(dim);
    }
    const auto type_id = in_.number<uint32_t>("type of a tensor");
    extent.offset = in_.number<uint64_t>("offset of a tensor");
    if (extent.offset % alignment != 0)
      fail("format", where, " begins at byte ", extent.offset, " of the data, expected a multiple of ", alignment);
    const GgufTensorType* type = extent.type = find_gguf_type(type_id);
    tensor.type_name = type ? type->name : "number " + std::to_string(type_id);
    if (!type) return extent;
    tensor.dtype = type->dtype;
    tensor.bytes = bytes_of(where, tensor, type->name, type->elements, type->bytes);
    return extent;
  }

  static size_t bytes_of(const std::string& where, const StoredTensor& tensor, const char* type, int elements,
                         int bytes) {
    const int64_t columns = tensor.shape.back();
    if (columns % elements != 0)
      fail("format", where, " is ", type, " ", dims_text(tensor.shape), ": rows have to be whole blocks of ", elements);
    uint64_t total = static_cast<uint64_t>(columns / elements);
    for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) total *= static_cast<uint64_t>(tensor.shape[i]);
    if (__builtin_mul_overflow(total, static_cast<uint64_t>(bytes), &total))
      fail("format", where, ": its size overflows");
    return total;
  }

  // Gives each tensor its place in the data, which follows here: in order of their offsets they must fill it without
  // overlap, with less than the alignment between them.
  void place(std::vector<Extent>& extents, uint64_t alignment) {
    if (extents.empty()) return;
    const uint64_t begin = (in_.position() + alignment - 1) / alignment * alignment;
    const uint64_t available = begin < file_->size() ? file_->size() - begin : 0;
    std::vector<size_t> order(extents.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return std::tie(extents[a].offset, a) < std::tie(extents[b].offset, b); });
    std::vector<uint64_t> room(extents.size());
    for (size_t i = 0; i < order.size(); ++i) {
      const Extent& extent = extents[order[i]];
      const uint64_t end = i + 1 < order.size() ? extents[order[i + 1]].offset : available;
      if (extent.offset > available || end > available)
        fail("format", file_->path(), ": tensor ", extents[order[std::min(i + 1, order.size() - 1)]].tensor.name,
             " lies beyond the ", available, " bytes of data: cut short, download it again");
      room[order[i]] = end - extent.offset;
    }
    settle_q2(extents, room, alignment);
    for (size_t i = 0; i < extents.size(); ++i) {
      StoredTensor& tensor = extents[i].tensor;
      const std::string where = file_->path() + ": tensor " + tensor.name;
      const bool known = extents[i].type != nullptr;
      if (known && tensor.bytes > room[i])
        fail("format", where, " (", tensor.type_name, " ", dims_text(tensor.shape), ") takes ", tensor.bytes,
             " bytes, the file keeps ", room[i],
             " for it: cut short, overlapped by the next tensor, or of another type");
      if (known && room[i] - tensor.bytes >= alignment)
        fail("format", where, " (", tensor.type_name, " ", dims_text(tensor.shape), ") takes ", tensor.bytes,
             " bytes, the file keeps ", room[i],
             " for it: written by a program that numbers the types differently; use a file of today's numbering");
      tensor.data = file_->data() + begin + extents[i].offset;
      if (known && extents[i].type->id == kGgufNvfp4) tensor.decoder = nvfp4(tensor.data, tensor.bytes);
      tensor.file = static_cast<int>(set_.files_.size());
      const int file = tensor.file;
      if (const StoredTensor* other = set_.add(std::move(tensor)))
        fail("format", where, " is in ", other->file == file ? "it twice" : "another part too");
    }
  }

  static bool is_q2(const Extent& extent) { return extent.type && extent.type->id == kGgufQ2; }

  // Type 42 with 64 or 128 elements a block: the one whose size fits what the file keeps for each of these tensors.
  void settle_q2(std::vector<Extent>& extents, const std::vector<uint64_t>& room, uint64_t alignment) const {
    bool fits[2] = {true, true}, any = false;
    const DTypeInfo formats[2] = {dtype_info(DType::q2_0), dtype_info(DType::pq2_0)};
    const auto size = [](const StoredTensor& tensor, const DTypeInfo& format) {
      uint64_t elements = 1;
      for (int64_t dim : tensor.shape) elements *= static_cast<uint64_t>(dim);
      return elements / static_cast<uint64_t>(format.elements) * static_cast<uint64_t>(format.bytes);
    };
    for (size_t i = 0; i < extents.size(); ++i) {
      const StoredTensor& tensor = extents[i].tensor;
      if (!is_q2(extents[i])) continue;
      any = true;
      for (int k = 0; k < 2; ++k) {
        const uint64_t bytes = size(tensor, formats[k]);
        fits[k] &= tensor.shape.back() % formats[k].elements == 0 && bytes <= room[i] && room[i] - bytes < alignment;
      }
    }
    if (!any || (fits[0] && !fits[1])) return;
    if (fits[0] == fits[1])
      fail("format", file_->path(), ": tensors of type 42 (Q2_0) may have groups of 64 or of 128, and their sizes fit ",
           fits[0] ? "both" : "neither",
           ": use the model's file for llama.cpp (..._Q2_g64.gguf), or one of type PQ2_0");
    for (Extent& extent : extents) {
      if (!is_q2(extent)) continue;
      extent.tensor.dtype = DType::pq2_0;
      extent.tensor.type_name = "Q2_0 in groups of 128";
      extent.tensor.bytes = size(extent.tensor, formats[1]);
    }
  }

  Gguf& set_;
  std::shared_ptr<const MappedFile> file_;
  Cursor in_;
  uint64_t tensors_ = 0, entries_ = 0;
};

namespace {

uint64_t entry_number(const std::string& path, const std::vector<MetadataEntry>& entries, const char* key) {
  for (const MetadataEntry& entry : entries) {
    if (entry.key != key) continue;
    if (const auto* value = std::get_if<uint64_t>(&entry.value)) return *value;
    if (const auto* value = std::get_if<int64_t>(&entry.value); value && *value >= 0)
      return static_cast<uint64_t>(*value);
    fail("format", path, ": ", key, " is not a whole number");
  }
  return 0;
}

}  // namespace

std::shared_ptr<const Gguf> Gguf::open(const std::string& path) {
  auto set = std::make_shared<Gguf>();
  set->path_ = path;
  for (MetadataEntry& entry : GgufReader(*set, path).read()) {
    const std::string key = entry.key;
    if (!set->add_entry(std::move(entry))) fail("format", path, ": entry ", key, " is in it twice");
  }

  const uint64_t parts = entry_number(path, set->entries_, "split.count");
  if (parts <= 1) return set;
  const uint64_t first = entry_number(path, set->entries_, "split.no");
  char ending[32];
  std::snprintf(ending, sizeof ending, "-00001-of-%05u.gguf", static_cast<unsigned>(parts % 100000));
  if (parts > kMaxParts || first != 0 || !path.ends_with(ending))
    fail("value", path, ": part ", first + 1, " of ", parts,
         " of a split file: open the first, NAME-00001-of-0000N.gguf");
  const std::string stem = path.substr(0, path.size() - std::strlen(ending));
  for (uint64_t part = 1; part < parts; ++part) {
    std::snprintf(ending, sizeof ending, "-%05u-of-%05u.gguf", static_cast<unsigned>(part + 1),
                  static_cast<unsigned>(parts));
    const std::string name = stem + ending;
    const std::vector<MetadataEntry> entries = GgufReader(*set, name).read();
    const uint64_t no = entry_number(name, entries, "split.no"), count = entry_number(name, entries, "split.count");
    if (no != part || count != parts)
      fail("format", name, ": says it is part ", no + 1, " of ", count, ": it belongs to another file");
  }
  const uint64_t total = entry_number(path, set->entries_, "split.tensors.count");
  if (total != set->tensors_.size())
    fail("format", path, ": says that its parts hold ", total, " tensors, they hold ", set->tensors_.size());
  return set;
}

namespace {

bool takes(const std::string& path) {
  char magic[4] = {};
  return std::ifstream(path, std::ios::binary).read(magic, 4) && std::string_view(magic, 4) == "GGUF";
}
std::shared_ptr<const WeightFile> open_set(const std::string& path) { return Gguf::open(path); }
const WeightReader reader("a GGUF file", takes, open_set);

}  // namespace

}  // namespace qeng
