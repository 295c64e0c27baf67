// Attention and AttentionGrad without tensor cores, for f32, any head_dim and value_dim up to 256, any scale, softcap
// and any alignment. A
// block owns 16 rows of one side and walks over those of the other, 16 at a time, all in shared memory as f32; 8
// threads share a row. As with tensor cores (attention_grad.cu), the gradients take a pass over the queries and one
// over the keys.
#include <algorithm>

#include "kernels/cuda/attention/attention.h"

namespace qeng {
namespace {

constexpr int kThreads = 128, kRows = 16, kStep = 16, kLanes = kThreads / kRows;  // lanes: threads of a row
constexpr int kPitch = kStep + 8;  // of what the rows share of a step: the rows of a warp lie in different banks

struct Width {
  int dim, pitch;  // pitch: of a row in shared memory, odd against bank conflicts
};
struct Sizes {
  int tq, tk, heads, group, kv_heads, window;
  Width key, value;  // of queries and keys; of values and outputs
  float scale, softcap;
};

template <int kCount, class T>
__device__ void load_tile(float* tile, const T* matrix, int64_t stride, int first, int end, Width width) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int row = static_cast<int>(threadIdx.x) / kWarp; row < kCount; row += kThreads / kWarp)
    for (int d = lane; d < width.dim; d += kWarp)
      tile[row * width.pitch + d] = first + row < end ? to_f32(matrix[(first + row) * stride + d]) : 0.0f;
}

// x[i] = <a, row of b>, for the rows lane, lane + kLanes, ...
template <int kMine>
__device__ inline void dots(float (&x)[kMine], const float* a, const float* b, int lane, Width width) {
  for (float& sum : x) sum = 0;
  for (int d = 0; d < width.dim; ++d)
#pragma unroll
    for (int i = 0; i < kMine; ++i) x[i] = fmaf(a[d], b[(lane + i * kLanes) * width.pitch + d], x[i]);
}
// sum[i] += sum_j p[j] row j of b, at the columns lane, lane + kLanes, ...
template <int kCount, int kColumns>
__device__ inline void add_rows(float (&sum)[kColumns], const float* p, const float* b, int lane, Width width) {
  for (int j = 0; j < kCount; ++j)
#pragma unroll
    for (int i = 0; i < kColumns; ++i)
      if (lane + i * kLanes < width.dim) sum[i] = fmaf(p[j], b[j * width.pitch + lane + i * kLanes], sum[i]);
}
template <class T, int kColumns>
__device__ inline void put_row(T* to, const float (&sum)[kColumns], float factor, int lane, Width width) {
#pragma unroll
  for (int i = 0; i < kColumns; ++i)
    if (lane + i * kLanes < width.dim) put(to + lane + i * kLanes, sum[i] * factor);
}
__device__ inline float row_sum(float x) {
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// The score of a product of q and k is value * factor in units of 2^x. slope: what a gradient of the score is, for one
// of the scaled product.
struct Score {
  float value, factor, slope;
};
__device__ inline Score score_of(float product, const Sizes& sizes) {
  if (sizes.softcap == 0) return {product, sizes.scale * kLog2e, 1};
  const float t = tanhf(product * sizes.scale / sizes.softcap);
  return {sizes.softcap * t, kLog2e, 1 - t * t};
}

template <class T>
struct Forward {
  const T *q, *k, *v;
  const float* sinks;
  T* o;
  float* lse;
  Sizes sizes;
  AttentionPlan* plan;
};

template <class T, int kColumns>
__global__ void __launch_bounds__(kThreads, 2) attention_general_kernel(Forward<T> a) {
  const Sizes& sizes = a.sizes;
  const int key_tile = kRows * sizes.key.pitch, value_tile = kRows * sizes.value.pitch;
  float* q = reinterpret_cast<float*>(shared_memory());
  float *k = q + key_tile, *v = k + key_tile, *p = v + value_tile;
  int* shared_item = reinterpret_cast<int*>(p + kRows * kPitch);
  const int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t q_stride = int64_t{sizes.heads} * sizes.key.dim, k_stride = int64_t{sizes.kv_heads} * sizes.key.dim;
  const int64_t o_stride = int64_t{sizes.heads} * sizes.value.dim, v_stride = int64_t{sizes.kv_heads} * sizes.value.dim;

  for (int item = next_item(a.plan, shared_item); item < a.plan->tiles * sizes.heads;
       item = next_item(a.plan, shared_item)) {
    const AttentionTile tile = a.plan->list()[item / sizes.heads];
    const int head = item % sizes.heads, kv_head = head / sizes.group, t = tile.first + row;
    const Span span = keys_seen(tile, tile.first, min(tile.first + kRows, tile.q_end), sizes.window, kStep);
    float o[kColumns] = {};
    SoftmaxRow softmax;
    load_tile<kRows>(q, a.q + int64_t{head} * sizes.key.dim, q_stride, tile.first, tile.q_end, sizes.key);
    for (int j0 = span.begin; j0 < span.end; j0 += kStep) {
      __syncthreads();
      load_tile<kStep>(k, a.k + int64_t{kv_head} * sizes.key.dim, k_stride, j0, tile.k_end, sizes.key);
      load_tile<kStep>(v, a.v + int64_t{kv_head} * sizes.value.dim, v_stride, j0, tile.k_end, sizes.value);
      __syncthreads();
      float s[kStep / kLanes], top = kMasked;
      dots(s, q + row * sizes.key.pitch, k, lane, sizes.key);
#pragma unroll
      for (int i = 0; i < kStep / kLanes; ++i) {
        const bool seen = AttentionTile::sees(tile.keys_after(t, j0 + lane + i * kLanes), sizes.window);
        const Score score = score_of(s[i], sizes);
        s[i] = seen ? score.value * score.factor : kMasked;
        top = fmaxf(top, s[i]);
      }
      for (int offset = kLanes / 2; offset > 0; offset /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, offset));
      const float factor = softmax.raise(top, 1), offset = softmax.offset(1);
#pragma unroll
      for (int i = 0; i < kStep / kLanes; ++i) {
        s[i] = SoftmaxRow::probability(s[i], 1, offset);
        softmax.total += s[i];
        p[row * kPitch + lane + i * kLanes] = s[i];
      }
      for (float& x : o) x *= factor;
      __syncwarp();  // the threads of a row are of one warp
      add_rows<kStep>(o, p + row * kPitch, v, lane, sizes.value);
    }
    softmax.total = row_sum(softmax.total);
    if (t >= tile.q_end) continue;
    const float factor = softmax.join(a.sinks ? a.sinks + head : nullptr, 1);
    put_row(a.o + t * o_stride + int64_t{head} * sizes.value.dim, o, factor * softmax.inverse(), lane, sizes.value);
    if (lane == 0) a.lse[int64_t{head} * sizes.tq + t] = softmax.lse(1);
  }
}

