// Checks of Strides (kernels/ops/access.h).
#pragma once
#include <cstdlib>

#include "kernels/check.h"
#include "kernels/ops/access.h"
#include "kernels/view_text.h"

namespace qeng {

// All places are among the `count` that the view has.
inline void check_inside(const Check& check, const char* label, const View& view, int64_t count, const View& space,
                         const Strides& places) {
  int64_t least = places.first, most = places.first;
  for (int d = 0; d < space.rank; ++d) (places.stride[d] < 0 ? least : most) += (space.shape[d] - 1) * places.stride[d];
  check.that(space.elements() == 0 || (least >= 0 && most < count), [&] {
    return std::string(label) + " is " + shape_text(view) + "; places " + std::to_string(least) + " to " +
           std::to_string(most) + " of " + std::to_string(count) + " are outside";
  });
}

// No two indices share a place: in order of their size each stride leads over all that the ones before it span.
inline void check_apart(const Check& check, const char* label, const View& view, const View& space,
                        const Strides& places) {
  bool seen[kMaxRank] = {};
  int64_t span = 0;
  for (int n = 0; n < space.rank; ++n) {
    int least = -1;
    for (int d = 0; d < space.rank; ++d)
      if (!seen[d] && (least < 0 || std::abs(places.stride[d]) < std::abs(places.stride[least]))) least = d;
    seen[least] = true;
    if (space.shape[least] <= 1) continue;
    check.that(space.elements() == 0 || std::abs(places.stride[least]) > span, [&] {
      return std::string("places in ") + label + " are not apart from each other, in " + shape_text(view);
    });
    span += (space.shape[least] - 1) * std::abs(places.stride[least]);
  }
}

}  // namespace qeng
