// SumSquares, ClipScale, AdamW. A list of tensors goes to a kernel as a table in its parameters, which a recorded graph
// keeps; a block looks up whose elements it has, so that a step of hundreds of tensors is a handful of launches.
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/math/adamw_codes.h"
#include "kernels/math/adamw_step.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 16384;  // elements of a block: sums and their order depend on this, not on the device

// Tensors of one launch. The tables below stay under the 4 KB that every device takes as parameters.
constexpr int kTableSums = 120, kTableAdamW = 56;
template <int most>
struct Chunks {
  int count = 0;
  int first[most + 1] = {};  // the number of tensor i's first block
  int64_t elements[most];

  bool add(int64_t n) {
    const int64_t blocks = ceil_div(n, kChunk);
    if (count == most || first[count] + blocks > INT32_MAX) return false;
    elements[count] = n;
    first[count + 1] = first[count] + static_cast<int>(blocks);
    ++count;
    return true;
  }
  __device__ int tensor_of(int block) const {
    int low = 0, high = count - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first[middle] <= block)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// The sum over the block, in thread 0, by a fixed tree. shared: one double a thread.
__device__ double block_sum(double x, double* shared) {
  const int t = static_cast<int>(threadIdx.x);
  shared[t] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) shared[t] += shared[t + half];
  }
  return t == 0 ? shared[0] : 0;
}

struct SumTable {
  Chunks<kTableSums> chunks;
  const void* x[kTableSums];
  bool half[kTableSums];  // bf16
};

template <class T>
__device__ double sum_of_squares(const T* x, int64_t n) {
  constexpr int v = kVector<T>;
  static_assert(kChunk % (4 * v * kThreads) == 0);
  double sum = 0;
  const auto add = [&](float value) { sum += static_cast<double>(value) * static_cast<double>(value); };
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0 && n == kChunk) {
    for (int64_t i = threadIdx.x * v; i < kChunk; i += 4 * v * kThreads) {
      Pack<T, v> packs[4];
      for (int u = 0; u < 4; ++u) packs[u] = load_once<v>(x + i + u * v * kThreads);
      for (int u = 0; u < 4; ++u) {
        float values[v];
        unpack(packs[u], values);
        for (int j = 0; j < v; ++j) add(values[j]);
      }
    }
  } else {
    for (int64_t i = threadIdx.x; i < n; i += kThreads) add(to_f32(x[i]));
  }
  return sum;
}

// In double, as on the CPU: two operations of the slow unit an element, which the fastest consumer card just sustains
// at its memory's rate.
__global__ void __launch_bounds__(kThreads) chunk_squares(const SumTable table, double* partial) {
  const int block = static_cast<int>(blockIdx.x), tensor = table.chunks.tensor_of(block);
  const int64_t begin = (block - table.chunks.first[tensor]) * kChunk, left = table.chunks.elements[tensor] - begin;
  const int64_t n = left < kChunk ? left : kChunk;
  double sum = table.half[tensor] ? sum_of_squares(static_cast<const bf16*>(table.x[tensor]) + begin, n)
                                  : sum_of_squares(static_cast<const float*>(table.x[tensor]) + begin, n);
  sum = block_sum(sum, reinterpret_cast<double*>(shared_memory()));
  if (threadIdx.x == 0) partial[block] = sum;
}

// One block a tensor: its chunks' sums.
__global__ void __launch_bounds__(kThreads)
    add_chunks(const Chunks<kTableSums> chunks, const double* partial, float* out) {
  const int tensor = static_cast<int>(blockIdx.x);
  double sum = 0;
  for (int block = chunks.first[tensor] + static_cast<int>(threadIdx.x); block < chunks.first[tensor + 1];
       block += kThreads)
    sum += partial[block];
  sum = block_sum(sum, reinterpret_cast<double*>(shared_memory()));
  if (threadIdx.x == 0) out[tensor] = static_cast<float>(sum);
}

