// Makes the batches of engine/packets/batches.h one after another, on the thread that calls.
#pragma once
#include "engine/packets/batches.h"

namespace qeng {

class Batches::Maker {
 public:
  Maker(std::shared_ptr<const PacketFile> file, const BatchOptions& options);
  bool next(Batch& batch);  // false after the last epoch
  BatchState state() const;
  void restore(const BatchState& state);
  EpochPlan plan_epoch(int64_t epoch) const;
  int64_t max_documents() const { return options_.max_documents; }
  const BatchOptions& options() const { return options_; }
  const PacketFile& file() const { return *file_; }

 private:
  Packer packer(int64_t epoch) const;
  bool finished() const { return options_.epochs > 0 && epoch_ >= options_.epochs; }
  void start_epoch(int64_t epoch);
  void begin(Batch& batch) const;
  void lay(Batch& batch, const Piece& piece, int64_t slot);
  void damaged(Batch& batch, const Piece& piece);

  std::shared_ptr<const PacketFile> file_;
  BatchOptions options_;
  Sampler sampler_;
  int64_t epoch_ = 0;
  int64_t epoch_damaged_ = 0;
  std::optional<Packer> packer_;
  std::vector<Piece> row_;
  uint64_t document_record_ = UINT64_MAX;  // what document_ and mask_ hold
  bool document_good_ = false;
  std::vector<int32_t> document_;
  std::vector<uint8_t> mask_;
};

}  // namespace qeng
