// Gather, a thread for each element of y, and ScatterAdd, whose sums are in order: a thread has one column of y, or a
// part of it where that leaves too few of them, and reads all that goes there.
#include <algorithm>

#include "kernels/cuda/bounds.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kWantedThreads = 1 << 16;

// Of index [outer or 1, m, inner or 1]: elements from one index of each dimension to the next.
struct IndexPlaces {
  const int32_t* data;
  int64_t outer, m, inner, n;
  explicit IndexPlaces(const View& index, int64_t most)
      : data(index.as<int32_t>()),
        outer(index.shape[0] == 1 ? 0 : index.shape[1] * index.shape[2]),
        m(index.shape[2]),
        inner(index.shape[2] == 1 ? 0 : 1),
        n(most) {}
  // -1 for one that is outside, which is reported.
  __device__ int64_t at(int64_t o, int64_t j, int64_t i, Fault* fault) const {
    const int64_t place = o * outer + j * m + i * inner;
    const int64_t value = data[place];
    if (value >= 0 && value < n) return value;
    report(fault, FaultKind::index, place, value, n);
    return -1;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    gather_elements(const T* x, IndexPlaces index, T* y, int64_t m, int64_t inner, int64_t count, Fault* fault) {
  const int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (e >= count) return;
  const int64_t i = e % inner, o = e / inner / m, from = index.at(o, e / inner % m, i, fault);
  if (from >= 0) y[e] = x[(o * index.n + from) * inner + i];
}

// parts: of the n rows of y
template <class T>
__global__ void QENG_BOUNDS(kThreads, 0, 1) add_columns(const T* x, IndexPlaces index, float* y, int64_t m,
                                                        int64_t inner, int64_t parts, int64_t count, Fault* fault) {
  const int64_t e = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (e >= count) return;
  const int64_t i = e % inner, part = e / inner % parts, o = e / inner / parts;
  const int64_t first = index.n * part / parts, last = index.n * (part + 1) / parts;
  for (int64_t j = 0; j < m; ++j) {
    const int64_t to = index.at(o, j, i, fault);
    if (to >= first && to < last) y[(o * index.n + to) * inner + i] += to_f32(x[(o * m + j) * inner + i]);
  }
}

template <class T>
void gather(const Gather& op, CudaContext& context) {
  const int64_t count = op.y.elements();
  launch(context, op.name, gather_elements<T>, dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads),
         0, op.x.as<T>(), IndexPlaces(op.index, op.x.shape[1]), op.y.as<T>(), op.y.shape[1], op.y.shape[2], count,
         context.fault);
}

template <class T>
void scatter_add(const ScatterAdd& op, CudaContext& context) {
  const int64_t n = op.y.shape[1], inner = op.y.shape[2], columns = op.y.shape[0] * inner;
  const int64_t parts = std::clamp<int64_t>(kWantedThreads / columns, 1, std::max<int64_t>(1, n));
  launch(context, op.name, add_columns<T>, dim3(static_cast<unsigned>(ceil_div(columns * parts, kThreads))),
         dim3(kThreads), 0, op.x.as<T>(), IndexPlaces(op.index, n), op.y.as<float>(), op.x.shape[1], inner, parts,
         columns * parts, context.fault);
}

}  // namespace

void run(const Gather& op, CudaContext& context) {
  if (op.y.elements() == 0) return;
  switch (dtype_size(op.x.dtype)) {
    case 1: return gather<uint8_t>(op, context);
    case 2: return gather<uint16_t>(op, context);
    case 4: return gather<uint32_t>(op, context);
    default: return gather<uint64_t>(op, context);
  }
}

void run(const ScatterAdd& op, CudaContext& context) {
  if (op.x.elements() == 0) return;
  if (op.x.dtype == DType::f16) return scatter_add<f16>(op, context);
  for_float(op.x, [&](auto* type) { scatter_add<std::remove_pointer_t<decltype(type)>>(op, context); });
}

}  // namespace qeng
