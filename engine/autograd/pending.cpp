#include "engine/autograd/pending.h"

#include <algorithm>

#include "engine/autograd/expression.h"

namespace qeng {

void PendingTensors::add(const TensorPtr& tensor, const Tensor& read) {
  Readers& readers = readers_[static_cast<const char*>(read.buffer->data)];
  readers.bytes = std::max(readers.bytes, read.buffer->bytes);
  readers.tensors.emplace_back(number_++, tensor);
  if (++added_ >= look_at_) all();
}

PendingTensors::Place PendingTensors::take(Place place, Found& found) {
  Readers& readers = place->second;
  std::erase_if(readers.tensors, [&](const auto& each) {
    TensorPtr tensor = each.second.lock();
    const bool gone = !tensor || !tensor->pending || tensor->pending->stale;
    if (!gone) found.emplace_back(each.first, std::move(tensor));
    return gone;
  });
  return readers.tensors.empty() ? readers_.erase(place) : std::next(place);
}

std::vector<TensorPtr> PendingTensors::in_order(Found found) {
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<TensorPtr> tensors;
  for (auto& [number, tensor] : found) tensors.push_back(std::move(tensor));
  return tensors;
}

std::vector<TensorPtr> PendingTensors::near(const View& written) {
  Found found;
  const char *begin = written.as<char>(), *end = begin + written.bytes();
  auto place = readers_.upper_bound(begin);
  if (place != readers_.begin() && begin < std::prev(place)->first + std::prev(place)->second.bytes) --place;
  while (place != readers_.end() && place->first < end) place = take(place, found);
  return in_order(std::move(found));
}

std::vector<TensorPtr> PendingTensors::all() {
  Found found;
  added_ = 0;
  for (auto place = readers_.begin(); place != readers_.end();) place = take(place, found);
  for (const auto& [begin, readers] : readers_) added_ += readers.tensors.size();
  look_at_ = 2 * added_ + 256;
  return in_order(std::move(found));
}

}  // namespace qeng
