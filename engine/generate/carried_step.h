// A step over pages as it is told to a process that has some of the model's layers (scripts/qeng/peers): what PagePool
// gives its own step, and which pages are copied before. The one who has the pool decides; the other does as it is told,
// within its limits.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate/page_pool.h"

namespace qeng {

struct CarriedStep {
  PagePool::Rows rows;  // without padding; the tokens are not told, zeros stand in their place
  int64_t most = 0;     // columns of rows.pages
  // Rows first .. first + count of one adapter, told by its number; they cover all rows in their order.
  struct Range {
    int32_t salt, first, count;
  };
  std::vector<Range> ranges;
  std::vector<int32_t> copies, exact_copies;  // {from, to} one after another, before the step
};

// What a step may ask for: the sizes of what was opened, and positions of tokens below `positions`.
struct CarriedLimits {
  int64_t pages, exact_pages, page_tokens, rows, sequences, positions;
};

std::string pack_step(const CarriedStep& step);
// Error("format") where the text is no step, or one outside the limits: no number in what is returned leads outside the
// pages, the rows or the sequences.
CarriedStep unpack_step(std::string_view text, const CarriedLimits& limits);

}  // namespace qeng
