// What follows a RowLinear of many rows, by blocks of their own.
#include "kernels/cuda/linear/row_end.h"

namespace qeng {

namespace {

constexpr int kThreads = 128, kRowsAtOnce = 8;

__global__ void __launch_bounds__(kThreads) norm_apart(const __grid_constant__ RowEnd e) {
  ptx::begin_ahead();
  row_end::norm<kThreads>(e, blockIdx.x, reinterpret_cast<float*>(shared_memory()));
}
// blockIdx.x: a group; blockIdx.y: kRowsAtOnce rows of it.
__device__ inline int64_t end_of_rows(const RowEnd& e) {
  const int64_t end = (int64_t{blockIdx.y} + 1) * kRowsAtOnce;
  return end < e.rows ? end : e.rows;
}
__global__ void __launch_bounds__(kThreads) gate_apart(const __grid_constant__ RowEnd e) {
  ptx::begin_ahead();
  row_end::gate<kThreads>(e, int64_t{blockIdx.x} * e.group, int64_t{blockIdx.y} * kRowsAtOnce, end_of_rows(e));
}
__global__ void __launch_bounds__(kThreads) heads_apart(const __grid_constant__ RowEnd e) {
  ptx::begin_ahead();
  int head = static_cast<int>(blockIdx.x), which = 0;
  while (head >= e.head[which].count) head -= e.head[which++].count;
  row_end::head<kThreads>(e, which, head, int64_t{blockIdx.y} * kRowsAtOnce, end_of_rows(e));
}

}  // namespace

void queue_end(const RowEnd& e, CudaContext& context) {
  const auto grid = [&](int64_t groups) {
    return dim3(static_cast<unsigned>(groups), static_cast<unsigned>(ceil_div(e.rows, kRowsAtOnce)));
  };
  switch (e.kind) {
    case EndKind::norm:
      return QENG_LAUNCH_AHEAD(context, norm_apart, dim3(static_cast<unsigned>(e.rows)), dim3(kThreads), kEndBytes, e);
    case EndKind::gate:
      return QENG_LAUNCH_AHEAD(context, gate_apart, grid(ceil_div(e.columns[0], kWarpRun)), dim3(kThreads), 0, e);
    case EndKind::heads:
      return QENG_LAUNCH_AHEAD(context, heads_apart, grid(e.head[0].count + e.head[1].count + e.head[2].count),
                               dim3(kThreads), 0, e);
    default: return;
  }
}

}  // namespace qeng
