#include "engine/train/source_loss.h"

namespace qeng {

std::map<uint8_t, SourceLoss> losses_by_source(const Batch& batch, const std::vector<float>& nll) {
  std::map<uint8_t, SourceLoss> losses;
  for (const Segment& segment : batch.segments) {
    if (segment.damaged) continue;
    SourceLoss& loss = losses[segment.src];
    loss.documents += segment.piece.begin == 0;
    const auto begin = static_cast<size_t>(segment.slot), end = begin + segment.piece.tokens;
    for (size_t t = begin; t < end; ++t) {
      if (batch.targets[t] < 0) continue;
      ++loss.trained_tokens;
      if (!nll.empty()) loss.nll += static_cast<double>(nll[t]);
    }
  }
  return losses;
}

}  // namespace qeng