__global__ void __launch_bounds__(kThreads) clip_scale(const float* partials, int64_t n, float max_norm, float* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += static_cast<double>(partials[i]);
  sum = block_sum(sum, reinterpret_cast<double*>(shared_memory()));
  if (threadIdx.x != 0) return;
  const float norm = static_cast<float>(sqrt(sum));
  const bool finite = norm - norm == 0;
  out[0] = norm;
  out[1] = !finite ? 0.0f : max_norm > 0 ? fminf(1.0f, max_norm / (norm + 1e-6f)) : 1.0f;
  out[2] = finite ? 0.0f : 1.0f;
}

struct Step {
  AdamWStep numbers;
  int skip;
};

// By one thread, once: a power in double is far from free.
__global__ void adamw_begin(const float* hyper, const float* clip, float beta1, float beta2, float eps, float decay,
                            Step* step) {
  step->numbers = adamw_step(hyper[0], hyper[1], clip[1], beta1, beta2, eps, decay);
  step->skip = clip[2] != 0;
}

struct AdamWTable {
  Chunks<kTableAdamW> chunks;
  float* w[kTableAdamW];
  void* grad[kTableAdamW];
  void* m[kTableAdamW];
  void* v[kTableAdamW];
  bf16* model[kTableAdamW];
  float* scales[kTableAdamW];  // where moments are codes
  bool half[kTableAdamW];      // the gradient is bf16
};
static_assert(sizeof(SumTable) < 4000 && sizeof(AdamWTable) < 4000);

// A tensor's elements from a chunk's first on.
template <class Moment>
struct Part {
  float* w;
  void* grad;
  Moment *m, *v;
  bf16* model;
  bool half;
};
template <class Moment>
__device__ Part<Moment> part_of(const AdamWTable& table, int tensor, int64_t begin) {
  char* grad = static_cast<char*>(table.grad[tensor]) + begin * (table.half[tensor] ? 2 : 4);
  return {table.w[tensor] + begin,
          grad,
          static_cast<Moment*>(table.m[tensor]) + begin,
          static_cast<Moment*>(table.v[tensor]) + begin,
          table.model[tensor] ? table.model[tensor] + begin : nullptr,
          table.half[tensor]};
}
template <class Moment>
__device__ bool by_vectors(const Part<Moment>& p) {
  const auto at = [](const void* x, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(x) % bytes == 0; };
  return at(p.w, 16) && at(p.grad, p.half ? 8 : 16) && at(p.m, 4 * sizeof(Moment)) && at(p.v, 4 * sizeof(Moment)) &&
         at(p.model, 8);
}

template <class T, int n>
__device__ void take_grad(T* grad, float (&g)[n], bool clear) {
  unpack(load_once<n>(grad), g);
  if (!clear) return;
  const float zeros[n] = {};
  store_once(grad, pack<T>(zeros));
}
template <class Moment, int n>
__device__ void take_grad(const Part<Moment>& p, int64_t i, float (&g)[n], bool clear) {
  if (p.half)
    take_grad(static_cast<bf16*>(p.grad) + i, g, clear);
  else
    take_grad(static_cast<float*>(p.grad) + i, g, clear);
}
template <class Moment>
__device__ void clear_grad(const Part<Moment>& p, int64_t n) {
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    if (p.half)
      put(static_cast<bf16*>(p.grad) + i, 0.0f);
    else
      static_cast<float*>(p.grad)[i] = 0;
  }
}

template <int n>
__device__ void update(const AdamWStep& step, const Part<float>& p, int64_t i, bool clear) {
  const Pack<float, n> packed_w = load_once<n>(p.w + i), packed_m = load_once<n>(p.m + i),
                       packed_v = load_once<n>(p.v + i);
  float weights[n], g[n], first[n], second[n];
  take_grad(p, i, g, clear);
  unpack(packed_w, weights), unpack(packed_m, first), unpack(packed_v, second);
  for (int j = 0; j < n; ++j) weights[j] = adamw_update(step, weights[j], g[j], first + j, second + j);
  store_once(p.w + i, pack<float>(weights));
  store_once(p.m + i, pack<float>(first));
  store_once(p.v + i, pack<float>(second));
  if (p.model) store_once(p.model + i, pack<bf16>(weights));
}

