// LmHeadLoss. Trained rows are gathered, op.trained of them, and computed a chunk at a time: logits in f32, which
// become their own gradient in place. How many rows are trained the device alone knows, and a product's size is given
// by the host, also in a recorded graph; so the list may end with rows that are none. Those are 0, and what they add to
// dw is too. It is padded, as on the CPU, also because a product of one row has a kernel of its own, with other sums.
// Where all rows are trained gathering is in vain: it moves h and dh twice, 0.2 % of the time of a head of 1.5B.
#include <algorithm>
#include <cfloat>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/vector.h"
#include "kernels/lm_head.h"

namespace qeng {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kListThreads = 512, kListWarps = kListThreads / kWarp;
constexpr int kCopyThreads = 128, kCopyWarps = kCopyThreads / kWarp;
constexpr int kGroup = 4;  // 16-byte reads under way in each thread: 64 KB of a multiprocessor, which runs one block
constexpr int kPartials = 64;  // floats of shared memory for the sums of warps; cached logits lie behind
constexpr float kLog2e = 1.44269504088896340736f;

struct List {
  const int32_t* targets;
  int64_t tokens, vocab;
  int64_t most;     // rows that may be trained
  int64_t length;   // rows that are computed, at least as many
  int32_t* rows;    // [length]: trained rows in order, then -1
  int32_t* places;  // [tokens]: where a row stands in that list; -1: nowhere
  float* nll;
  Fault* fault;
};

// One block, whose threads take neighbouring rows each, so that places in the list follow from sums over the threads
// before. It reads targets twice, which the L1 cache has the second time: some us of a head's ms.
__global__ void __launch_bounds__(kListThreads) list_rows(List list) {
  int* totals = reinterpret_cast<int*>(shared_memory());  // [kListWarps]
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  const int64_t each = (list.tokens + kListThreads - 1) / kListThreads;
  const int64_t begin = thread * each, end = begin + each < list.tokens ? begin + each : list.tokens;
  const auto trained = [&](int64_t t) { return list.targets[t] >= 0 && list.targets[t] < list.vocab; };
  int count = 0;
  for (int64_t t = begin; t < end; ++t) {
    if (trained(t))
      ++count;
    else if (list.targets[t] != -1)
      report(list.fault, FaultKind::target, t, list.targets[t], list.vocab);
  }
  int through = count;  // of this warp's threads up to this one, then of all
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, through, static_cast<unsigned>(step));
    if (lane >= step) through += other;
  }
  if (lane == kWarp - 1) totals[warp] = through;
  __syncthreads();
  int all = 0;
  for (int w = 0; w < kListWarps; ++w) {
    if (w == warp) through += all;
    all += totals[w];
  }
  if (thread == 0 && all > list.most) report(list.fault, FaultKind::trained, 0, all, list.most);
  int64_t place = through - count;
  for (int64_t t = begin; t < end; ++t) {
    const bool listed = trained(t) && place < list.most;
    list.places[t] = listed ? static_cast<int32_t>(place) : -1;
    if (listed) list.rows[place++] = static_cast<int32_t>(t);
    list.nll[t] = 0;  // until cross_entropy knows better
  }
  for (int64_t i = all + thread; i < list.length; i += kListThreads) list.rows[i] = -1;
}

// y[i] = x[from[i]], 0 where that is -1. A warp a row.
template <class T, int v>
__global__ void __launch_bounds__(kCopyThreads)
    copy_rows(const T* x, const int32_t* from, T* y, int64_t rows, int64_t columns) {
  const int64_t i = int64_t{blockIdx.x} * kCopyWarps + threadIdx.x / kWarp;
  if (i >= rows) return;
  const int64_t row = from[i];
  for (int64_t j = threadIdx.x % kWarp * v; j < columns; j += kWarp * v)
    store(y + i * columns + j, row >= 0 ? load<v>(x + row * columns + j) : Pack<T, v>{});
}

struct Rows {
  float* logits;
  const int32_t* rows;  // the chunk's; targets and nll are of all
  const int32_t* targets;
  const float* loss_scale;
  float* nll;
  int64_t vocab, stride;
  int64_t cached;  // logits of a row that stay in shared memory between the passes; a multiple of 4
  float softcap;
  bool gradient;
};

template <bool kCapped>
__device__ float capped(float logit, float softcap) {
  return kCapped ? softcap * tanhf(logit / softcap) : logit;
}

// Logits j .. j + 4 of a row, capped; those past its end count nothing.
template <bool kCapped>
__device__ void read(const float* z, int64_t j, int64_t vocab, float softcap, float (&x)[4]) {
  if (j + 4 <= vocab) {
    unpack<float>(load<4>(z + j), x);
    for (float& logit : x) logit = capped<kCapped>(logit, softcap);
  } else {
    for (int i = 0; i < 4; ++i) x[i] = j + i < vocab ? capped<kCapped>(z[j + i], softcap) : -INFINITY;
  }
}

template <class T>
__device__ void zero_row(T* dz, int64_t vocab) {
  constexpr int v = kVector<T>;
  for (int64_t j = int64_t{threadIdx.x} * v; j < vocab; j += int64_t{blockDim.x} * v) store(dz + j, Pack<T, v>{});
}

