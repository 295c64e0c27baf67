// Sort: rows of words that hold a value above its column (kernels/math/sort_key.h), ordered as integers.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/math/sort_key.h"

namespace qeng {
namespace {

template <class T>
void sort_rows(const Sort& op, CpuContext& context) {
  const int64_t rows = op.x.shape[0], n = op.x.shape[1], k = op.y.shape[1];
  auto* words = context.scratch.take<uint64_t>(context.threads * n);
  parallel_for(context.threads, rows, grain_rows(8 * n), [&](int64_t begin, int64_t end) {
    uint64_t* mine = words + team_rank() * n;
    for (int64_t r = begin; r < end; ++r) {
      const T* x = op.x.as<T>() + r * n;
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (std::is_same_v<T, int32_t>)
          mine[i] = sort_word(sort_key(x[i]), i, op.descending);
        else
          mine[i] = sort_word(sort_key(to_f32(x[i])), i, op.descending);
      }
      if (k < n) std::nth_element(mine, mine + k, mine + n);
      std::sort(mine, mine + k);
      for (int64_t i = 0; i < k; ++i) {
        const int32_t column = sort_column(mine[i]);
        op.index.as<int32_t>()[r * k + i] = column;
        op.y.as<T>()[r * k + i] = x[column];
      }
    }
  });
}

}  // namespace

void run(const Sort& op, CpuContext& context) {
  if (op.y.elements() == 0) return;
  switch (op.x.dtype) {
    case DType::f32: return sort_rows<float>(op, context);
    case DType::bf16: return sort_rows<bf16>(op, context);
    case DType::f16: return sort_rows<f16>(op, context);
    default: return sort_rows<int32_t>(op, context);
  }
}

}  // namespace qeng