__global__ void __launch_bounds__(kThreads) adamw(const AdamWTable table, const Step* given, bool clear) {
  const Step step = *given;
  const int block = static_cast<int>(blockIdx.x), tensor = table.chunks.tensor_of(block);
  const int64_t begin = (block - table.chunks.first[tensor]) * kChunk, left = table.chunks.elements[tensor] - begin;
  const int64_t n = left < kChunk ? left : kChunk;
  const Part<float> p = part_of<float>(table, tensor, begin);
  if (step.skip) {
    if (clear) clear_grad(p, n);
    return;
  }
  const int64_t whole = by_vectors(p) ? n / 4 * 4 : 0;
  for (int64_t i = threadIdx.x * 4; i < whole; i += 4 * kThreads) update<4>(step.numbers, p, i, clear);
  for (int64_t i = whole + threadIdx.x; i < n; i += kThreads) update<1>(step.numbers, p, i, clear);
}

__device__ float warp_max(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  return x;
}

// A block of moments from element i on, by a warp: lane l has elements 4 l .. 4 l + 3 of each half of it, or of what is
// left of a tensor every 32nd from l on.
template <int n>
__device__ void update_codes(const AdamWStep& step, const Part<uint8_t>& p, int64_t begin, int64_t count,
                             float* largest_m, float* largest_v, bool clear) {
  constexpr int kTurns = kMomentBlock / kWarp / n;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float old_m = *largest_m, old_v = *largest_v;
  float first[kTurns][n] = {}, second[kTurns][n] = {}, most_m = 0, most_v = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int64_t i = begin + (turn * kWarp + lane) * n;
    if (i - begin >= count) break;
    float weights[n], g[n];
    const Pack<float, n> packed_w = load_once<n>(p.w + i);
    const Pack<uint8_t, n> packed_m = load_once<n>(p.m + i), packed_v = load_once<n>(p.v + i);
    take_grad(p, i, g, clear);
    unpack(packed_w, weights);
#pragma unroll
    for (int j = 0; j < n; ++j) {
      first[turn][j] = decode_first_moment(static_cast<int>(packed_m.word[0] >> 8 * j & 255), old_m);
      second[turn][j] = decode_second_moment(static_cast<int>(packed_v.word[0] >> 8 * j & 255), old_v);
      weights[j] = adamw_update(step, weights[j], g[j], &first[turn][j], &second[turn][j]);
      most_m = fmaxf(most_m, fabsf(first[turn][j])), most_v = fmaxf(most_v, second[turn][j]);
    }
    store_once(p.w + i, pack<float>(weights));
    if (p.model) store_once(p.model + i, pack<bf16>(weights));
  }
  most_m = warp_max(most_m), most_v = warp_max(most_v);
  const float inverse_m = inverse_of_largest(most_m), inverse_v = inverse_of_largest(most_v);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int64_t i = begin + (turn * kWarp + lane) * n;
    if (i - begin >= count) break;
    Pack<uint8_t, n> m{}, v{};
#pragma unroll
    for (int j = 0; j < n; ++j) {
      m.word[0] |= static_cast<uint32_t>(encode_first_moment(first[turn][j], inverse_m)) << 8 * j;
      v.word[0] |= static_cast<uint32_t>(encode_second_moment(second[turn][j], inverse_v)) << 8 * j;
    }
    store_once(p.m + i, m), store_once(p.v + i, v);
  }
  __syncwarp();  // all lanes have read the old ones
  if (lane == 0) *largest_m = most_m, *largest_v = most_v;
}

