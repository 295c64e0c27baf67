// CumulativeSum, one element after the other: a row is one thread's.
#include "kernels/cpu/cpu.h"

namespace qeng {
namespace {

template <class T>
void sum_rows(const CumulativeSum& op, CpuContext& context) {
  const int64_t n = op.x.shape[1];
  parallel_for(context.threads, op.x.shape[0], grain_rows(n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* x = op.x.as<T>() + r * n;
      T* y = op.y.as<T>() + r * n;
      float sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        const int64_t i = op.reverse ? n - 1 - j : j;
        sum += to_f32(x[i]);
        put(y + i, sum);
      }
    }
  });
}

}  // namespace

void run(const CumulativeSum& op, CpuContext& context) {
  switch (op.x.dtype) {
    case DType::f32: return sum_rows<float>(op, context);
    case DType::bf16: return sum_rows<bf16>(op, context);
    default: return sum_rows<f16>(op, context);
  }
}

}  // namespace qeng
