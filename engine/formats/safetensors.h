// The safetensors format: named tensors in one file or a set of shards.
//   file = u64 little-endian header bytes, JSON header, data
//   header = {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {"k":
//   "v"}}
// Offsets count from the start of the data; tensors cover it from first to last byte without holes or overlap.
// one_bit and ternary tensors are U32 words there (safetensors_dtype.h), and themselves here: shapes count elements.
// (huggingface.co/docs/safetensors)
#pragma once
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/formats/atomic_file.h"
#include "engine/formats/weight_file.h"

namespace qeng {

inline constexpr const char* kWholeName = "model.safetensors";             // of a folder without shards
inline constexpr const char* kIndexName = "model.safetensors.index.json";  // which shard holds which tensor

// An open file or set.
class SafeTensors : public WeightFile {
 public:
  // path: a .safetensors file, a model.safetensors.index.json, or a folder holding either (the index wins).
  static std::shared_ptr<const SafeTensors> open(const std::string& path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }  // of all shards together
  std::string readable_types() const override;

 private:
  void add_file(const std::string& path);
  void add_files(const std::string& index_path);
  std::map<std::string, std::string> metadata_;
};

// ---------------------------------------------------------------- writing

struct SafeTensorsType;  // safetensors_dtype.h

struct TensorSpec {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;                  // of any rank
  const SafeTensorsType* stored_as = nullptr;  // a type of the format in place of dtype, also one that the engine lacks
  // Error("shape") where it overflows, a dimension is negative or a row is not whole blocks; Error("dtype") for a block
  // format other than one_bit and ternary.
  size_t bytes() const;
};

using Metadata = std::map<std::string, std::string>;

// Writes one file: all tensors are declared first, then their data is written in the order of order(), in as many
// pieces as the caller likes. The header is padded with spaces to 8 bytes, and wider element types come first, so that
// every tensor is aligned to its element. Nothing appears under the file's name before commit().
class SafeTensorsWriter {
 public:
  SafeTensorsWriter(const std::string& path, std::vector<TensorSpec> specs,
                    const Metadata& metadata = {{"format", "pt"}});
  const std::vector<TensorSpec>& order() const { return specs_; }
  // The next piece of tensor `name`, which must be the current one of order(). Error("value") otherwise.
  void write(const std::string& name, const void* data, size_t bytes);
  // Error("value") if a tensor is incomplete.
  void commit();

 private:
  void skip_finished();
  std::vector<TensorSpec> specs_;
  AtomicFile file_;
  size_t current_ = 0, written_ = 0;
};

// The same over a folder: model.safetensors if all fits in max_shard_bytes, else model-00001-of-0000N.safetensors and
// so on with model.safetensors.index.json. A tensor is never split. commit() removes the files of those names that an
// earlier save left; a kill during it leaves the old tensors, the new ones, or an Error on opening. To replace a folder
// as one, write inside an AtomicFolder.
class ShardedWriter {
 public:
  ShardedWriter(const std::string& folder, const std::vector<TensorSpec>& specs,
                size_t max_shard_bytes = size_t{5} << 30, const Metadata& metadata = {{"format", "pt"}});
  const std::vector<TensorSpec>& order() const { return order_; }
  void write(const std::string& name, const void* data, size_t bytes);
  void commit();

 private:
  std::string folder_;
  std::vector<TensorSpec> order_;
  std::vector<std::unique_ptr<SafeTensorsWriter>> shards_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, size_t> shard_of_;
  uint64_t total_bytes_ = 0;
};

// One call for tensors that all lie in host memory.
struct NamedView {
  std::string name;
  View view;
};
void save_safetensors(const std::string& path, const std::vector<NamedView>& tensors,
                      const Metadata& metadata = {{"format", "pt"}});

}  // namespace qeng