template <class T>
struct Backward {
  const T *q, *k, *v, *dout;
  const float *lse, *delta;
  T *dq, *dk, *dv;
  Sizes sizes;
  AttentionPlan* plan;
};

// Rows of the other side at a time: fewer where they are long, so that 64 KB hold them. The bits are the same.
template <int kColumns>
constexpr int kOthers = kColumns > 16 ? 8 : kStep;

template <class T, TileSide kSide, int kColumns>
__global__ void __launch_bounds__(kThreads, 2) attention_grad_general_kernel(Backward<T> a) {
  constexpr bool kKeys = kSide == TileSide::keys;
  constexpr int kOther = kOthers<kColumns>, kMine = kOther / kLanes;
  const Sizes& sizes = a.sizes;
  const Width key = sizes.key, value = sizes.value;
  float* own1 = reinterpret_cast<float*>(shared_memory());  // q or k; the second of each side: dout or v
  float *own2 = own1 + kRows * key.pitch, *other1 = own2 + kRows * value.pitch, *other2 = other1 + kOther * key.pitch;
  float *p = other2 + kOther * value.pitch, *ds = p + kRows * kPitch;
  int* shared_item = reinterpret_cast<int*>(ds + kRows * kPitch);
  const int row = static_cast<int>(threadIdx.x) / kLanes, lane = static_cast<int>(threadIdx.x) % kLanes;
  const int columns = kKeys ? sizes.kv_heads : sizes.heads, other_columns = kKeys ? sizes.heads : sizes.kv_heads;
  // A row of the own or the other side is all of its heads.
  const auto stride = [](int heads, Width width) { return int64_t{heads} * width.dim; };

  for (int item = next_item(a.plan, shared_item); item < a.plan->tiles * columns;
       item = next_item(a.plan, shared_item)) {
    const AttentionTile tile = a.plan->list()[item / columns];
    const int own_head = item % columns, kv_head = kKeys ? own_head : own_head / sizes.group;
    const int own_end = kKeys ? tile.k_end : tile.q_end, other_end = kKeys ? tile.q_end : tile.k_end;
    const int mine = tile.first + row, last = min(tile.first + kRows, own_end);
    const Span span = kKeys ? queries_seeing(tile, tile.first, last, sizes.window, kOther)
                            : keys_seen(tile, tile.first, last, sizes.window, kOther);
    float sum1[kColumns] = {}, sum2[kKeys ? kColumns : 1] = {};
    load_tile<kRows>(own1, (kKeys ? a.k : a.q) + stride(own_head, key), stride(columns, key), tile.first, own_end, key);
    load_tile<kRows>(own2, (kKeys ? a.v : a.dout) + stride(own_head, value), stride(columns, value), tile.first,
                     own_end, value);
    for (int h = kKeys ? kv_head * sizes.group : own_head, past = kKeys ? h + sizes.group : h + 1; h < past; ++h) {
      const int other_head = kKeys ? h : kv_head;
      const int64_t statistics = int64_t{h} * sizes.tq;
      for (int s0 = span.begin; s0 < span.end; s0 += kOther) {
        __syncthreads();
        load_tile<kOther>(other1, (kKeys ? a.q : a.k) + stride(other_head, key), stride(other_columns, key), s0,
                          other_end, key);
        load_tile<kOther>(other2, (kKeys ? a.dout : a.v) + stride(other_head, value), stride(other_columns, value), s0,
                          other_end, value);
        __syncthreads();
        float s[kMine], dp[kMine];
        dots(s, own1 + row * key.pitch, other1, lane, key);
        dots(dp, own2 + row * value.pitch, other2, lane, value);
#pragma unroll
        for (int i = 0; i < kMine; ++i) {
          const int other = s0 + lane + i * kLanes, t = kKeys ? other : mine, j = kKeys ? mine : other;
          const bool seen = t < tile.q_end && AttentionTile::sees(tile.keys_after(t, j), sizes.window);
          const float lse = seen ? a.lse[statistics + t] * kLog2e : 0, delta = seen ? a.delta[statistics + t] : 0;
          const Score score = score_of(s[i], sizes);
          s[i] = seen ? SoftmaxRow::probability(score.value, score.factor, lse) : 0;
          if constexpr (kKeys) p[row * kPitch + lane + i * kLanes] = s[i];
          ds[row * kPitch + lane + i * kLanes] = s[i] * (dp[i] - delta) * score.slope;
        }
        __syncwarp();  // the threads of a row are of one warp
        add_rows<kOther>(sum1, ds + row * kPitch, other1, lane, key);
        if constexpr (kKeys) add_rows<kOther>(sum2, p + row * kPitch, other2, lane, value);
      }
    }
    if (mine >= own_end) continue;
    const int64_t at = int64_t{mine} * columns + own_head;
    put_row((kKeys ? a.dk : a.dq) + at * key.dim, sum1, sizes.scale, lane, key);
    if constexpr (kKeys) put_row(a.dv + at * value.dim, sum2, 1, lane, value);
  }
}

