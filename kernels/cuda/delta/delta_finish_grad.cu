// The end of GatedDeltaGrad: the gradients of q and k as they lie in x from those of normalised rows, and those of g from
// those of its sums.
#include "kernels/cuda/delta/delta_grad.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

// n of a row's dims at a time for each lane.
template <int n>
struct LaneDims {
  static constexpr int kTimes = 256 / kWarp / n;
  float x[kTimes][n] = {}, dy[kTimes][n] = {};
  // Calls f(time, dim) for each n dims that the lane has.
  template <class F>
  __device__ static void each(int dim, F f) {
#pragma unroll
    for (int time = 0; time < kTimes; ++time) {
      const int d = (time * kWarp + static_cast<int>(threadIdx.x) % kWarp) * n;
      if (d < dim) f(time, d);
    }
  }
};

// The gradients of x from those of normalised rows, and of g and beta. n: 4, or 1 where x and dx are not aligned to four
// elements. What a warp reads of its next row is on its way while it has one.
constexpr int kFinishThreads = 256;
template <class T, int n>
__global__ void __launch_bounds__(kFinishThreads, 3)
    delta_finish_grad(const Delta<T> op, const DeltaPrepared prepared, const DeltaGradients from, T* dx, float* dg,
                      float* dbeta) {
  using Dims = LaneDims<n>;
  const int64_t slot = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), key_head = op.first_head + head;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const DeltaChunk chunk = chunk_at(op, slot);
  const int64_t first = slot * op.launched_value_heads() + head * op.group, of_key = (slot * op.heads + head) * kChunk;
  const auto x_of = [&](int i) {
    return i < chunk.rows ? op.q(chunk.row + i, key_head) : op.k(chunk.row + i - chunk.rows, key_head);
  };
  const auto read = [&](int i) {
    Dims row;
    const T* x = x_of(i);
    const float* gradient =
        (i < chunk.rows ? from.dq : from.dk) + (of_key + (i < chunk.rows ? i : i - chunk.rows)) * op.dim;
    Dims::each(op.dim, [&](int time, int d) {
      unpack(load<n>(x + d), row.x[time]);
      unpack(load_once<n>(gradient + d), row.dy[time]);
    });
    return row;
  };
  Dims row;
  if (warp < 2 * chunk.rows) row = read(warp);
  for (int i = warp; i < 2 * chunk.rows; i += kFinishThreads / kWarp) {
    const int after = i + kFinishThreads / kWarp;
    Dims next;
    if (after < 2 * chunk.rows) next = read(after);
    const bool is_q = i < chunk.rows;
    const float inverse = is_q ? prepared.inverse_q[of_key + i] : prepared.inverse_k[of_key + i - chunk.rows];
    float along = 0;
    Dims::each(op.dim, [&](int time, int) {
#pragma unroll
      for (int e = 0; e < n; ++e) along = fmaf(inverse * row.x[time][e], row.dy[time][e], along);
    });
    along = warp_sum(along) * (is_q ? static_cast<float>(op.dim) : 1.0f);  // over the factor of y, squared
    T* to = dx + (x_of(i) - op.x);
    Dims::each(op.dim, [&](int time, int d) {
      float out[n];
#pragma unroll
      for (int e = 0; e < n; ++e) out[e] = inverse * (row.dy[time][e] - inverse * row.x[time][e] * along);
      store(to + d, pack<T>(out));
    });
    row = next;
  }
  const int64_t tile = from.slots * op.launched_value_heads() * kChunk;
  for (int value = warp; value < op.group && chunk.rows > 0; value += kFinishThreads / kWarp) {
    const int64_t at = (first + value) * kChunk;
    const auto of_row = [&](const float* x, int i) {
      if (i >= chunk.rows) return 0.0f;
      float sum = 0;
#pragma unroll 1
      for (int i_tile = 0; i_tile < from.tiles; ++i_tile) sum += x[at + i + i_tile * tile];
      return sum;
    };
    // g of a row is in the sums from that row on: a lane adds its two rows to those of the lanes after.
    const float second = of_row(from.dsums, 2 * lane + 1), both = of_row(from.dsums, 2 * lane) + second;
    float sum = both;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const float after = __shfl_down_sync(kAllLanes, sum, static_cast<unsigned>(distance));
      if (lane + distance < kWarp) sum += after;
    }
    const float after = __shfl_down_sync(kAllLanes, sum, 1);
    for (int i = 2 * lane; i < 2 * lane + 2 && i < chunk.rows; ++i) {
      const int64_t to = (chunk.row + i) * op.value_heads + key_head * op.group + value;
      dg[to] = i % 2 == 0 ? sum : second + (lane + 1 < kWarp ? after : 0.0f);
      dbeta[to] = of_row(from.dbeta, i);
    }
  }
}

}  // namespace

template <class T>
void finish_delta_grad(const GatedDeltaGrad& op, const Delta<T>& delta, const DeltaPrepared& prepared,
                       const DeltaGradients& from, CudaContext& context) {
  const auto launch = [&](auto n) {
    QENG_LAUNCH(context, (delta_finish_grad<T, n()>),
                dim3(static_cast<unsigned>(from.slots), static_cast<unsigned>(delta.heads)), dim3(kFinishThreads), 0,
                delta, prepared, from, op.dx.as<T>(), op.dg.as<float>(), op.dbeta.as<float>());
  };
  if (aligned_for(4, op.x, op.dx))
    launch(std::integral_constant<int, 4>());
  else
    launch(std::integral_constant<int, 1>());
}
template void finish_delta_grad(const GatedDeltaGrad&, const Delta<float>&, const DeltaPrepared&, const DeltaGradients&,
                                CudaContext&);
template void finish_delta_grad(const GatedDeltaGrad&, const Delta<bf16>&, const DeltaPrepared&, const DeltaGradients&,
                                CudaContext&);

}  // namespace qeng
