// Rearrange. A thread has an element, in the order of y's memory; where x lies along another dimension than y, tiles go
// through shared memory, so that both are touched along their lines.
#include <algorithm>

#include "kernels/cuda/vector.h"
#include "kernels/math/rearrange.h"

namespace qeng {
namespace {

constexpr int kThreads = 256, kTile = 32, kTileRows = 8;
// Elements from a row of a tile to the next, an odd number of words: those of a column lie in different banks.
template <class T>
constexpr int kPitch = kTile + (sizeof(T) < 4 ? 4 / static_cast<int>(sizeof(T)) : 1);

struct Walk {
  int count;
  RearrangedDimension outer[kMaxRank];
  __device__ void move(int64_t rest, int64_t& from, int64_t& to) const {
    for (int d = count - 1; d >= 0; --d) {
      from += rest % outer[d].size * outer[d].from, to += rest % outer[d].size * outer[d].to;
      rest /= outer[d].size;
    }
  }
};
Walk walk_of(const std::vector<RearrangedDimension>& dimensions) {
  Walk walk{static_cast<int>(dimensions.size()), {}};
  std::copy(dimensions.begin(), dimensions.end(), walk.outer);
  return walk;
}

template <class T, bool acc>
__global__ void __launch_bounds__(kThreads)
    move_elements(const T* x, T* y, const __grid_constant__ Walk walk, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  int64_t from = 0, to = 0;
  walk.move(i, from, to);
  if constexpr (acc)
    put(y + to, to_f32(y[to]) + to_f32(x[from]));
  else
    y[to] = x[from];
}

template <class T>
__global__ void __launch_bounds__(kTile* kTileRows) move_tiles(const T* x, T* y, const __grid_constant__ Walk walk,
                                                               RearrangedDimension across, RearrangedDimension line) {
  T* tile = reinterpret_cast<T*>(shared_memory());  // [kTile, kPitch]
  const int64_t bands = (across.size + kTile - 1) / kTile, pieces = (line.size + kTile - 1) / kTile;
  const int64_t unit = blockIdx.x, piece = unit % pieces * kTile, band = unit / pieces % bands * kTile;
  int64_t from = band * across.from + piece * line.from, to = band * across.to + piece * line.to;
  walk.move(unit / pieces / bands, from, to);
  const int lane = static_cast<int>(threadIdx.x % kTile), first = static_cast<int>(threadIdx.x / kTile);
  for (int l = first; l < kTile; l += kTileRows)
    if (piece + l < line.size && band + lane < across.size)
      tile[l * kPitch<T> + lane] = x[from + lane * across.from + l * line.from];
  __syncthreads();
  for (int a = first; a < kTile; a += kTileRows)
    if (piece + lane < line.size && band + a < across.size)
      y[to + a * across.to + lane * line.to] = tile[lane * kPitch<T> + a];
}

template <class T>
void copy(const Rearrange& op, CudaContext& context) {
  std::vector<RearrangedDimension> outer = rearranged_dimensions(op);
  const T* x = op.x.as<T>() + op.from.first;
  T* y = op.y.as<T>() + op.to.first;
  const RearrangedDimension line = outer.back();
  std::vector<RearrangedDimension> rest(outer.begin(), outer.end() - 1);
  const RearrangedDimension across = take_across(rest, line);
  if (across.size < kTile / 4 || line.size < kTile / 4) {
    const int64_t count = op.space.elements();
    launch(context, op.name, move_elements<T, false>, dim3(static_cast<unsigned>(ceil_div(count, kThreads))),
           dim3(kThreads), 0, x, y, walk_of(outer), count);
    return;
  }
  int64_t units = ceil_div(across.size, kTile) * ceil_div(line.size, kTile);
  for (const RearrangedDimension& each : rest) units *= each.size;
  launch(context, op.name, move_tiles<T>, dim3(static_cast<unsigned>(units)), dim3(kTile * kTileRows),
         kTile * kPitch<T> * sizeof(T), x, y, walk_of(rest), across, line);
}

template <class T>
void add(const Rearrange& op, CudaContext& context) {
  const int64_t count = op.space.elements();
  launch(context, op.name, move_elements<T, true>, dim3(static_cast<unsigned>(ceil_div(count, kThreads))),
         dim3(kThreads), 0, op.x.as<T>() + op.from.first, op.y.as<T>() + op.to.first,
         walk_of(rearranged_dimensions(op)), count);
}

}  // namespace

void run(const Rearrange& op, CudaContext& context) {
  if (op.space.elements() == 0) return;
  if (op.acc) {
    if (op.x.dtype == DType::f16) return add<f16>(op, context);
    return for_float(op.x, [&](auto* type) { add<std::remove_pointer_t<decltype(type)>>(op, context); });
  }
  switch (dtype_size(op.x.dtype)) {
    case 1: return copy<uint8_t>(op, context);
    case 2: return copy<uint16_t>(op, context);
    case 4: return copy<uint32_t>(op, context);
    default: return copy<uint64_t>(op, context);
  }
}

}  // namespace qeng
