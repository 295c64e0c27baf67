// GGUF, llama.cpp's format: a model's settings, vocabulary and tensors in one file, or in the parts of a split one.
//   file   = "GGUF", u32 version, u64 tensors, u64 entries, entries, tensor infos, zeros up to the alignment, data
//   entry  = string key, u32 type, value     string = u64 bytes, UTF-8     array = u32 type, u64 count, values
//   tensor = string name, u32 dims, u64[dims], u32 type, u64 offset;  dims run from the columns up, offsets count from
//            the start of the data and are multiples of the alignment (entry general.alignment, 32 without it)
// All little-endian. Versions 2 and 3.     (github.com/ggml-org/ggml/blob/master/docs/gguf.md)
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <variant>
#include <vector>

#include "engine/formats/atomic_file.h"
#include "engine/formats/weight_file.h"

namespace qeng {

// ---------------------------------------------------------------- reading

// An open file or set of split ones; entries are those of the first.
class Gguf : public WeightFile {
 public:
  // path: a .gguf file; of a split one NAME-00001-of-0000N.gguf, whose other parts are found beside it.
  static std::shared_ptr<const Gguf> open(const std::string& path);

  // An entry with a value of another type than asked for is Error("format") naming the key.
  std::optional<std::string> text(const std::string& key) const;
  std::optional<int64_t> integer(const std::string& key) const;
  std::optional<bool> flag(const std::string& key) const;
  // Error("format") unless the elements are strings, or numbers.
  const MetadataArray* strings(const std::string& key) const;
  const MetadataArray* numbers(const std::string& key) const;

  std::string readable_types() const override;

 private:
  friend class GgufReader;
  const MetadataArray* array(const std::string& key) const;
};

// ---------------------------------------------------------------- writing

// Entries as they will stand in the file. A number has to fit its type; Error("value") names the key.
class GgufMetadata {
 public:
  using Scalar = std::variant<bool, uint64_t, int64_t, double, std::string>;
  void add(const std::string& key, MetadataType type, const Scalar& value);
  void add(const std::string& key, MetadataType element, const std::vector<Scalar>& values);  // an array
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

// Writes one file of version 3: all tensors are declared first, then their data is written in the order of the specs,
// in as many pieces as the caller likes. Nothing appears under the file's name before commit().
//
// part_bytes > 0: where the tensors have more bytes, a split file of parts that have no more of them (one tensor alone
// may): NAME-00001-of-0000N.gguf and so on, for path NAME.gguf. The first appears last. Parts of an earlier file are
// Error("value"): a kill could leave some of the old and some of the new.
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
