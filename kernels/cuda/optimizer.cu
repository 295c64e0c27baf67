// SumSquares, ClipScale, AdamW. A list of tensors goes to a kernel as a table in its parameters, which a recorded graph
// keeps; a block looks up whose elements it has, so that a step of hundreds of tensors is a handful of launches.
#include "kernels/cuda/vector.h"
#include "kernels/math/adamw_step.h"

namespace qeng {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kChunk = 16384;  // elements of a block: sums and their order depend on this, not on the device

// Tensors of one launch. The tables below stay under the 4 KB that every device takes as parameters.
constexpr int kTableSums = 128, kTableAdamW = 56;
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
  const float* x[kTableSums];
};

// In double, as on the CPU: two operations of the slow unit an element, which the fastest consumer card just sustains
// at its memory's rate.
__global__ void __launch_bounds__(kThreads) chunk_squares(const SumTable table, double* partial) {
  const int block = static_cast<int>(blockIdx.x), tensor = table.chunks.tensor_of(block);
  const int64_t begin = (block - table.chunks.first[tensor]) * kChunk, left = table.chunks.elements[tensor] - begin;
  const int64_t n = left < kChunk ? left : kChunk;
  const float* x = table.x[tensor] + begin;
  double sum = 0;
  if (reinterpret_cast<uintptr_t>(x) % 16 == 0 && n == kChunk) {
    for (int64_t i = threadIdx.x * 4; i < kChunk; i += 4 * 4 * kThreads) {
      Pack<float, 4> packs[4];
      for (int u = 0; u < 4; ++u) packs[u] = load_once<4>(x + i + u * 4 * kThreads);
      for (int u = 0; u < 4; ++u) {
        float values[4];
        unpack(packs[u], values);
        for (int j = 0; j < 4; ++j) sum += static_cast<double>(values[j]) * static_cast<double>(values[j]);
      }
    }
  } else {
    for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
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
  float* grad[kTableAdamW];
  float* m[kTableAdamW];
  float* v[kTableAdamW];
  bf16* model[kTableAdamW];
};
static_assert(sizeof(SumTable) < 4000 && sizeof(AdamWTable) < 4000);

template <int n>
__device__ void update(const AdamWStep& step, float* w, float* grad, float* m, float* v, bf16* model, bool clear) {
  const Pack<float, n> packed_w = load_once<n>(w), packed_g = load_once<n>(grad), packed_m = load_once<n>(m),
                       packed_v = load_once<n>(v);
  float weights[n], g[n], first[n], second[n];
  unpack(packed_w, weights), unpack(packed_g, g), unpack(packed_m, first), unpack(packed_v, second);
  for (int j = 0; j < n; ++j) weights[j] = adamw_update(step, weights[j], g[j], first + j, second + j);
  store_once(w, pack<float>(weights));
  store_once(m, pack<float>(first));
  store_once(v, pack<float>(second));
  if (model) store_once(model, pack<bf16>(weights));
  if (clear) {
    for (int j = 0; j < n; ++j) g[j] = 0;
    store_once(grad, pack<float>(g));
  }
}

__global__ void __launch_bounds__(kThreads) adamw(const AdamWTable table, const Step* given, bool clear) {
  const Step step = *given;
  const int block = static_cast<int>(blockIdx.x), tensor = table.chunks.tensor_of(block);
  const int64_t begin = (block - table.chunks.first[tensor]) * kChunk, left = table.chunks.elements[tensor] - begin;
  const int64_t n = left < kChunk ? left : kChunk;
  float *w = table.w[tensor] + begin, *grad = table.grad[tensor] + begin, *m = table.m[tensor] + begin,
        *v = table.v[tensor] + begin;
  bf16* model = table.model[tensor] ? table.model[tensor] + begin : nullptr;
  if (step.skip) {
    if (clear)
      for (int64_t i = threadIdx.x; i < n; i += kThreads) grad[i] = 0;
    return;
  }
  const auto at_vector = [](const void* p, uintptr_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  const bool vectors =
      at_vector(w, 16) && at_vector(grad, 16) && at_vector(m, 16) && at_vector(v, 16) && at_vector(model, 8);
  const int64_t whole = vectors ? n / 4 * 4 : 0;
  for (int64_t i = threadIdx.x * 4; i < whole; i += 4 * kThreads)
    update<4>(step.numbers, w + i, grad + i, m + i, v + i, model ? model + i : nullptr, clear);
  for (int64_t i = whole + threadIdx.x; i < n; i += kThreads)
    update<1>(step.numbers, w + i, grad + i, m + i, v + i, model ? model + i : nullptr, clear);
}

constexpr size_t kShared = kThreads * sizeof(double);

}  // namespace

void run(const SumSquares& op, CudaContext& context) {
  for (size_t begin = 0; begin < op.x.size();) {
    SumTable table{};
    size_t end = begin;
    for (; end < op.x.size() && table.chunks.add(op.x[end].elements()); ++end)
      table.x[end - begin] = op.x[end].as<float>();
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
      table.w[i] = op.w[end].as<float>(), table.grad[i] = op.grad[end].as<float>();
      table.m[i] = op.m[end].as<float>(), table.v[i] = op.v[end].as<float>();
      if (!op.model.empty()) table.model[i] = op.model[end].as<bf16>();
    }
    if (end == begin) fail("shape", op.name, ": ", shape_text(op.w[begin]), " is too large");
    QENG_LAUNCH(context, adamw, dim3(static_cast<unsigned>(table.chunks.first[table.chunks.count])), dim3(kThreads), 0,
                table, step, op.clear);
    begin = end;
  }
}

}  // namespace qeng
