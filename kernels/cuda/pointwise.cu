// Pointwise. The program is a parameter of the kernel, which interprets it: a step is decoded once for several elements
// of a thread. Registers lie in shared memory, where each thread has its own words, so that no step waits for another.
//
// Without row functions and sums a thread takes elements of the space wherever they lie. Otherwise a block takes one
// row after the other, whose registers lie in shared memory too, or where that is too small in the device's; each
// thread then has the same columns throughout. Blocks of summed rows leave partial sums, which are added in order.
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/math/bf16.h"
#include "kernels/math/sincos.h"

namespace qeng {
namespace {

constexpr int kThreads = 128, kRowThreads = 256;
constexpr int64_t kSummedRows = 64;    // of a partial sum
constexpr int64_t kWindow = 4096;      // columns that a block of sums takes where rows need not be whole
constexpr int64_t kMostBlocks = 2048;  // of rows: each takes every kMostBlocks-th, or fewer where memory is short

struct Operand {
  void* data;
  DType dtype;
  bool dense;
  int64_t stride[kMaxRank];
};
struct Result {
  Operand view;
  uint8_t from;
  bool acc, row, sum;
  float* partial;  // of a sum
};
struct Program {
  PointwisePlan::Load loads[kMostPointwiseInputs];
  PointwiseStep steps[kMostPointwiseNodes];
  Operand in[kMostPointwiseInputs];
  Result out[kMostPointwiseOutputs];
  int load_count, step_count, out_count, rank;
  int64_t shape[kMaxRank];
  int64_t columns, rows, inner, summed;  // of the sums: kept rows in a summed one, rows of a sum
};

__device__ float read(const Operand& view, int64_t i) {
  switch (view.dtype) {
    case DType::f32: return static_cast<const float*>(view.data)[i];
    case DType::bf16: return to_f32(static_cast<const bf16*>(view.data)[i]);
    case DType::f16: return to_f32(static_cast<const f16*>(view.data)[i]);
    case DType::i32: return static_cast<float>(static_cast<const int32_t*>(view.data)[i]);
    case DType::i64: return static_cast<float>(static_cast<const int64_t*>(view.data)[i]);
    default: return static_cast<float>(static_cast<const uint8_t*>(view.data)[i]);
  }
}
__device__ void write(const Result& out, int64_t i, float value) {
  if (out.acc) value = read(out.view, i) + value;
  switch (out.view.dtype) {
    case DType::f32: static_cast<float*>(out.view.data)[i] = value; return;
    case DType::bf16: static_cast<bf16*>(out.view.data)[i] = to_bf16(value); return;
    case DType::f16: static_cast<f16*>(out.view.data)[i] = to_f16(value); return;
    default: static_cast<uint8_t*>(out.view.data)[i] = value != 0; return;
  }
}

// Where element (row, column) of the space lies; row: digits of the dimensions but the last.
__device__ int64_t place(const Program& p, const Operand& view, int64_t row, int64_t column) {
  if (view.dense) return row * p.columns + column;
  int64_t at = column * view.stride[p.rank - 1];
  for (int d = p.rank - 2; d >= 0; --d) {
    at += row % p.shape[d] * view.stride[d];
    row /= p.shape[d];
  }
  return at;
}

__device__ float apply(const PointwiseStep& s, float a, float b, float c) {
  switch (s.fn) {
    case Fn::constant: return s.value;
    case Fn::neg: return -a;
    case Fn::abs: return fabsf(a);
    case Fn::sign: return a > 0 ? 1.0f : a < 0 ? -1.0f : a;
    case Fn::exp: return expf(a);
    case Fn::expm1: return expm1f(a);
    case Fn::log: return logf(a);
    case Fn::log1p: return log1pf(a);
    case Fn::sqrt: return sqrtf(a);
    case Fn::rsqrt: return 1.0f / sqrtf(a);
    case Fn::sin:
    case Fn::cos: {
      if (!(fabsf(a) < 2147483648.0f)) return NAN;
      float sine, cosine;
      sin_cos(a, &sine, &cosine);
      return s.fn == Fn::sin ? sine : cosine;
    }
    case Fn::tanh: return tanhf(a);
    case Fn::erf: return erff(a);
    case Fn::sigmoid: return 1.0f / (1.0f + expf(-a));
    case Fn::add: return a + b;
    case Fn::sub: return a - b;
    case Fn::mul: return a * b;
    case Fn::div: return a / b;
    case Fn::pow: return powf(a, b);
    case Fn::min: return a < b || a != a ? a : b;
    case Fn::max: return a > b || a != a ? a : b;
    case Fn::less: return a < b;
    case Fn::less_equal: return a <= b;
    case Fn::equal: return a == b;
    case Fn::not_equal: return a != b;
    case Fn::where: return a != 0 ? b : c;
    default: return 0;  // row functions are not of one element
  }
}

// kElements of a thread: a multiple of kThreads apart.
template <int kElements>
__global__ void __launch_bounds__(kThreads) elements(const __grid_constant__ Program p) {
  float* registers = reinterpret_cast<float*>(shared_memory());  // [register, kElements, kThreads]
  constexpr int kRegister = kElements * kThreads;
  const int64_t first = int64_t{blockIdx.x} * kRegister + threadIdx.x, count = p.rows * p.columns;
  float* mine = registers + threadIdx.x;
  const auto each = [&](auto f) {
    for (int u = 0; u < kElements; ++u)
      if (first + u * kThreads < count) f(u * kThreads, first + u * kThreads);
  };
  for (int l = 0; l < p.load_count; ++l) {
    const Operand& view = p.in[p.loads[l].input];
    float* to = mine + p.loads[l].to * kRegister;
    each(
        [&](int at, int64_t i) { to[at] = read(view, view.dense ? i : place(p, view, i / p.columns, i % p.columns)); });
  }
  for (int s = 0; s < p.step_count; ++s) {
    const PointwiseStep& step = p.steps[s];
    const float *a = mine + step.a * kRegister, *b = mine + step.b * kRegister, *c = mine + step.c * kRegister;
    float* to = mine + step.to * kRegister;
    each([&](int at, int64_t) { to[at] = apply(step, a[at], b[at], c[at]); });
  }
  for (int o = 0; o < p.out_count; ++o) {
    const Result& out = p.out[o];
    const float* from = mine + out.from * kRegister;
    each([&](int at, int64_t i) {
      const int64_t row = i / p.columns, column = i % p.columns;
      if (!out.row || column == 0) write(out, out.view.dense ? i : place(p, out.view, row, column), from[at]);
    });
  }
}

// The row function of all threads' values; exchange: [kRowThreads].
__device__ float combine(Fn fn, float a, float b) {
  if (fn == Fn::row_sum) return a + b;
  if (fn == Fn::row_max) return a > b || a != a ? a : b;
  return a < b || a != a ? a : b;
}
__device__ float of_block(Fn fn, float value, float* exchange) {
  __syncthreads();
  exchange[threadIdx.x] = value;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) exchange[threadIdx.x] = combine(fn, exchange[threadIdx.x], exchange[threadIdx.x + half]);
    __syncthreads();
  }
  return exchange[0];
}

