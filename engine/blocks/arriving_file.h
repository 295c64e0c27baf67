// A file that another process is receiving (partial_file.h), for one that reads it meanwhile: HASH.noted says which blocks
// are here. Which others will be read is written to HASH.wanted, a line with its number for each block, and "!" behind
// it where it is needed before all others.
#pragma once
#include <memory>
#include <string>

#include "engine/formats/arrival.h"

namespace qeng {

// For a path HASH.part with HASH.noted beside it; nullptr for any other.
std::shared_ptr<Arrival> arriving_file(const std::string& path);

}  // namespace qeng
