// LmHeadLoss. A chunk of rows at a time: logits in f32, which become their own gradient in place. All rows are
// computed, also those that are not trained: how many are is known on the device only, and a product's size is given by
// the host, also in a recorded graph. Their gradient is 0, so what they add to dh and dw is too.
#include <cfloat>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/vector.h"
#include "kernels/lm_head.h"

namespace qeng {

namespace {

constexpr int kMostThreads = 1024;
constexpr int kGroup = 4;  // 16-byte reads under way in each thread: 64 KB of a multiprocessor, which runs one block
constexpr int kPartials = 64;  // floats of shared memory for the sums of warps; cached logits lie behind
constexpr float kLog2e = 1.44269504088896340736f;

struct Rows {
  float* logits;
  const int32_t* targets;  // of the chunk's rows, as nll
  const float* loss_scale;
  float* nll;
  int64_t first, vocab, stride;
  int64_t cached;  // logits of a row that stay in shared memory between the passes; a multiple of 4
  float softcap;
  bool gradient;
  Fault* fault;
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
  const int64_t row = blockIdx.x, vocab = rows.vocab, target = rows.targets[row];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  float* z = rows.logits + row * rows.stride;
  T* dz = reinterpret_cast<T*>(z);
  if (target < 0 || target >= vocab) {
    if (thread == 0) {
      rows.nll[row] = 0;
      if (target != -1) report(rows.fault, FaultKind::target, rows.first + row, target, vocab);
    }
    if (rows.gradient) zero_row(dz, vocab);
    return;
  }
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
  if (thread == 0) rows.nll[row] = (row_top - target_logit) + logf(total);
  if (!rows.gradient) return;

  // Second pass. A bf16 gradient j lies where logit j / 2 was. So gradients up to 2c may be written when logits up to c
  // have been read by all: c is what the cache holds at first, and doubles with each barrier.
  const float scale = *rows.loss_scale, factor = scale / total;
  constexpr int64_t shrink = static_cast<int64_t>(sizeof(float) / sizeof(T));
  const int64_t end = rounds * step;
  int64_t limit = shrink == 1 ? end : rows.cached * shrink;
  for (int64_t begin = 0; begin < vocab; begin = limit, limit *= shrink) {
    if (begin > 0) __syncthreads();
    for (int64_t j = begin + thread * 4; j < limit && j < vocab; j += step) {
      float x[4];
      if (j < rows.cached)
        unpack<float>(load<4>(cache + j), x);
      else
        read<kCapped>(z, j, vocab, rows.softcap, x);
      for (int i = 0; i < 4; ++i) {
        const float t = kCapped ? x[i] / rows.softcap : 0;
        x[i] = factor * ptx::exp2_approx((x[i] - row_top) * kLog2e);
        if (j + i == target) x[i] -= scale;
        if constexpr (kCapped) x[i] *= 1 - t * t;
      }
      store(dz + j, pack<T>(x));  // past the row's end lies its padding
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

}  // namespace

void run(const LmHeadLoss& op, CudaContext& context) {
  const DType dtype = op.h.dtype;
  const int64_t tokens = op.h.rows(), hidden = op.h.columns(), vocab = op.w.rows();
  const LmHeadParts parts(tokens, hidden, vocab, op.chunk, dtype);

  Rows rows;
  rows.logits = reinterpret_cast<float*>(LmHeadParts::base(op.workspace) + parts.logits);
  rows.loss_scale = op.loss_scale.as<float>();
  rows.vocab = vocab, rows.stride = LmHeadParts::row(vocab);
  rows.softcap = op.softcap, rows.gradient = static_cast<bool>(op.dh), rows.fault = context.fault;
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
  for (int64_t begin = 0; begin < tokens; begin += chunk) {
    const int64_t count = std::min(chunk, tokens - begin);
    product.m = count, product.a = at(op.h, begin * hidden);
    run_gemm(product, context);

    rows.first = begin;
    rows.targets = op.targets.as<int32_t>() + begin, rows.nll = op.nll.as<float>() + begin;
    const dim3 grid(static_cast<unsigned>(count)), block(static_cast<unsigned>(threads));
    for_float(op.h, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      launch(context, op.name, op.softcap > 0 ? cross_entropy<T, true> : cross_entropy<T, false>, grid, block, shared,
             rows);
    });
    if (!op.dh) continue;

    back.m = count, back.c = at(op.dh, begin * hidden);
    run_gemm(back, context);
    if (!op.dw) continue;

    CudaGemm weight;  // dw += dz^T h
    weight.m = vocab, weight.n = hidden, weight.k = count;
    weight.a = rows.logits, weight.b = at(op.h, begin * hidden), weight.c = op.dw.data;
    weight.in = dtype, weight.trans_a = weight.acc = true;
    weight.lda = back.lda, weight.ldb = weight.ldc = hidden;
    run_gemm(weight, context);
  }
  QENG_LAUNCH(context, sum_loss, dim3(1), dim3(kSumThreads), kSumThreads * sizeof(double), op.nll.as<float>(), tokens,
              rows.loss_scale, op.loss.as<float>());
}

}  // namespace qeng
