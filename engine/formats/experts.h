// Experts of a mixture as one tensor. Checkpoints have a matrix for each expert, X.experts.0.P.weight to
// X.experts.(E - 1).P.weight, each [n, k]. They are read as X.experts.P.weight, [E, n, k], which is listed where the
// first of them stands, in place of all.
#pragma once
#include <memory>

#include "engine/formats/weight_file.h"

namespace qeng {

// The file with its experts joined, or the file itself where it has none. Error("format") names what is missing: the
// numbers of a part go from 0 without a gap. Error("shape") and Error("dtype") where experts of one part differ.
std::shared_ptr<const WeightFile> join_experts(std::shared_ptr<const WeightFile> stored);

}  // namespace qeng
