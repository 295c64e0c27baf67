// GGUF, llama.cpp's format: a model's settings, vocabulary and tensors in one file, or in the parts of a split one.
//   file   = "GGUF", u32 version, u64 tensors, u64 entries, entries, tensor infos, zeros up to the alignment, data
//   entry  = string key, u32 type, value             string = u64 bytes, UTF-8        array = u32 type, u64 count,
//   values tensor = string name, u32 dims, u64[dims], u32 type, u64 offset;  dims run from the columns up, offsets
//   count from the
//            start of the data and are multiples of the alignment (entry general.alignment, 32 without it)
// All little-endian. Versions 2 and 3.     (github.com/ggml-org/ggml/blob/master/docs/gguf.md)
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "engine/formats/atomic_file.h"
#include "engine/formats/mapped_file.h"
#include "kernels/view.h"

namespace qeng {

// ---------------------------------------------------------------- metadata

enum class GgufType : uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };
const char* gguf_type_name(GgufType type);                             // "u8" ... "bool", "string"
std::optional<GgufType> gguf_type_from_name(const std::string& name);  // not "array"

struct GgufArray;
// Strings point into the mapped file.
using GgufValue = std::variant<bool, uint64_t, int64_t, double, std::string_view, std::shared_ptr<const GgufArray>>;

struct GgufArray {
  GgufType type = GgufType::u8;  // of the elements
  uint64_t count = 0;
  const std::byte* numbers = nullptr;  // as they lie in the file; absent for strings and arrays
  std::vector<std::string_view> strings;
  std::vector<std::shared_ptr<const GgufArray>> arrays;
  GgufValue at(uint64_t i) const;
};

struct GgufEntry {
  std::string key;
  GgufType type = GgufType::u8;
  GgufValue value;
};

// ---------------------------------------------------------------- reading

struct GgufTensor {
  std::string name;
  uint32_t type_id = 0;
  std::string type_name;       // "Q4_K"; the number where it is unknown
  std::optional<DType> dtype;  // absent where the engine has no such type: listed, but not readable
  std::vector<int64_t> shape;  // rows first, columns last, as everywhere in qeng
  const std::byte* data = nullptr;
  size_t bytes = 0;  // 0 for a type of unknown number
  int file = 0;      // index into Gguf::files()
};

// An open file or set of split ones. Everything is checked when opening, and Error("format") names the file and the
// tensor or entry. Views, data pointers and strings lie in private mappings and live as long as this object.
// A tensor of a type that the engine lacks is an error when it is asked for, not before.
class Gguf {
 public:
  // path: a .gguf file; of a split one NAME-00001-of-0000N.gguf, whose other parts are found beside it.
  static std::shared_ptr<const Gguf> open(const std::string& path);

  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // part by part, in the order of the file
  const GgufTensor* find(const std::string& name) const;               // nullptr if absent
  // Error("value") if it is absent, Error("dtype") for a type that the engine lacks, with those that it reads.
  View view(const std::string& name) const;

  // Of the first file. An entry with a value of another type than asked for is Error("format") naming the key.
  const std::vector<GgufEntry>& entries() const { return entries_; }
  const GgufEntry* find_entry(const std::string& key) const;
  std::optional<std::string> text(const std::string& key) const;
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<bool> flag(const std::string& key) const;
  // Error("format") unless the elements are strings, or numbers.
  const GgufArray* strings(const std::string& key) const;
  const GgufArray* numbers(const std::string& key) const;

  const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }
  const std::string& path() const { return path_; }  // as opened, for messages

 private:
  friend class GgufReader;
  const GgufArray* array(const std::string& key) const;
  std::string path_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<GgufEntry> entries_;
  std::unordered_map<std::string, size_t> entry_index_, index_;
  std::vector<GgufTensor> tensors_;
};

// ---------------------------------------------------------------- writing

// Entries as they will stand in the file. A number has to fit its type; Error("value") names the key.
class GgufMetadata {
 public:
  using Scalar = std::variant<bool, uint64_t, int64_t, double, std::string>;
  void add(const std::string& key, GgufType type, const Scalar& value);
  void add(const std::string& key, GgufType element, const std::vector<Scalar>& values);  // an array
  bool has(const std::string& key) const;
  uint64_t count() const { return keys_.size(); }
  const std::string& encoded() const { return encoded_; }

 private:
  void begin(const std::string& key);
  std::unordered_set<std::string> keys_;
  std::string encoded_;
};

struct GgufSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  size_t bytes() const;  // Error("shape") for zero or negative dimensions, overflow and rows that are not whole blocks
};

// Streams one file of version 3: all tensors are declared first, then their data is written in the order of the specs,
// in as many pieces as the caller likes. Nothing appears under the file's name before commit().
//
// part_bytes > 0: where the tensors have more bytes, a split file of parts that have no more of them (one tensor alone may):
// NAME-00001-of-0000N.gguf and so on, for path NAME.gguf. The first appears last. Parts of an earlier file are Error("value"): a
// kill could leave some of the old and some of the new.
class GgufWriter {
 public:
  static constexpr uint64_t kAlignment = 32;  // the format's own, so that no entry has to say it
  GgufWriter(const std::string& path, std::vector<GgufSpec> specs, const GgufMetadata& metadata, size_t part_bytes = 0);
  // The next piece of tensor `name`, which must be the current one. Error("value") otherwise.
  void write(const std::string& name, const void* data, size_t bytes);
  void commit();  // Error("value") if a tensor is incomplete
  std::vector<std::string> paths() const;

 private:
  struct Part {
    std::unique_ptr<AtomicFile> file;
    size_t end;  // of its tensors in specs_
  };
  void divide(size_t part_bytes);
  void write_header(const Part& part, size_t begin, const GgufMetadata& metadata);
  void pad();
  AtomicFile& file() { return *parts_[part_].file; }
  std::string path_;
  std::vector<GgufSpec> specs_;
  std::vector<Part> parts_;
  size_t part_ = 0, current_ = 0, written_ = 0;
};

}  // namespace qeng
