// Makes the batches of engine/packets/batches.h one after another, on the thread that calls.
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
  bool next(Batch& batch, const Request& request);  // false after the last epoch
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
  bool own(int64_t row) const { return row % options_.ranks == options_.rank; }
  bool finished() const { return options_.epochs > 0 && epoch_ >= options_.epochs; }
  void check(const BatchState& state) const;
  void begin(Batch& batch) const;
  void end(Batch& batch) const;
  void lay(Batch& batch, const Piece& piece, int64_t slot);
  void damaged(Batch& batch, const Piece& piece);

  std::shared_ptr<const PacketFile> file_;
  BatchOptions options_;
  int64_t local_rows_, documents_;  // of this rank's batches
  Sampler sampler_;
  CrcDrop drop_;
  std::optional<Mixture> mixture_;
  MixState mix_;
  std::vector<int64_t> shares_;  // of the batch being made
  int64_t epoch_ = 0;
  int64_t epoch_damaged_ = 0;
  std::optional<Packer> packer_;  // made with an epoch's first batch
  Rows rows_;
  uint64_t document_record_ = UINT64_MAX;  // the last document checked
  bool document_good_ = false;
};

}  // namespace qeng
