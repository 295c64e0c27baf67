// The dimensions of a Rearrange (kernels/ops.h) as backends walk them.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace qeng {

struct RearrangedDimension {
  int64_t size, from, to;  // strides in x and in y
};

// Those of more than one element, from the largest stride in y to the least, neighbours joined where both sides allow;
// at least one.
template <class Op>
std::vector<RearrangedDimension> rearranged_dimensions(const Op& op) {
  std::vector<RearrangedDimension> all, joined;
  for (int d = 0; d < op.space.rank; ++d)
    if (op.space.shape[d] > 1) all.push_back({op.space.shape[d], op.from.stride[d], op.to.stride[d]});
  std::stable_sort(all.begin(), all.end(), [](const RearrangedDimension& a, const RearrangedDimension& b) {
    return std::abs(a.to) > std::abs(b.to);
  });
  for (const RearrangedDimension& each : all) {
    if (!joined.empty() && joined.back().from == each.size * each.from && joined.back().to == each.size * each.to)
      joined.back() = {joined.back().size * each.size, each.from, each.to};
    else
      joined.push_back(each);
  }
  if (joined.empty()) joined.push_back({1, 1, 1});
  return joined;
}

// Takes the dimension along which x lies out of `outer`, where that is not the line (the last one, along which y lies);
// else one of a single element.
inline RearrangedDimension take_across(std::vector<RearrangedDimension>& outer, const RearrangedDimension& line) {
  if (std::abs(line.from) != 1)
    for (auto each = outer.begin(); each != outer.end(); ++each)
      if (std::abs(each->from) == 1) {
        const RearrangedDimension across = *each;
        outer.erase(each);
        return across;
      }
  return {1, 0, 0};
}

}  // namespace qeng
