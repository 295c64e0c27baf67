// The inputs of a conversion as blocks of whole records, in order, from any position on.
#pragma once
#include <atomic>
#include <memory>

#include "engine/convert/open_input.h"
#include "engine/convert/worker.h"

namespace qeng {

class InputReader {
 public:
  InputReader(const ConvertOptions& options, const InputPosition& from);

  // The next block; false at the end of the last input. A block may hold no record (then it only moves the position).
  bool next(RecordBlock& block);

  // Of all files so far, as they lie. May be asked by any thread.
  uint64_t consumed() const { return consumed_.load(std::memory_order_relaxed); }

 private:
  void open();
  void read_names();
  size_t fill(size_t wanted);
  void reject_long(RecordBlock& block);
  std::string too_long() const;  // the reason, and what to do
  void close();
  const ConvertOptions& options_;
  InputPosition at_;
  std::unique_ptr<InputSource> source_;
  std::unique_ptr<RecordCutter> cutter_;
  const DataFormat* format_ = nullptr;
  std::shared_ptr<const std::vector<std::string>> names_;
  std::string carry_;         // read, and not cut yet
  bool last_ = false;         // nothing is left to read of this file
  uint64_t files_bytes_ = 0;  // of the files before this one
  std::atomic<uint64_t> consumed_{0};
};

}  // namespace qeng