// Units are rows, or blocks of summed rows, times windows of columns. memory: null, or registers for each block.
__global__ void __launch_bounds__(kRowThreads, 3)
    rows(const __grid_constant__ Program p, int64_t units, int64_t window, int register_count, float* memory) {
  float* exchange = reinterpret_cast<float*>(shared_memory());
  float* registers = memory ? memory + int64_t{blockIdx.x} * register_count * window : exchange + kRowThreads;
  const int64_t windows = (p.columns + window - 1) / window;
  const int64_t blocks = (p.summed + kSummedRows - 1) / kSummedRows;
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int64_t begin = unit % windows * window, width = min(window, p.columns - begin), which = unit / windows;
    const int64_t block = p.summed ? which % blocks : 0, kept = p.summed ? which / blocks : which;
    const int64_t first = block * kSummedRows, last = p.summed ? min(p.summed, first + kSummedRows) : 1;
    for (int64_t s = first; s < last; ++s) {
      const int64_t row = p.summed ? kept / p.inner * p.summed * p.inner + s * p.inner + kept % p.inner : kept;
      for (int l = 0; l < p.load_count; ++l) {
        const Operand& view = p.in[p.loads[l].input];
        float* to = registers + p.loads[l].to * window;
        const int64_t start = place(p, view, row, begin), stride = view.dense ? 1 : view.stride[p.rank - 1];
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = read(view, start + i * stride);
      }
      for (int t = 0; t < p.step_count; ++t) {
        const PointwiseStep& step = p.steps[t];
        const float *a = registers + step.a * window, *b = registers + step.b * window,
                    *c = registers + step.c * window;
        float* to = registers + step.to * window;
        if (step.fn < Fn::row_sum) {
          for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = apply(step, a[i], b[i], c[i]);
          continue;
        }
        float value = step.fn == Fn::row_sum ? 0.0f : step.fn == Fn::row_max ? -INFINITY : INFINITY;
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) value = combine(step.fn, a[i], value);
        value = of_block(step.fn, value, exchange);
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = value;
      }
      for (int o = 0; o < p.out_count; ++o) {
        const Result& out = p.out[o];
        const float* from = registers + out.from * window;
        float* partial = out.sum ? out.partial + (kept * blocks + block) * p.columns + begin : nullptr;
        for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
          if (out.sum)
            partial[i] = s == first ? from[i] : partial[i] + from[i];
          else if (!out.row || begin + i == 0)
            write(out, place(p, out.view, row, begin + i), from[i]);
        }
      }
    }
  }
}

