// Attention by tensor cores: a block takes kWarps * 16 * kTall queries of one head, each warp its own rows, and walks
// over the keys they see from the last to the first (Dao 2023, arXiv 2307.08691). K and V have one buffer each: V
// arrives while scores are computed, the next K while V is used.
#include "kernels/cuda/attention/attention_mma.h"

namespace qeng {
namespace {

struct Arguments {
  const bf16 *q, *k, *v;
  bf16* o;
  float* lse;
  int tq, heads, group, kv_heads, window;
  float scale_log2;          // scale * log2(e)
  float softcap, cap_scale;  // cap_scale: scale / softcap. Scores are capped, and scale_log2 is log2(e)
  const float* sinks;        // [heads], or null
  AttentionPlan* plan;
};

// kTall: tiles of 16 queries to a warp. Two of them use each fragment of K and V twice, which shared memory needs on
// sm_80, whose tensor cores take 16 rows as fast as it delivers. kStep: keys at a time.
// kSoftcap: whether scores are capped.
template <int kDimension, int kWarpCount, int kTallness, int kKeys, bool kSoftcap = false>
struct Tiles {
  static constexpr bool kCapped = kSoftcap;
  static constexpr int kDim = kDimension, kWarps = kWarpCount, kTall = kTallness, kStep = kKeys;
  static constexpr int kThreads = kWarps * kWarp, kRows = kWarps * 16 * kTall;
  using Q = SharedTile<kDim, kRows>;
  using K = SharedTile<kDim, kStep>;
  static constexpr int kShared = Q::kBytes + 2 * K::kBytes + 16;
};

template <class T>
__global__ void __launch_bounds__(T::kThreads) attention_kernel(Arguments a) {
  if (!ptx::from_sm80()) return;
  constexpr int kDim = T::kDim, kTall = T::kTall, kStep = T::kStep;
  using Q = typename T::Q;
  using K = typename T::K;
  char* q_tile = shared_memory();
  char* k_tile = q_tile + Q::kBytes;
  char* v_tile = k_tile + K::kBytes;
  int* shared_item = reinterpret_cast<int*>(v_tile + K::kBytes);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, row0 = static_cast<int>(threadIdx.x) / kWarp * 16 * kTall;
  const int q_stride = a.heads * kDim, kv_stride = a.kv_heads * kDim;
  const int q_lane = lane_offset<Q>(), k_lane = lane_offset<K>();

  for (int item = next_item(a.plan, shared_item); item < a.plan->tiles * a.heads;
       item = next_item(a.plan, shared_item)) {
    const AttentionTile tile = a.plan->list()[item / a.heads];
    const int head = item % a.heads;
    const int kv_column = head / a.group * kDim;
    const Span span = keys_seen(tile, tile.first, min(tile.first + T::kRows, tile.q_end), a.window, kStep);
    const int w0 = tile.first + row0, w1 = min(w0 + 16 * kTall, tile.q_end);  // the warp's queries

    float o[kTall][kDim / 8][4] = {};
    SoftmaxRow row[kTall][2];
    int j0 = span.begin;
    if (!span.empty()) {
      j0 += (span.end - 1 - span.begin) / kStep * kStep;
      Q::template load<T::kThreads>(q_tile, a.q, head * kDim, q_stride, tile.first, tile.q_end);
      K::template load<T::kThreads>(k_tile, a.k, kv_column, kv_stride, j0, tile.k_end);
      ptx::cp_async_commit();
    }
    for (; !span.empty() && j0 >= span.begin; j0 -= kStep) {
      ptx::cp_async_wait<0>();
      __syncthreads();  // K is there, and nobody needs the last V
      K::template load<T::kThreads>(v_tile, a.v, kv_column, kv_stride, j0, tile.k_end);
      ptx::cp_async_commit();
      const bool work = any_seen(tile, w0, w1, j0, j0 + kStep, a.window);
      uint32_t p[kTall][kStep / 16][4];
      if (work) {
        float s[kTall][kStep / 8][4] = {};
#pragma unroll
        for (int d = 0; d < kDim / 16; ++d) {
          uint32_t q[kTall][4];
#pragma unroll
          for (int i = 0; i < kTall; ++i) ptx::ldmatrix_x4(q[i], q_tile + Q::moved(q_lane, row0 + 16 * i, 2 * d));
#pragma unroll
          for (int n = 0; n < kStep / 16; ++n) {
            uint32_t b[4];
            ptx::ldmatrix_x4(b, k_tile + K::moved(k_lane, 16 * n, 2 * d));
#pragma unroll
            for (int i = 0; i < kTall; ++i) {
              ptx::mma_bf16(s[i][2 * n], q[i], b[0], b[2]);
              ptx::mma_bf16(s[i][2 * n + 1], q[i], b[1], b[3]);
            }
          }
        }
        if constexpr (T::kCapped) {
#pragma unroll
          for (int i = 0; i < kTall; ++i)
#pragma unroll
            for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
              for (int e = 0; e < 4; ++e) s[i][n][e] = a.softcap * tanhf(s[i][n][e] * a.cap_scale);
        }
        if (!all_seen(tile, w0, w1, j0, j0 + kStep, a.window)) {
          const int after = tile.keys_after(w0 + lane / 4, j0 + lane % 4 * 2);
#pragma unroll
          for (int i = 0; i < kTall; ++i)
#pragma unroll
            for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
              for (int e = 0; e < 4; ++e)
                if (!AttentionTile::sees(after + 16 * i + e / 2 * 8 - 8 * n - e % 2, a.window)) s[i][n][e] = kMasked;
        }
#pragma unroll
        for (int i = 0; i < kTall; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            SoftmaxRow& r = row[i][half];
            float top = kMasked;
#pragma unroll
            for (int n = 0; n < kStep / 8; ++n) top = fmaxf(top, fmaxf(s[i][n][2 * half], s[i][n][2 * half + 1]));
            const float factor = r.raise(quad_max(top), a.scale_log2), offset = r.offset(a.scale_log2);
#pragma unroll
            for (int n = 0; n < kStep / 8; ++n)
#pragma unroll
              for (int e = 2 * half; e < 2 * half + 2; ++e) {
                s[i][n][e] = SoftmaxRow::probability(s[i][n][e], a.scale_log2, offset);
                r.total += s[i][n][e];
              }
#pragma unroll
            for (int d = 0; d < kDim / 8; ++d) o[i][d][2 * half] *= factor, o[i][d][2 * half + 1] *= factor;
          }
#pragma unroll
          for (int n = 0; n < kStep / 16; ++n) pack_a(p[i][n], s[i][2 * n], s[i][2 * n + 1]);
        }
      }
      ptx::cp_async_wait<0>();
      __syncthreads();  // V is there, and nobody needs K
      if (j0 > span.begin) {
        K::template load<T::kThreads>(k_tile, a.k, kv_column, kv_stride, j0 - kStep, tile.k_end);
        ptx::cp_async_commit();
      }
      if (!work) continue;
#pragma unroll
      for (int n = 0; n < kStep / 16; ++n)
#pragma unroll
        for (int d = 0; d < kDim / 16; ++d) {
          uint32_t b[4];
          ptx::ldmatrix_x4_trans(b, v_tile + K::moved(k_lane, 16 * n, 2 * d));
#pragma unroll
          for (int i = 0; i < kTall; ++i) {
            ptx::mma_bf16(o[i][2 * d], p[i][n], b[0], b[1]);
            ptx::mma_bf16(o[i][2 * d + 1], p[i][n], b[2], b[3]);
          }
        }
    }

#pragma unroll
    for (int i = 0; i < kTall; ++i) {
      const int t = w0 + 16 * i + lane / 4;
      const bool write = t < tile.q_end, write8 = t + 8 < tile.q_end;
      float factor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        SoftmaxRow& r = row[i][half];
        r.total = quad_sum(r.total);
        factor[half] = r.join(a.sinks ? a.sinks + head : nullptr, a.scale_log2);
        factor[half] *= r.inverse();
      }
      store_rows(o[i], factor[0], factor[1], a.o + (int64_t{t} * a.heads + head) * kDim, q_stride, write, write8);
      float* lse = a.lse + int64_t{head} * a.tq + t;
      if (lane % 4 == 0 && write) lse[0] = row[i][0].lse(a.scale_log2);
      if (lane % 4 == 0 && write8) lse[8] = row[i][1].lse(a.scale_log2);
    }
  }
}

