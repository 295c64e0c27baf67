// Makes the batches of engine/packets/batches.h. What a batch holds is planned from lengths alone, one batch after
// another; then documents are read into it, several batches at a time where there are threads for it.
#pragma once
#include "engine/packets/batches.h"

namespace qeng {

// What a batch needs from outside: the shares of the sources at its step, or why there are none. Without a mixture,
// nothing.
struct Batches::Request {
  std::shared_ptr<const std::vector<int64_t>> shares;
  std::exception_ptr failure;
};

class Batches::Maker {
 public:
  Maker(std::shared_ptr<const PacketFile> file, const BatchOptions& options);
  // The next batch but for its documents: segments, counts, the state behind it. False after the last epoch.
  bool plan(Batch& batch, const Request& request);
  void fill(Batch& batch) const;  // the documents of a planned batch; from any thread
  // Counts a filled batch's damage, in the batches' order: Error("format") where it is too much.
  void settle(const Batch& batch);
  BatchState state() const;
  void restore(const BatchState& state);
  EpochPlan plan_epoch(int64_t epoch) const;
  int64_t max_documents() const { return documents_; }
  const BatchOptions& options() const { return options_; }
  const PacketFile& file() const { return *file_; }
  const Mixture* mixture() const { return mixture_ ? &*mixture_ : nullptr; }

 private:
  using Rows = std::vector<std::vector<Piece>>;
  Packer packer(int64_t epoch, const PackState& from, MixState& mix, const std::vector<int64_t>& shares) const;
  uint64_t pack(Packer& packer, Rows& rows, PackCounts& own, PackCounts& others) const;
  uint64_t trained_tokens(const Piece& piece) const;
  bool own(int64_t row) const { return row % options_.ranks == options_.rank; }
  bool finished() const { return options_.epochs > 0 && epoch_ >= options_.epochs; }
  void check(const BatchState& state) const;
  void begin(Batch& batch) const;
  void lay(Batch& batch, const Segment& segment) const;
  void pad(Batch& batch, int64_t begin, int64_t end) const;

  std::shared_ptr<const PacketFile> file_;
  BatchOptions options_;
  int64_t local_rows_, documents_;  // of this rank's batches
  Sampler sampler_;
  CrcDrop drop_;
  std::optional<Mixture> mixture_;
  MixState mix_;
  std::vector<int64_t> shares_;  // of the batch being made
  int64_t epoch_ = 0;
  int64_t settled_epoch_ = 0, epoch_damaged_ = 0;  // documents of that epoch
  std::optional<Packer> packer_;                   // made with an epoch's first batch
  Rows rows_;
};

}  // namespace qeng
