// Where a packer takes its documents from: the records of one epoch, one after another.
#pragma once
#include "engine/packets/sampler.h"
#include "kernels/math/philox.h"

namespace qeng {

struct Document {
  uint64_t record;
  bool dropped;    // by CrcDrop: no row holds it
  uint8_t source;  // its place in Mixture::sources(); 0 where nothing is mixed
};

class DocumentOrder {
 public:
  virtual ~DocumentOrder() = default;
  // The document at `position` of the epoch. Asked for one position after another.
  virtual Document draw(uint64_t position) = 0;
};

// CRC-Drop: in each epoch a record counts as corrupted with probability p, keyed by (seed, epoch, record). It is left
// out before packing, so it costs no room, unlike a record that is really damaged: that is known only when it is read.
struct CrcDrop {
  uint64_t seed = 0;
  double p = 0;
  bool operator()(uint64_t epoch, uint64_t record) const {
    constexpr uint32_t kSubsequence = 0x43524344;  // "CRCD": none of the subsequences that dropout counts from 0
    return p > 0 && philox_uniform(seed, epoch, kSubsequence, record) < p;
  }
};

// Every record of the sampler once, in the epoch's keyed order.
class EpochOrder : public DocumentOrder {
 public:
  EpochOrder(const Sampler& sampler, uint64_t epoch, CrcDrop drop)
      : epoch_(epoch), order_(sampler.order(epoch)), drop_(drop) {}
  Document draw(uint64_t position) override {
    const uint64_t record = order_(position);
    return {record, drop_(epoch_, record), 0};
  }

 private:
  uint64_t epoch_;
  Sampler::Order order_;
  CrcDrop drop_;
};

}  // namespace qeng
