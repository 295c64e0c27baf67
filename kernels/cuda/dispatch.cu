// Dispatch, a warp for each row of y, and Combine, a thread for some neighbours of each row.
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;

struct Places {
  const int32_t* place;
  const float* weight;  // or null
  int64_t count, k, n;  // count: tokens * k
  Fault* fault;
  // -1 for one that is outside, which is reported.
  __device__ int64_t at(int64_t i) const {
    const int32_t value = place[i];
    if (value >= 0 && value < count) return value;
    report(fault, FaultKind::index, i, value, count);
    return -1;
  }
};

template <class T, int v>
__global__ void __launch_bounds__(kThreads) dispatch_rows(Places p, const T* x, T* y, const T* rows, float* dot) {
  const int64_t i = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (i >= p.count) return;
  const int64_t to = p.at(i);
  if (to < 0) return;
  const float factor = p.weight ? p.weight[i] : 1.0f;
  float sum = 0;
  for (int64_t j = threadIdx.x % kWarp * v; j < p.n; j += kWarp * v) {
    float a[v], b[v];
    unpack<T>(load<v>(x + i / p.k * p.n + j), a);
    if (dot) {
      unpack<T>(load<v>(rows + to * p.n + j), b);
      for (int u = 0; u < v; ++u) sum += a[u] * b[u];
    }
    for (int u = 0; u < v; ++u) a[u] *= factor;
    store(y + to * p.n + j, pack<T>(a));
  }
  if (!dot) return;
  sum = warp_sum(sum);
  if (threadIdx.x % kWarp == 0) dot[i] = sum;
}

template <class T, int v>
__global__ void __launch_bounds__(kThreads) combine_rows(Places p, const T* x, T* y) {
  const int64_t t = blockIdx.x, j = (int64_t{blockIdx.y} * kThreads + threadIdx.x) * v;
  if (j >= p.n) return;
  float sum[v] = {};
  for (int64_t i = t * p.k; i < (t + 1) * p.k; ++i) {
    const int64_t from = p.at(i);
    if (from < 0) continue;
    const float factor = p.weight ? p.weight[i] : 1.0f;
    float a[v];
    unpack<T>(load<v>(x + from * p.n + j), a);
    for (int u = 0; u < v; ++u) sum[u] += factor * a[u];
  }
  store(y + t * p.n + j, pack<T>(sum));
}

template <class AnyOp>
Places places_of(const AnyOp& op, CudaContext& context) {
  const int64_t count = op.place.elements(), n = op.x.columns();
  if (count > INT32_MAX || n > 65535 * kThreads)
    fail("unsupported", op.name, ": x is ", shape_text(op.x), ", more than one launch takes");
  return {op.place.template as<int32_t>(), op.weight.template as<float>(), count, op.place.columns(), n, context.fault};
}

}  // namespace

void run(const Dispatch& op, CudaContext& context) {
  if (op.y.elements() == 0) return;
  const Places p = places_of(op, context);
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int v = kVector<T>;
    const bool vectors = p.n % v == 0 && aligned_for(v, op.x, op.y) && (!op.rows || aligned_for(v, op.rows));
    launch(context, op.name, vectors ? dispatch_rows<T, v> : dispatch_rows<T, 1>,
           dim3(static_cast<unsigned>(ceil_div(p.count, kWarps))), dim3(kThreads), 0, p, op.x.as<T>(), op.y.as<T>(),
           op.rows.as<T>(), op.dot.as<float>());
  });
}

void run(const Combine& op, CudaContext& context) {
  if (op.y.elements() == 0) return;
  const Places p = places_of(op, context);
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int v = kVector<T>;
    const bool vectors = p.n % v == 0 && aligned_for(v, op.x, op.y);
    launch(
        context, op.name, vectors ? combine_rows<T, v> : combine_rows<T, 1>,
        dim3(static_cast<unsigned>(op.y.shape[0]), static_cast<unsigned>(ceil_div(p.n, kThreads * (vectors ? v : 1)))),
        dim3(kThreads), 0, p, op.x.as<T>(), op.y.as<T>());
  });
}

}  // namespace qeng
