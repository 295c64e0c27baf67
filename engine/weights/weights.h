// How a tensor of a file becomes one on a device. Of these ways the first that gives what is asked for is taken:
//   in place  the file's own memory, where the device reads the host's and dtype and order of rows are the file's. Rows
//             may be interleaved there.
//   waiting   for a stream to a device that does not: the file's memory, or a temporary file's for rows in another
//             order.
//   copied    to memory of the device's, or for a stream in the host's memory to a temporary file's: decoded, its rows
//             reordered and its dtype converted on the way.
// The values are the same bits whichever it is.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "engine/formats/weight_file.h"
#include "engine/tensor/tensor.h"

namespace qeng {

struct WeightOptions {
  std::optional<DType> dtype;  // as it is stored, or decodes to
  std::optional<Shape> shape;  // what is expected
  bool copy = false;           // memory of its own, for what is written to
  std::string account = "weights";
  int64_t heads = 0;  // the rows are those of so many heads in llama's order, and come in Hugging Face's (gguf_rows.h)
  // Rows of a matrix of tq2_0 or q6_k may change places in memory (kernels/interleave.h), for the CPU to multiply
  // faster by it, unless a tensor given out before shows them.
  bool interleave = false;
  bool stream = false;  // a matrix is for a stream (engine/stream)
};

// An open file's tensors. Those given out stay valid after close(); the device outlives them and this.
class Weights {
 public:
  explicit Weights(std::shared_ptr<const WeightFile> file) : file_(std::move(file)) {}
  const WeightFile& file() const;  // Error("closed")

  // Error("shape") for another shape than expected, Error("value") for heads of an interleaved tensor,
  // Error("unsupported") for what cannot wait for a stream; and the errors of WeightFile::view.
  TensorPtr tensor(Device& device, const std::string& name, const WeightOptions& options = {});

  // load_files (mapped_file.h), where the device reads the host's memory: tensors in place, given out before and after,
  // lie in large pages. Where the device has a budget, the files count against it as long as they or a tensor of them
  // are in use: Error("memory") over it, or false with if_room. Error("value") once rows are interleaved.
  // only: the tensors that are read into memory (nullptr: all); to ask for another one is Error("value") then.
  bool load(Device& device, bool if_room, const std::vector<std::string>* only = nullptr);

  // The bytes of each of the file's files that load() with `only` reads.
  std::vector<std::vector<MappedFile::Span>> spans(const std::vector<std::string>& only) const;

  void close() { file_.reset(); }

 private:
  std::shared_ptr<const WeightFile> file_;
  std::optional<std::set<std::string>> only_;  // what load read, unless all
  std::map<std::string, bool> in_place_;       // what tensors are the file's memory, and whether interleaved there
};

}  // namespace qeng
