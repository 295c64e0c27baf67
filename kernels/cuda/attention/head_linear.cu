// HeadLinear: a thread block takes some tokens of a basis, a thread a column of the result for all of their rows.
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kThreads = 128;
constexpr int kRows = 8;  // of a block: each element of the matrix that is loaded serves all of them

template <class T>
__global__ void __launch_bounds__(kThreads, 4) head_linear(const T* x, const float* w, const float* bias, T* y,
                                                           int64_t rows, int heads, int group, int dim, int out) {
  float* shared = reinterpret_cast<float*>(shared_memory());  // [kRows, dim]
  const int base = static_cast<int>(blockIdx.y);
  const int64_t first = int64_t{blockIdx.x} * kRows;  // rows of a basis: those of a token's group follow each other
  const auto row_at = [&](int64_t r) { return (r / group * heads + base * group + r % group); };
  for (int i = static_cast<int>(threadIdx.x); i < kRows * dim; i += kThreads)
    shared[i] = first + i / dim < rows ? to_f32(x[row_at(first + i / dim) * dim + i % dim]) : 0.0f;
  __syncthreads();
  for (int j = static_cast<int>(threadIdx.x); j < out; j += kThreads) {
    float sums[kRows];
#pragma unroll
    for (float& sum : sums) sum = bias ? bias[base * out + j] : 0.0f;
#pragma unroll 2
    for (int d = 0; d < dim; d += 4) {
      float factor[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) factor[e] = w[(int64_t{base} * dim + d + e) * out + j];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 four = *reinterpret_cast<const float4*>(shared + r * dim + d);
        sums[r] = fmaf(four.x, factor[0], sums[r]), sums[r] = fmaf(four.y, factor[1], sums[r]);
        sums[r] = fmaf(four.z, factor[2], sums[r]), sums[r] = fmaf(four.w, factor[3], sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      if (first + r < rows) put(y + row_at(first + r) * out + j, sums[r]);
  }
}

}  // namespace

void run(const HeadLinear& op, CudaContext& context) {
  const int64_t heads = op.x.shape[1], bases = op.w.shape[0], group = heads / bases, rows = op.x.shape[0] * group;
  if (rows == 0) return;
  const int dim = static_cast<int>(op.x.shape[2]), out = static_cast<int>(op.w.shape[2]);
  if (dim > 1024 || bases > 65535 || ceil_div(rows, kRows) > INT32_MAX)
    fail("unsupported", op.name, ": x is ", shape_text(op.x), "; cuda takes heads of at most 1024");
  const dim3 grid(static_cast<unsigned>(ceil_div(rows, kRows)), static_cast<unsigned>(bases));
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    QENG_LAUNCH(context, head_linear<T>, grid, dim3(kThreads), static_cast<size_t>(kRows * dim) * sizeof(float),
                op.x.as<T>(), op.w.as<float>(), op.bias ? op.bias.as<float>() : nullptr, op.y.as<T>(), rows,
                static_cast<int>(heads), static_cast<int>(group), dim, out);
  });
}

}  // namespace qeng