// A block a row. nll = logsumexp(z) - z[target]; z becomes loss_scale * (softmax(z) - onehot) of type T, from the start
// of its own memory. kCapped: with softcap.
template <class T, bool kCapped>
__global__ void __launch_bounds__(kMostThreads) cross_entropy(Rows rows) {
  const int64_t token = rows.rows[blockIdx.x], vocab = rows.vocab;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float* z = rows.logits + int64_t{blockIdx.x} * rows.stride;
  T* dz = reinterpret_cast<T*>(z);
  if (token < 0) {
    if (rows.gradient) zero_row(dz, vocab);
    return;
  }
  const int64_t target = rows.targets[token];
  float *partials = reinterpret_cast<float*>(shared_memory()), *cache = partials + kPartials;
  const float target_logit =
      capped<kCapped>(z[target], rows.softcap);  // before the second pass writes over it: barriers lie between

  // First pass: maximum and sum of exponentials. From the end to the start, because the second pass begins where this
  // one stops: what the shared memory does not hold is then most likely in the L2 cache still.
  float top = -FLT_MAX, sum = 0;
  const int64_t step = int64_t{threads} * 4, rounds = (vocab + step - 1) / step;
  for (int64_t last = rounds; last > 0; last -= kGroup) {
    float x[kGroup][4];
    float highest = top;
    for (int g = 0; g < kGroup; ++g) {
      const int64_t j = (last - 1 - g) * step + thread * 4;
      if (last - 1 - g >= 0 && j < vocab) {
        read<kCapped>(z, j, vocab, rows.softcap, x[g]);
      } else {
        for (int i = 0; i < 4; ++i) x[g][i] = -INFINITY;
      }
    }
    for (int g = 0; g < kGroup; ++g) {
      const int64_t j = (last - 1 - g) * step + thread * 4;
      if (j >= 0 && j < rows.cached) store(cache + j, pack<float>(x[g]));
      for (int i = 0; i < 4; ++i) highest = fmaxf(highest, x[g][i]);
    }
    sum *= ptx::exp2_approx((top - highest) * kLog2e);
    top = highest;
    for (int g = 0; g < kGroup; ++g)
      for (int i = 0; i < 4; ++i) sum += ptx::exp2_approx((x[g][i] - top) * kLog2e);
  }

  const int warp = thread / kWarp, lane = thread % kWarp, warps = threads / kWarp;
  const float warp_top = warp_max(top);
  if (lane == 0) partials[warp] = warp_top;
  __syncthreads();
  const float row_top = warp_max(lane < warps ? partials[lane] : -FLT_MAX);
  const float warp_total = warp_sum(sum * ptx::exp2_approx((top - row_top) * kLog2e));
  if (lane == 0) partials[kWarp + warp] = warp_total;
  __syncthreads();
  const float total = warp_sum(lane < warps ? partials[kWarp + lane] : 0.0f);
  if (thread == 0) rows.nll[token] = (row_top - target_logit) + logf(total);
  if (!rows.gradient) return;

  // Second pass. A bf16 gradient j lies where logit j / 2 was. So gradients up to 2c may be written when logits up to c
  // have been read by all: c is what the cache holds at first, and doubles with each barrier. What a group reads lies
  // behind all that is written before the next barrier; gradients in f32 lie where their own logits were.
  const float scale = *rows.loss_scale, factor = scale / total;
  constexpr int64_t shrink = static_cast<int64_t>(sizeof(float) / sizeof(T));
  const int64_t end = rounds * step;
  int64_t limit = shrink == 1 ? end : rows.cached * shrink;
  for (int64_t begin = 0; begin < vocab; begin = limit, limit *= shrink) {
    if (begin > 0) __syncthreads();
    const int64_t stop = limit < vocab ? limit : vocab;
    for (int64_t first = begin + thread * 4; first < stop; first += kGroup * step) {
      float x[kGroup][4];
      for (int g = 0; g < kGroup; ++g) {
        const int64_t j = first + g * step;
        if (j >= stop) break;
        if (j < rows.cached)
          unpack<float>(load<4>(cache + j), x[g]);
        else
          read<kCapped>(z, j, vocab, rows.softcap, x[g]);
      }
      for (int g = 0; g < kGroup; ++g) {
        const int64_t j = first + g * step;
        if (j >= stop) break;
        for (int i = 0; i < 4; ++i) {
          const float t = kCapped ? x[g][i] / rows.softcap : 0;
          x[g][i] = factor * ptx::exp2_approx((x[g][i] - row_top) * kLog2e);
          if (j + i == target) x[g][i] -= scale;
          if constexpr (kCapped) x[g][i] *= 1 - t * t;
        }
        store(dz + j, pack<T>(x[g]));  // past the row's end lies its padding
      }
    }
  }
}

constexpr int kSumThreads = 256;