template <class AnyOp>
Sizes sizes_of(const AnyOp& op, const AttentionShape& shape) {
  const Width key{shape.dim, shape.dim | 1}, value{shape.value_dim, shape.value_dim | 1};
  return {shape.tq, shape.tk, shape.heads, shape.group, shape.kv_heads, shape.window, key, value, op.scale, op.softcap};
}

template <class T, int kColumns>
void launch_forward(const Attention& op, const AttentionShape& shape, CudaContext& context) {
  const PlanWish wish{TileSide::queries, kRows, kStep};
  const Sizes sizes = sizes_of(op, shape);
  const Forward<T> a{
      op.q.as<T>(), op.k.as<T>(),       op.v.as<T>(), op.sinks ? op.sinks.as<float>() : nullptr,
      op.o.as<T>(), op.lse.as<float>(), sizes,        plan_attention(shape, op.cu_q, op.cu_k, wish, context)};
  const size_t shared =
      sizeof(float) * static_cast<size_t>(kRows * (2 * sizes.key.pitch + sizes.value.pitch + kPitch)) + sizeof(int);
  QENG_LAUNCH(context, (attention_general_kernel<T, kColumns>),
              plan_blocks(most_tiles(shape, wish) * shape.heads, context), dim3(kThreads), shared, a);
}

template <class T, TileSide kSide, int kColumns>
void launch_pass(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  constexpr int kOther = kOthers<kColumns>;
  const PlanWish wish{kSide, kRows, kOther};
  const Sizes sizes = sizes_of(op, shape);
  const Backward<T> a{op.q.as<T>(),
                      op.k.as<T>(),
                      op.v.as<T>(),
                      op.dout.as<T>(),
                      op.lse.as<float>(),
                      op.delta.as<float>(),
                      op.dq.as<T>(),
                      op.dk.as<T>(),
                      op.dv.as<T>(),
                      sizes,
                      plan_attention(shape, op.cu_q, op.cu_k, wish, context)};
  const size_t shared = sizeof(float) * static_cast<size_t>((kRows + kOther) * (sizes.key.pitch + sizes.value.pitch) +
                                                            2 * kRows * kPitch) +
                        sizeof(int);
  const int columns = kSide == TileSide::keys ? shape.kv_heads : shape.heads;
  QENG_LAUNCH(context, (attention_grad_general_kernel<T, kSide, kColumns>),
              plan_blocks(most_tiles(shape, wish) * columns, context), dim3(kThreads), shared, a);
}

// Calls f with the columns that a thread sums, as a constant.
template <class F>
void for_columns(int dim, F f) {
  if (dim <= 8 * kLanes) return f(std::integral_constant<int, 8>());
  if (dim <= 16 * kLanes) return f(std::integral_constant<int, 16>());
  f(std::integral_constant<int, 32>());
}

}  // namespace

void attention_general(const Attention& op, const AttentionShape& shape, CudaContext& context) {
  for_float(op.q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_columns(std::max(shape.dim, shape.value_dim),
                [&](auto columns) { launch_forward<T, columns>(op, shape, context); });
  });
}

void attention_grad_general(const AttentionGrad& op, const AttentionShape& shape, CudaContext& context) {
  attention_delta(op, shape, context);
  for_float(op.q, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    for_columns(std::max(shape.dim, shape.value_dim), [&](auto columns) {
      launch_pass<T, TileSide::keys, columns>(op, shape, context);
      launch_pass<T, TileSide::queries, columns>(op, shape, context);
    });
  });
}

}  // namespace qeng
