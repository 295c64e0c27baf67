// What a batch holds of each source, and the loss of each.
#pragma once
#include <map>

#include "engine/packets/batches.h"

namespace qeng {

struct SourceLoss {
  int64_t documents = 0;  // that begin in the batch
  int64_t trained_tokens = 0;
  double nll = 0;  // summed over them, in order of their slots
};

// By SRC. nll: of each slot of the batch; empty: the sums are 0.
std::map<uint8_t, SourceLoss> losses_by_source(const Batch& batch, const std::vector<float>& nll);

}  // namespace qeng
