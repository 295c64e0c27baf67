// The rows of experts on the device. `first` is device data that a replay of a recorded graph may find changed, so no grid
// can be made to its measure: blocks find their rows themselves.
#pragma once
#include "kernels/cuda/cuda.h"
#include "kernels/error.h"

namespace qeng {

// Experts 0 .. count - 1 have rows first[e] .. first[e + 1]; the rows behind, to `rows`, are of no expert, or of those
// that follow. from: the number of the first, where they are a part of all experts.
struct Experts {
  const int32_t* first;
  int count, from;
  int64_t rows;
  Fault* fault;
};

// Some rows of one expert; expert == count: of none.
struct ExpertRows {
  int expert, rows;  // rows: 0 where there is nothing to do
  int64_t first;
};

// Reports boundaries that do not ascend; by one block of a launch.
__device__ inline void check_experts(const Experts& x) {
  for (int e = static_cast<int>(threadIdx.x); e <= x.count; e += static_cast<int>(blockDim.x)) {
    const int32_t value = x.first[e], before = e > 0 ? x.first[e - 1] : 0;
    if (value < before || value > x.rows || (x.from + e == 0 && value != 0))
      report(x.fault, FaultKind::experts, x.from + e, value, x.rows);
  }
}

// Slot s of the rows of these experts, and of those behind, in pieces of kRows. Counting rows from first[0], expert e
// has the slots from first[e] / kRows + e on, one more than its whole pieces; single rows have a slot each.
template <int kRows>
__device__ ExpertRows expert_rows(const Experts& x, int64_t slot) {
  const auto start = [&](int e) {
    const int64_t row = int64_t{x.first[e]} - x.first[0];
    return kRows == 1 ? row : row / kRows + e;
  };
  int low = 0, high = x.count;  // the last expert that starts at the slot or before
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (start(middle) <= slot)
      low = middle;
    else
      high = middle - 1;
  }
  const int64_t begin = x.first[low], end = low < x.count ? x.first[low + 1] : x.rows;
  const int64_t row = begin + (slot - start(low)) * kRows;
  if (begin < 0 || end > x.rows || row < begin || row >= end) return {low, 0, 0};
  return {low, static_cast<int>(end - row < kRows ? end - row : kRows), row};
}

// How many slots there may be.
template <int kRows>
unsigned expert_slots(const char* name, const Experts& x) {
  const int64_t slots = kRows == 1 ? x.rows : x.rows / kRows + x.count + 1;
  if (slots > 65535 || x.rows > INT32_MAX)
    fail("unsupported", name, ": ", x.rows, " rows of ", x.count, " experts are more than one launch takes");
  return static_cast<unsigned>(slots);
}

}  // namespace qeng
