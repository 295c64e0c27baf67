// Attention's gradient for a run of keys: each tile of keys meets the queries that see it once (five products), so dk
// and dv are finished here, and dq is summed over the tiles in order.
#include "kernels/cpu/isa/attention/attention.h"
#include "kernels/cpu/isa/simd/tile.h"

namespace qeng::isa::QENG_ISA {
namespace {

// scores -> P = exp(scores - lse), dp -> dS = P (dp - delta), the latter by what a softcap of the scores lets through;
// both 0 where masked
inline void gradient_row(float* scores, float* dp, Visible seen, float lse, float delta, float softcap) {
  if (seen.low >= seen.high) {
    clear(scores, kTileKeys);
    return clear(dp, kTileKeys);
  }
  for (int64_t j = 0; j < kTileKeys; j += kWidth) {
    Vec s = load(scores + j), ds = load(dp + j) - splat(delta);
    if (softcap > 0) {
      const Vec t = tanh(s / splat(softcap));
      s = splat(softcap) * t, ds = ds * (splat(1.0f) - t * t);
    }
    const Vec p = exp_normal(s - splat(lse));
    store(scores + j, p);
    store(dp + j, p * ds);
  }
  for (int64_t j = 0; j < seen.low; ++j) scores[j] = dp[j] = 0;
  for (int64_t j = seen.high; j < kTileKeys; ++j) scores[j] = dp[j] = 0;
}

template <class T>
void backward(const AttentionGradTile& tile) {
  const int64_t group = tile.group, head_dim = tile.head_dim, dim = padded(head_dim), block = tile_queries(group);
  const int64_t value_dim = tile.value_dim, wide = padded(value_dim);
  float* q = tile.scratch;
  float* dout = q + block * group * dim;
  float* scores = dout + block * group * wide;
  float* dp = scores + block * group * kTileKeys;
  float* keys = dp + block * group * kTileKeys;
  float* keys_t = keys + kTileKeys * dim;
  float* values_t = keys_t + kTileKeys * dim;
  float* dk = values_t + kTileKeys * wide;
  float* dv = dk + kTileKeys * dim;  // first the values before they are transposed
  const int64_t stop = tile.first + tile.queries;
  for (int64_t begin = tile.begin; begin < tile.end; begin += kTileKeys) {
    const int64_t count = tile.end - begin < kTileKeys ? tile.end - begin : kTileKeys;
    gather_keys(static_cast<const T*>(tile.k) + begin * tile.k_stride, tile.k_stride, count, head_dim, keys);
    gather_keys(static_cast<const T*>(tile.v) + begin * tile.v_stride, tile.v_stride, count, value_dim, dv);
    transpose_keys(keys, dim, keys_t);
    transpose_keys(dv, wide, values_t);
    clear(dk, kTileKeys * dim);
    clear(dv, kTileKeys * wide);
    // The queries that see any of these keys: the first whose keys end past `begin`, to the last whose window holds end
    // - 1.
    int64_t from = begin + 1 - tile.first_end + tile.first, to = stop;
    if (from < tile.first) from = tile.first;
    if (tile.window > 0 && begin + count + tile.window - tile.first_end + tile.first < to)
      to = begin + count + tile.window - tile.first_end + tile.first;
    for (int64_t query = from; query < to; query += block) {
      const int64_t rows = (to - query < block ? to - query : block) * group;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = query + r / group, head = r % group;
        gather_row(static_cast<const T*>(tile.q) + token * tile.q_stride + head * head_dim, head_dim, tile.scale,
                   q + r * dim);
        gather_row(static_cast<const T*>(tile.dout) + token * tile.dout_stride + head * value_dim, value_dim, 1.0f,
                   dout + r * wide);
      }
      multiply<false>(rows, head_dim, kTileKeys, q, dim, 1, keys_t, kTileKeys, scores, kTileKeys);
      multiply<false>(rows, value_dim, kTileKeys, dout, wide, 1, values_t, kTileKeys, dp, kTileKeys);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = query + r / group, at = r % group * tile.lse_stride + token;
        gradient_row(scores + r * kTileKeys, dp + r * kTileKeys, visible(tile, token, begin), tile.lse[at],
                     tile.delta[at], tile.softcap);
      }
      multiply<true>(count, rows, wide, scores, 1, kTileKeys, dout, wide, dv, wide);
      multiply<true>(count, rows, dim, dp, 1, kTileKeys, q, dim, dk, dim);
      multiply<true>(rows, count, dim, dp, kTileKeys, 1, keys, dim, tile.dq + (query - tile.dq_first) * group * dim,
                     dim);
    }
    for (int64_t j = 0; j < count; ++j) {
      T* const to_dk = static_cast<T*>(tile.dk) + (begin + j) * tile.k_stride;
      T* const to_dv = static_cast<T*>(tile.dv) + (begin + j) * tile.v_stride;
      for (int64_t d = 0; d < head_dim; d += kWidth) store(to_dk + d, load(dk + j * dim + d), head_dim - d);
      for (int64_t d = 0; d < value_dim; d += kWidth) store(to_dv + d, load(dv + j * wide + d), value_dim - d);
    }
  }
}

void attention_grad(const AttentionGradTile& tile) {
  if (tile.type == Float::bf16)
    backward<bf16>(tile);
  else
    backward<float>(tile);
}

// y = scale * sum over i < count of parts[i], in that order
void sum_parts(const float* const* parts, int64_t count, float scale, Float type, void* y, int64_t n) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    for (int64_t d = 0; d < n; d += kWidth) {
      Vec total = splat(0.0f);
      for (int64_t i = 0; i < count; ++i) total = total + load(parts[i] + d, n - d);
      store(static_cast<T*>(y) + d, total * splat(scale), n - d);
    }
  });
}

}  // namespace

void fill_attention_grad(Table& table) {
  table.attention_grad = attention_grad;
  table.sum_parts = sum_parts;
}

}  // namespace qeng::isa::QENG_ISA
