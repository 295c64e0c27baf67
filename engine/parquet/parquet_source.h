// A Parquet file as JSON lines, one a row, so that everything that reads JSONL reads it. Lists are lists, structures
// and maps with text for keys are objects, other maps lists of pairs; times are ISO 8601, decimals numbers with their
// digits. Text is written as it is, also what is not UTF-8. Other bytes that are not (images) become {"bytes": how many
// they are}. Memory: a page of each column, and a row.
#pragma once
#include <memory>

#include "engine/formats/input_source.h"

namespace qeng {

// Error("io") | Error("format") | Error("unsupported"), naming the file; the last two also from read().
std::unique_ptr<InputSource> open_parquet(const std::string& path);

}  // namespace qeng
