#include "engine/train/counter_levels.h"

#include <bit>
#include <cstring>

namespace qeng {

std::vector<int64_t> counter_levels(const Tensor& state) {
  const View& view = state.view;
  std::vector<unsigned char> bytes(view.bytes());
  if (!bytes.empty()) state.device().backend().download(bytes.data(), view.data, bytes.size());
  if (view.dtype == DType::u8) {
    std::vector<int64_t> counts(16);
    for (unsigned char byte : bytes) ++counts[byte / 16];
    return counts;
  }
  if (view.dtype != DType::one_bit || view.rank != 3 || view.shape[0] < 1 || view.shape[0] > 8)
    fail("dtype", "count_levels: ", shape_text(view), ", expected one_bit [planes, rows, columns] or u8");
  const auto planes = static_cast<size_t>(view.shape[0]), plane_bytes = bytes.size() / planes;
  std::vector<int64_t> counts(size_t{1} << planes);
  for (size_t at = 0; at < plane_bytes; at += 4)
    for (size_t level = 0; level < counts.size(); ++level) {
      uint32_t here = ~0u;
      for (size_t p = 0; p < planes; ++p) {
        uint32_t word;
        std::memcpy(&word, bytes.data() + p * plane_bytes + at, 4);
        here &= level >> p & 1 ? word : ~word;
      }
      counts[level] += std::popcount(here);
    }
  return counts;
}

}  // namespace qeng
