#include "engine/packets/mixture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "kernels/error.h"

namespace qeng {
namespace {

std::string hex(uint8_t source) {
  constexpr const char* kDigits = "0123456789abcdef";
  return {'0', 'x', kDigits[source >> 4], kDigits[source & 15]};
}

}  // namespace

Mixture::Mixture(const PacketFile& file, const Sampler& sampler, uint64_t seed, CrcDrop drop)
    : seed_(seed), drop_(drop) {
  if (file.records() > UINT32_MAX)
    fail("unsupported", file.path(), ": sources are mixed in files of fewer than 2^32 records");
  std::array<std::vector<uint32_t>, 256> by_source;
  for (uint64_t i = 0; i < sampler.size(); ++i) {
    const uint64_t record = sampler.record(i);
    by_source[file.info(record).src].push_back(static_cast<uint32_t>(record));
  }
  for (size_t source = 0; source < by_source.size(); ++source) {
    if (by_source[source].empty()) continue;
    sources_.push_back(static_cast<uint8_t>(source));
    records_.push_back(std::move(by_source[source]));
  }
}

MixState Mixture::start() const {
  return {0, std::vector<int64_t>(sources_.size()), std::vector<int64_t>(sources_.size()), {}};
}

std::vector<int64_t> Mixture::shares(const std::vector<double>& weights, int64_t step) const {
  if (weights.size() != sources_.size())
    fail("value", "weights at step ", step, ": ", weights.size(), " for ", sources_.size(), " sources");
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0) || !std::isfinite(weights[i]))
      fail("value", "weights at step ", step, ": the weight of source ", hex(sources_[i]), " is ", weights[i],
           ", expected 0 or more");
    sum += weights[i];
  }
  if (!(sum > 0) || !std::isfinite(sum))
    fail("value", "weights at step ", step, ": the weights of all sources add up to ", sum,
         ": at least one has to be above 0");
  std::vector<int64_t> shares(weights.size());
  std::transform(weights.begin(), weights.end(), shares.begin(),
                 [&](double w) { return static_cast<int64_t>(std::floor(w / sum * static_cast<double>(kWhole))); });
  // What rounding left, at most a few units, goes to the largest share.
  *std::max_element(shares.begin(), shares.end()) += kWhole - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  return shares;
}

uint8_t Mixture::choose(const std::vector<int64_t>& shares, MixState& state) const {
  size_t best = shares.size();
  for (size_t i = 0; i < shares.size(); ++i) {
    state.earned[i] += shares[i];
    // A source of weight 0 is not drawn, whatever it earned before.
    if (shares[i] > 0 && (best == shares.size() || state.earned[i] > state.earned[best])) best = i;
  }
  state.earned[best] -= kWhole;
  return static_cast<uint8_t>(best);
}

Document Mixture::take(uint8_t source, MixState& state) const {
  const std::vector<uint32_t>& records = records_[source];
  const auto number = static_cast<uint64_t>(state.drawn[source]++);
  const uint64_t epoch = number / records.size();
  const uint64_t key = (uint64_t{sources_[source]} + 1) << 48 ^ epoch;  // one of its own for each source
  const uint64_t record = records[Permutation(seed_, key, records.size())(number % records.size())];
  return {record, drop_(epoch, record), source};
}

MixedOrder::MixedOrder(const Mixture& mixture, MixState& state, const std::vector<int64_t>& shares)
    : mixture_(mixture), state_(state), shares_(shares), again_(state.window) {
  for (uint8_t source : again_) --state_.drawn[source];
}

Document MixedOrder::draw(uint64_t) {
  return mixture_.take(next_ < again_.size() ? again_[next_++] : mixture_.choose(shares_, state_), state_);
}

}  // namespace qeng
