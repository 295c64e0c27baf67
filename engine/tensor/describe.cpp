#include "engine/tensor/describe.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "kernels/interleave.h"

namespace qeng {
namespace {
constexpr int64_t kPiece = int64_t{1} << 20;  // elements: 4 MB of the host's

// Calls each(value) for all elements in order.
template <class Each>
void for_each_value(const TensorPtr& x, Each each) {
  const View& view = x->view;
  if (view.elements() == 0) return;
  const int64_t unit =
      view.interleaved ? view.elements() / view.shape[0] * kInterleavedRows : dtype_info(view.dtype).elements;
  const TensorPtr units = view.interleaved ? x : reshape_view(x, {view.elements() / unit, unit});
  const int64_t group = view.interleaved ? kInterleavedRows : 1;  // rows of `units` that are one unit
  const int64_t count = units->view.shape[0] / group, step = std::max<int64_t>(1, kPiece / unit);
  for (int64_t first = 0; first < count; first += step) {
    const int64_t some = std::min(step, count - first);
    for (float value : to_host_f32(*row_range(units, first * group, some * group))) each(value);
  }
}

// Bits that are ordered as the values are.
uint32_t key_of(float value) {
  const auto bits = std::bit_cast<uint32_t>(value == 0 ? 0.0f : value);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
float value_of(uint32_t key) { return std::bit_cast<float>(key & 0x80000000u ? key & 0x7fffffffu : ~key); }

using Counts = std::vector<int64_t>;  // of 65536 halves of keys

// The half of the key of the rank-th value, and in *rank the rank among those that share it.
uint32_t half_at(const Counts& counts, int64_t* rank) {
  uint32_t half = 0;
  while (*rank >= counts[half]) *rank -= counts[half++];
  return half;
}
}  // namespace

Description describe(const TensorPtr& x) {
  Description found;
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  double low = HUGE_VAL, high = -HUGE_VAL, sum = 0;
  Counts upper(1 << 16);
  for_each_value(x, [&](float value) {
    ++found.elements;
    if (std::isnan(value)) return void(++found.nan);
    if (std::isinf(value)) return void(++found.inf);
    found.zeros += value == 0;
    low = std::min<double>(low, value), high = std::max<double>(high, value), sum += value;
    ++upper[key_of(value) >> 16];
  });
  const int64_t finite = found.elements - found.nan - found.inf;
  if (finite == 0) {
    found.min = found.max = found.mean = found.std = kNone;
    found.quantiles.fill(kNone);
    return found;
  }
  found.min = low, found.max = high, found.mean = sum / static_cast<double>(finite);

  // The ranks that quantiles lie between: first their upper halves, then, in the second pass, the lower ones.
  struct Place {
    uint32_t half;
    int64_t rank;
  };
  std::map<uint32_t, Counts> lower;
  std::vector<Place> places;
  std::vector<double> shares;
  for (double quantile : Description::kQuantiles) {
    const double position = quantile * static_cast<double>(finite - 1);
    const auto first = static_cast<int64_t>(position);
    shares.push_back(position - static_cast<double>(first));
    for (int64_t rank : {first, std::min(first + 1, finite - 1)}) {
      const uint32_t half = half_at(upper, &rank);
      places.push_back({half, rank});
      lower[half].resize(1 << 16);
    }
  }
  double squares = 0;
  for_each_value(x, [&](float value) {
    if (!std::isfinite(value)) return;
    squares += (value - found.mean) * (value - found.mean);
    const uint32_t key = key_of(value);
    if (const auto counts = lower.find(key >> 16); counts != lower.end()) ++counts->second[key & 0xffff];
  });
  found.std = std::sqrt(squares / static_cast<double>(finite));
  const auto value_at = [&](Place place) {
    const uint32_t half = half_at(lower.at(place.half), &place.rank);
    return static_cast<double>(value_of(place.half << 16 | half));
  };
  for (size_t i = 0; i < found.quantiles.size(); ++i) {
    const double before = value_at(places[2 * i]), after = value_at(places[2 * i + 1]);
    found.quantiles[i] = before + shares[i] * (after - before);
  }
  return found;
}

}  // namespace qeng
