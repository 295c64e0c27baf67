#include "engine/autograd/pending.h"

#include "engine/autograd/expression.h"

namespace qeng {

void PendingTensors::add(const TensorPtr& tensor, const Tensor& read) {
  Readers& readers = readers_[static_cast<const char*>(read.buffer->data)];
  readers.bytes = std::max(readers.bytes, read.buffer->bytes);
  readers.tensors.push_back(tensor);
  if (++added_ >= look_at_) all();
}

PendingTensors::Place PendingTensors::take(Place place, std::vector<TensorPtr>& found) {
  Readers& readers = place->second;
  std::erase_if(readers.tensors, [&](const std::weak_ptr<Tensor>& each) {
    TensorPtr tensor = each.lock();
    const bool gone = !tensor || !tensor->pending || tensor->pending->stale;
    if (!gone) found.push_back(std::move(tensor));
    return gone;
  });
  return readers.tensors.empty() ? readers_.erase(place) : std::next(place);
}

std::vector<TensorPtr> PendingTensors::near(const View& written) {
  std::vector<TensorPtr> found;
  const char *begin = written.as<char>(), *end = begin + written.bytes();
  auto place = readers_.upper_bound(begin);
  if (place != readers_.begin() && begin < std::prev(place)->first + std::prev(place)->second.bytes) --place;
  while (place != readers_.end() && place->first < end) place = take(place, found);
  return found;
}

std::vector<TensorPtr> PendingTensors::all() {
  std::vector<TensorPtr> found;
  added_ = 0;
  for (auto place = readers_.begin(); place != readers_.end();) place = take(place, found);
  for (const auto& [begin, readers] : readers_) added_ += readers.tensors.size();
  look_at_ = 2 * added_ + 256;
  return found;
}

}  // namespace qeng