__global__ void __launch_bounds__(kThreads) adamw_codes(const AdamWTable table, const Step* given, bool clear) {
  const Step step = *given;
  const int block = static_cast<int>(blockIdx.x), tensor = table.chunks.tensor_of(block);
  const int64_t begin = (block - table.chunks.first[tensor]) * kChunk, all = table.chunks.elements[tensor];
  const int64_t n = all - begin < kChunk ? all - begin : kChunk, blocks = (all + kMomentBlock - 1) / kMomentBlock;
  const Part<uint8_t> p = part_of<uint8_t>(table, tensor, begin);
  if (step.skip) {
    if (clear) clear_grad(p, n);
    return;
  }
  const bool vectors = by_vectors(p);
  for (int64_t i = threadIdx.x / kWarp * kMomentBlock; i < n; i += kThreads / kWarp * kMomentBlock) {
    float* largest = table.scales[tensor] + (begin + i) / kMomentBlock;
    const int64_t count = n - i < kMomentBlock ? n - i : kMomentBlock;
    if (vectors && count % 4 == 0)
      update_codes<4>(step.numbers, p, i, count, largest, largest + blocks, clear);
    else
      update_codes<1>(step.numbers, p, i, count, largest, largest + blocks, clear);
  }
}

constexpr size_t kShared = kThreads * sizeof(double);

}  // namespace

void run(const SumSquares& op, CudaContext& context) {
  for (size_t begin = 0; begin < op.x.size();) {
    SumTable table{};
    size_t end = begin;
    for (; end < op.x.size() && table.chunks.add(op.x[end].elements()); ++end)
      table.x[end - begin] = op.x[end].data, table.half[end - begin] = op.x[end].dtype == DType::bf16;
    if (end == begin) fail("shape", op.name, ": ", shape_text(op.x[begin]), " is too large");
    context.scratch.reset();
    double* partial = context.scratch.take<double>(table.chunks.first[table.chunks.count]);
    QENG_LAUNCH(context, chunk_squares, dim3(static_cast<unsigned>(table.chunks.first[table.chunks.count])),
                dim3(kThreads), kShared, table, partial);
    QENG_LAUNCH(context, add_chunks, dim3(static_cast<unsigned>(table.chunks.count)), dim3(kThreads), kShared,
                table.chunks, partial, op.out.as<float>() + begin);
    begin = end;
  }
}

void run(const ClipScale& op, CudaContext& context) {
  QENG_LAUNCH(context, clip_scale, dim3(1), dim3(kThreads), kShared, op.partials.as<float>(), op.partials.elements(),
              op.max_norm, op.out.as<float>());
}

void run(const AdamW& op, CudaContext& context) {
  Step* step = context.scratch.take<Step>(1);
  QENG_LAUNCH(context, adamw_begin, dim3(1), dim3(1), 0, op.hyper.as<float>(), op.clip.as<float>(), op.beta1, op.beta2,
              op.eps, op.decay, step);
  for (size_t begin = 0; begin < op.w.size();) {
    AdamWTable table{};
    size_t end = begin;
    for (; end < op.w.size() && table.chunks.add(op.w[end].elements()); ++end) {
      const size_t i = end - begin;
      table.w[i] = op.w[end].as<float>(), table.grad[i] = op.grad[end].data;
      table.m[i] = op.m[end].data, table.v[i] = op.v[end].data;
      table.half[i] = op.grad[end].dtype == DType::bf16;
      if (!op.scales.empty()) table.scales[i] = op.scales[end].as<float>();
      if (!op.model.empty()) table.model[i] = op.model[end].as<bf16>();
    }
    if (end == begin) fail("shape", op.name, ": ", shape_text(op.w[begin]), " is too large");
    const dim3 grid(static_cast<unsigned>(table.chunks.first[table.chunks.count]));
    if (op.scales.empty())
      QENG_LAUNCH(context, adamw, grid, dim3(kThreads), 0, table, step, op.clear);
    else
      QENG_LAUNCH(context, adamw_codes, grid, dim3(kThreads), 0, table, step, op.clear);
    begin = end;
  }
}

}  // namespace qeng
