// Which record comes when: a fixed split into training and held-out records, and a new order of the training records
// each epoch. Both are keyed permutations, so any position of any epoch is found at once and no state is kept.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/packets/permutation.h"
#include "kernels/error.h"

namespace qeng {

enum class Split : uint8_t { train, eval };

// records: in the file. eval_share in [0, 1): that share of the records, rounded, is held out: at least one where the
// share is positive, and never all. Held-out records depend on the seed alone; they come in the same order every time.
class Sampler {
 public:
  Sampler(uint64_t records, uint64_t seed, Split split, double eval_share)
      : seed_(seed), split_(split), shares_(seed, kSplitKey, records) {
    if (!(eval_share >= 0 && eval_share < 1))
      fail("value", "eval_share is ", eval_share, ", expected 0 or more and below 1");
    if (eval_share > 0 && records < 2)
      fail("value", "eval_share ", eval_share, " of ", records,
           " record(s) leaves nothing to train on: add data, or hold nothing out; a text that is one long document "
           "becomes "
           "many when it is cut into paragraphs");
    if (eval_share > 0) {
      const double held = std::round(eval_share * static_cast<double>(records));
      eval_ = std::clamp<uint64_t>(static_cast<uint64_t>(held), 1, records - 1);
    }
    train_ = records - eval_;
  }

  // Leaves only the records for which keep(record) is true, and moves none from one split to the other. From then on
  // four bytes a record are held, and a file of 2^32 records or more is Error("unsupported").
  template <class Keep>
  void select(Keep keep) {
    if (shares_.size() > UINT32_MAX) fail("unsupported", "records are selected in files of fewer than 2^32 records");
    std::vector<uint32_t> kept;
    for (uint64_t i = 0; i < size(); ++i)
      if (keep(record(i))) kept.push_back(static_cast<uint32_t>(record(i)));
    kept_ = std::move(kept), selected_ = true;
  }

  uint64_t size() const {  // records of an epoch
    return selected_ ? kept_.size() : split_ == Split::train ? train_ : eval_;
  }
  // The split's records in an order that depends on the seed alone; i < size().
  uint64_t record(uint64_t i) const { return selected_ ? kept_[i] : shares_(split_ == Split::train ? i : train_ + i); }

  // The order of one epoch: a function of position < size().
  class Order {
   public:
    uint64_t operator()(uint64_t position) const {
      return sampler_->record(sampler_->split_ == Split::train ? epoch_(position) : position);
    }

   private:
    friend class Sampler;
    Order(const Sampler& sampler, uint64_t epoch) : sampler_(&sampler), epoch_(sampler.seed_, epoch, sampler.size()) {}
    const Sampler* sampler_;
    Permutation epoch_;
  };
  Order order(uint64_t epoch) const { return Order(*this, epoch); }  // points into this sampler

 private:
  static constexpr uint64_t kSplitKey = UINT64_MAX;  // no epoch has this number
  uint64_t seed_;
  Split split_;
  Permutation shares_;
  uint64_t train_ = 0, eval_ = 0;
  bool selected_ = false;
  std::vector<uint32_t> kept_;
};

}  // namespace qeng
