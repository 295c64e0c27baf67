// A file of weights, or a set of them, as those who load a model see it, whatever its format: tensors and metadata by
// name.
//
// A format is a class that fills WeightFile with what it finds, and a WeightReader that says which paths it takes. Both
// stand in engine/formats/NAME_read.cpp; every file of that name is part of each program, and nothing else names it.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/formats/mapped_file.h"
#include "engine/formats/metadata.h"
#include "kernels/view.h"

namespace qeng {

// How a tensor reads whose bytes are of no dtype, or are several tensors of the file.
struct Decoder {
  const char* name;  // of what is stored: "nvfp4"
  DType dtype;       // of what it gives
  bool keep;         // whether a model keeps that dtype, whatever it computes in
  // Writes the elements, while the file lives. Error where the values in the file do not allow it; sizes always do.
  std::function<void(std::byte* out)> decode;
};

struct StoredTensor {
  std::string name;
  std::string type_name;           // the format's own word: "Q4_K", "BF16", "U32" of one_bit
  std::optional<DType> dtype;      // absent where the engine has no such type
  std::optional<Decoder> decoder;  // for some of those: how they are read all the same
  std::vector<int64_t> shape;      // rows first, columns last; any rank, also 0
  const std::byte* data = nullptr;
  size_t bytes = 0;                        // 0 for a type of unknown size
  int file = 0;                            // index into WeightFile::files()
  std::vector<const StoredTensor*> parts;  // where it is made of several: those, in place of data; bytes is their sum

  bool readable() const { return dtype || decoder; }
  bool keeps_dtype() const { return decoder ? decoder->keep : dtype && is_block(*dtype); }  // Decoder::keep
};

std::string dims_text(const std::vector<int64_t>& shape);      // "[2, 3]"
bool same_data(const StoredTensor& a, const StoredTensor& b);  // the same type, shape and bytes

// Everything is checked when opening: Error("format") names the file and the tensor or entry. Pointers, views and
// strings lie in private mappings and live as long as this object: whoever keeps one keeps the shared_ptr. Writing to a
// view never reaches the file. A tensor that is not readable() is listed, and an error when it is asked for.
class WeightFile {
 public:
  virtual ~WeightFile() = default;

  const std::string& path() const { return path_; }  // as opened, for messages
  const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }

  const std::vector<StoredTensor>& tensors() const { return tensors_; }  // file by file, in the format's order
  const StoredTensor* find(const std::string& name) const;               // nullptr if absent
  const StoredTensor& get(const std::string& name) const;                // Error("value") if absent
  // The tensor where it lies, which may be unaligned to its element in what another program wrote. Of a decoder, shape
  // and dtype of what it gives, and no data. Error("dtype") where it is not readable, Error("shape") above kMaxRank.
  View view(const std::string& name) const;

  const std::vector<MetadataEntry>& entries() const { return entries_; }
  const MetadataEntry* find_entry(const std::string& key) const;

  // What those should know who load a model of it, a sentence each.
  const std::vector<std::string>& remarks() const { return remarks_; }

  virtual std::string readable_types() const = 0;  // the format's words for them: "F32, F16, ..."

 protected:
  const StoredTensor* add(StoredTensor tensor);  // an earlier one of its name, which stays; or null
  bool add_entry(MetadataEntry entry);           // whether its key is new
  std::string path_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<StoredTensor> tensors_;
  std::vector<MetadataEntry> entries_;
  std::vector<std::string> remarks_;

 private:
  std::unordered_map<std::string, size_t> index_, entry_index_;
};

// A format that open_weights knows, from its definition at namespace scope on.
struct WeightReader {
  using Takes = bool (*)(const std::string& path);  // by the file's signature, or what the folder holds
  using Open = std::shared_ptr<const WeightFile> (*)(const std::string& path);
  WeightReader(const char* expected, Takes takes, Open open);
  const char* expected;  // "a .gguf file", for errors; null of a reader over another format, which is asked before that
  Takes takes;
  Open open;
};

// The experts of a mixture are joined (engine/formats/experts.h). Error("io") where no reader takes the path.
std::shared_ptr<const WeightFile> open_weights(const std::string& path);

}  // namespace qeng