template <class T>
void launch_tiles(const Attention& op, const AttentionShape& shape, CudaContext& context) {
  const PlanWish wish{TileSide::queries, T::kRows, T::kStep};
  AttentionPlan* plan = plan_attention(shape, op.cu_q, op.cu_k, wish, context);
  const Arguments a{op.q.as<bf16>(),
                    op.k.as<bf16>(),
                    op.v.as<bf16>(),
                    op.o.as<bf16>(),
                    op.lse.as<float>(),
                    shape.tq,
                    shape.heads,
                    shape.group,
                    shape.kv_heads,
                    shape.window,
                    T::kCapped ? kLog2e : op.scale * kLog2e,
                    op.softcap,
                    T::kCapped ? op.scale / op.softcap : 0,
                    op.sinks ? op.sinks.as<float>() : nullptr,
                    plan};
  QENG_LAUNCH(context, attention_kernel<T>, plan_blocks(most_tiles(shape, wish) * shape.heads, context),
              dim3(T::kThreads), T::kShared, a);
}

}  // namespace

void run(const Attention& op, CudaContext& context) {
  const AttentionShape shape = attention_shape(op);
  if (context.capability == 90 && attention_sm90(op, shape, context)) return;
  const bool tensor_cores = context.tensor_bf16() && shape.value_dim == shape.dim && op.q.dtype == DType::bf16 &&
                            op.scale > 0 && aligned(op.q.data, 16) && aligned(op.k.data, 16) &&
                            aligned(op.v.data, 16) && aligned(op.o.data, 16);
  if (op.softcap > 0) {  // heads of the models that have it
    if (tensor_cores && shape.dim == 128) return launch_tiles<Tiles<128, 4, 2, 32, true>>(op, shape, context);
    if (tensor_cores && shape.dim == 256) return launch_tiles<Tiles<256, 8, 1, 32, true>>(op, shape, context);
    return attention_general(op, shape, context);
  }
  if (tensor_cores && shape.dim == 64) return launch_tiles<Tiles<64, 4, 2, 64>>(op, shape, context);
  if (tensor_cores && shape.dim == 96) return launch_tiles<Tiles<96, 4, 2, 32>>(op, shape, context);
  if (tensor_cores && shape.dim == 128) return launch_tiles<Tiles<128, 4, 2, 32>>(op, shape, context);
  if (tensor_cores && shape.dim == 256) return launch_tiles<Tiles<256, 8, 1, 32>>(op, shape, context);
  attention_general(op, shape, context);
}

}  // namespace qeng