// loss = scale * sum of nll, in double, in an order that only the number of tokens sets.
__global__ void __launch_bounds__(kSumThreads)
    sum_loss(const float* nll, int64_t tokens, const float* loss_scale, float* loss) {
  double* partials = reinterpret_cast<double*>(shared_memory());
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t t = thread; t < tokens; t += kSumThreads) sum += static_cast<double>(nll[t]);
  partials[thread] = sum;
  for (int half = kSumThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) partials[thread] += partials[thread + half];
  }
  if (thread == 0) *loss = static_cast<float>(static_cast<double>(*loss_scale) * partials[0]);
}

// count rows of y, from rows of x.
void copy(const View& x, const int32_t* from, const View& y, int64_t count, CudaContext& context) {
  for_float(x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int v = kVector<T>;
    const bool vectors = x.columns() % v == 0 && aligned_for(v, x, y);
    launch(context, LmHeadLoss::name, vectors ? copy_rows<T, v> : copy_rows<T, 1>,
           dim3(static_cast<unsigned>(ceil_div(count, kCopyWarps))), dim3(kCopyThreads), 0, x.as<T>(), from, y.as<T>(),
           count, x.columns());
  });
}

}  // namespace

void run(const LmHeadLoss& op, CudaContext& context) {
  const DType dtype = op.h.dtype;
  const int64_t tokens = op.h.rows(), hidden = op.h.columns(), vocab = op.w.rows();
  const int64_t most = op.trained < 0 ? tokens : op.trained, length = LmHeadParts::padded(most);
  const LmHeadParts parts(tokens, hidden, vocab, op.chunk, dtype);
  char* base = LmHeadParts::base(op.workspace);
  const View h(base + parts.h, dtype, {length, hidden}), dh(base + parts.dh, dtype, {length, hidden});

  List list;
  list.targets = op.targets.as<int32_t>(), list.tokens = tokens, list.vocab = vocab;
  list.most = most, list.length = length;
  list.rows = reinterpret_cast<int32_t*>(base + parts.rows);
  list.places = reinterpret_cast<int32_t*>(base + parts.places);
  list.nll = op.nll.as<float>(), list.fault = context.fault;
  QENG_LAUNCH(context, list_rows, dim3(1), dim3(kListThreads), kListWarps * sizeof(int), list);
  copy(op.h, list.rows, h, length, context);

  Rows rows;
  rows.logits = reinterpret_cast<float*>(base + parts.logits);
  rows.targets = list.targets, rows.nll = list.nll, rows.loss_scale = op.loss_scale.as<float>();
  rows.vocab = vocab, rows.stride = LmHeadParts::row(vocab);
  rows.softcap = op.softcap, rows.gradient = static_cast<bool>(op.dh);
  const int64_t room = static_cast<int64_t>(context.shared_limit / sizeof(float)) - kPartials;
  rows.cached = std::min(ceil_div(vocab, 4), room / 4) * 4;
  const size_t shared = static_cast<size_t>(kPartials + rows.cached) * sizeof(float);
  const int64_t threads = std::clamp<int64_t>(ceil_div(vocab, 4 * kGroup * kWarp) * kWarp, kWarp, kMostThreads);

  CudaGemm product;  // z = h W^T
  product.n = vocab, product.k = hidden;
  product.b = op.w.data, product.c = rows.logits;
  product.in = dtype, product.stored = op.w.dtype, product.trans_b = true;
  product.lda = product.ldb = hidden, product.ldc = rows.stride;
  CudaGemm back;  // dh = dz W
  back.n = hidden, back.k = vocab;
  back.a = rows.logits, back.b = op.w.data;
  back.in = back.out = dtype, back.stored = op.w.dtype;
  back.lda = rows.stride * 4 / static_cast<int64_t>(dtype_size(dtype)), back.ldb = back.ldc = hidden;
  if (const size_t bytes = std::max(panel_bytes(product), panel_bytes(back)))
    product.panel = back.panel = context.scratch.take(bytes);

  const int64_t chunk = LmHeadParts::padded(op.chunk);
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t count = std::min(chunk, length - begin);
    product.m = count, product.a = at(h, begin * hidden);
    run_gemm(product, context);

    rows.rows = list.rows + begin;
    const dim3 grid(static_cast<unsigned>(count)), block(static_cast<unsigned>(threads));
    for_float(op.h, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      launch(context, op.name, op.softcap > 0 ? cross_entropy<T, true> : cross_entropy<T, false>, grid, block, shared,
             rows);
    });
    if (!op.dh) continue;

    back.m = count, back.c = at(dh, begin * hidden);
    run_gemm(back, context);
    if (!op.dw) continue;

    CudaGemm weight;  // dw += dz^T h
    weight.m = vocab, weight.n = hidden, weight.k = count;
    weight.a = rows.logits, weight.b = at(h, begin * hidden), weight.c = op.dw.data;
    weight.in = dtype, weight.trans_a = weight.acc = true;
    weight.lda = back.lda, weight.ldb = weight.ldc = hidden;
    run_gemm(weight, context);
  }
  if (op.dh) copy(dh, list.places, op.dh, tokens, context);
  QENG_LAUNCH(context, sum_loss, dim3(1), dim3(kSumThreads), kSumThreads * sizeof(double), op.nll.as<float>(), tokens,
              rows.loss_scale, op.loss.as<float>());
}

}  // namespace qeng