// out[k, j] (+)= sum over b of partial[k, b, j]
__global__ void __launch_bounds__(kThreads)
    add_partial(const __grid_constant__ Result out, int64_t blocks, int64_t columns, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  float sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += out.partial[(i / columns * blocks + b) * columns + i % columns];
  write(out, i, sum);
}

Operand operand_of(const View& view, const PointwiseSpace::Place& place) {
  Operand operand{view.data, view.dtype, place.dense, {}};
  std::copy(std::begin(place.stride), std::end(place.stride), operand.stride);
  return operand;
}

}  // namespace

void run(const Pointwise& op, CudaContext& context) {
  const PointwisePlan plan = plan_of(op);
  Program p{};
  if (plan.columns() == 0) return;
  std::copy(plan.loads.begin(), plan.loads.end(), p.loads), p.load_count = static_cast<int>(plan.loads.size());
  std::copy(plan.steps.begin(), plan.steps.end(), p.steps), p.step_count = static_cast<int>(plan.steps.size());
  std::copy(plan.shape, plan.shape + plan.rank, p.shape), p.rank = plan.rank;
  p.columns = plan.columns(), p.rows = plan.rows(), p.inner = 1;
  const bool sums = plan.sum_end > plan.sum_begin;
  int64_t summed = 1, kept = p.rows;
  if (sums) {
    for (int d = plan.sum_begin; d < plan.sum_end; ++d) summed *= plan.shape[d];
    for (int d = plan.sum_end; d + 1 < plan.rank; ++d) p.inner *= plan.shape[d];
    p.summed = summed, kept = summed ? p.rows / summed : 0;
  }
  const int64_t blocks = ceil_div(summed, kSummedRows);
  for (size_t i = 0; i < op.in.size(); ++i) p.in[i] = operand_of(op.in[i], plan.in[i]);
  p.out_count = static_cast<int>(op.out.size());
  for (size_t i = 0; i < op.out.size(); ++i) {
    p.out[i] = {operand_of(op.out[i].view, plan.out[i]),
                plan.results[i],
                op.out[i].acc,
                plan.is_row[i],
                plan.is_sum[i],
                plan.is_sum[i] ? context.scratch.take<float>(kept * blocks * p.columns) : nullptr};
  }
  const size_t registers = static_cast<size_t>(std::max(1, plan.registers));
  if (!sums && !plan.reduces) {
    const size_t bytes = registers * kThreads * sizeof(float);
    const bool several = 4 * bytes <= 48 * 1024;
    const int64_t tile = several ? 4 * kThreads : kThreads;
    launch(context, op.name, several ? elements<4> : elements<1>,
           dim3(static_cast<unsigned>(ceil_div(p.rows * p.columns, tile))), dim3(kThreads), several ? 4 * bytes : bytes,
           p);
    return;
  }
  const int64_t window = plan.reduces ? p.columns : std::min(p.columns, kWindow);
  const int64_t units = (sums ? kept * blocks : p.rows) * ceil_div(p.columns, window);
  const size_t exchange = kRowThreads * sizeof(float), bytes = registers * static_cast<size_t>(window) * sizeof(float);
  const bool shared = exchange + bytes <= std::min<size_t>(context.shared_limit, 96 * 1024);
  int64_t grid = std::min(units, kMostBlocks);
  if (!shared) grid = std::min<int64_t>(grid, 256);
  float* memory = shared ? nullptr : context.scratch.take<float>(grid * static_cast<int64_t>(registers) * window);
  int threads = kRowThreads;
  while (threads > 32 && threads / 2 >= window) threads /= 2;
  launch(context, op.name, rows, dim3(static_cast<unsigned>(grid)), dim3(static_cast<unsigned>(threads)),
         shared ? exchange + bytes : exchange, p, units, window, static_cast<int>(registers), memory);
  for (int i = 0; i < p.out_count; ++i) {
    if (!p.out[i].sum) continue;
    const int64_t count = op.out[static_cast<size_t>(i)].view.elements();
    launch(context, op.name, add_partial, dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads), 0,
           p.out[i], blocks, p.columns, count);
  }
}

}  // namespace qeng
