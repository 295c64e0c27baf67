// Curricula: records drawn from several sources in shares that may change from step to step. Each source has a keyed
// order and epochs of its own; where one ends, its next begins. Which source the next record comes from is decided by
// the largest deficit: every source earns its share of each draw, and the one that has earned most pays for a whole
// one. So at constant weights each source's count is within a few records of its share at every moment, and where a run
// stands is two integers a source. The unit of shares is the record, not the token.
#pragma once
#include <functional>
#include <vector>

#include "engine/packets/document_order.h"
#include "engine/packets/packet_file.h"

namespace qeng {

// The weight of each source at an optimizer step: 0 or more, not all 0, of any sum. Has to be a function of the step.
using SourceWeights = std::function<std::vector<double>(int64_t step, const std::vector<uint8_t>& sources)>;

// Where the drawing stands.
struct MixState {
  int64_t batches = 0;          // made so far, which tells the step
  std::vector<int64_t> drawn;   // records of each source, over all its epochs
  std::vector<int64_t> earned;  // of each source, in kWhole a record; their sum is 0
  std::vector<uint8_t> window;  // the sources of the packer's lookahead, the oldest first: drawn, not all placed
  bool operator==(const MixState&) const = default;
};

class Mixture {
 public:
  static constexpr int64_t kWhole = int64_t{1} << 40;  // 256 sources of it are still exact in Lua and JSON

  // The sampler's records by source.
  Mixture(const PacketFile& file, const Sampler& sampler, uint64_t seed, CrcDrop drop);
  const std::vector<uint8_t>& sources() const { return sources_; }  // SRC numbers, rising
  MixState start() const;

  // Weights as integers of sum kWhole. Error("value") names the step and the source of a bad weight.
  std::vector<int64_t> shares(const std::vector<double>& weights, int64_t step) const;

  // The place in sources() of the next record's source, by shares; and a source's next record.
  uint8_t choose(const std::vector<int64_t>& shares, MixState& state) const;
  Document take(uint8_t source, MixState& state) const;

 private:
  uint64_t seed_;
  CrcDrop drop_;
  std::vector<uint8_t> sources_;
  std::vector<std::vector<uint32_t>> records_;  // of each source
};

// Draws go on from `state`, whose window comes first again. shares: of the batch being made; both outlive this.
class MixedOrder : public DocumentOrder {
 public:
  MixedOrder(const Mixture& mixture, MixState& state, const std::vector<int64_t>& shares);
  Document draw(uint64_t position) override;

 private:
  const Mixture& mixture_;
  MixState& state_;
  const std::vector<int64_t>& shares_;
  std::vector<uint8_t> again_;
  size_t next_ = 0;
};

}  // namespace qeng
