// Attention's gradient for a run of keys: each tile of keys meets the queries that see it once (five products), so dk
// and dv are finished here, and dq is summed over the tiles in order.
#include "kernels/cpu/isa/attention/attention.h"
#include "kernels/cpu/isa/simd/tile.h"

namespace qeng::isa::QENG_ISA {
namespace {

// scores -> P = exp(scores - lse), dp -> dS = P (dp - delta); both 0 where masked
inline void gradient_row(float* scores, float* dp, Visible seen, float lse, float delta) {
  if (seen.low >= seen.high) {
    clear(scores, kTileKeys);
    return clear(dp, kTileKeys);
  }
  for (int64_t j = 0; j < kTileKeys; j += kWidth) {
    const Vec p = exp(load(scores + j) - splat(lse));
    store(scores + j, p);
    store(dp + j, p * (load(dp + j) - splat(delta)));
  }
  for (int64_t j = 0; j < seen.low; ++j) scores[j] = dp[j] = 0;
  for (int64_t j = seen.high; j < kTileKeys; ++j) scores[j] = dp[j] = 0;
}

template <class T>
void backward(const AttentionGradTile& tile) {
  const int64_t group = tile.group, head_dim = tile.head_dim, dim = padded(head_dim), block = tile_queries(group);
  float* q = tile.scratch;
  float* dout = q + block * group * dim;
  float* scores = dout + block * group * dim;
  float* dp = scores + block * group * kTileKeys;
  float* keys = dp + block * group * kTileKeys;
  float* keys_t = keys + kTileKeys * dim;
  float* values_t = keys_t + kTileKeys * dim;
  float* dk = values_t + kTileKeys * dim;
  float* dv = dk + kTileKeys * dim;  // first the values before they are transposed
  const int64_t stop = tile.first + tile.queries;
  for (int64_t begin = tile.begin; begin < tile.end; begin += kTileKeys) {
    const int64_t count = tile.end - begin < kTileKeys ? tile.end - begin : kTileKeys;
    gather_keys(static_cast<const T*>(tile.k) + begin * tile.kv_stride, tile.kv_stride, count, head_dim, keys);
    gather_keys(static_cast<const T*>(tile.v) + begin * tile.kv_stride, tile.kv_stride, count, head_dim, dv);
    transpose_keys(keys, dim, keys_t);
    transpose_keys(dv, dim, values_t);
    clear(dk, kTileKeys * dim);
    clear(dv, kTileKeys * dim);
    // The queries that see any of these keys: the first whose keys end past `begin`, to the last whose window holds end
    // - 1.
    int64_t from = begin + 1 - tile.first_end + tile.first, to = stop;
    if (from < tile.first) from = tile.first;
    if (tile.window > 0 && begin + count + tile.window - tile.first_end + tile.first < to)
      to = begin + count + tile.window - tile.first_end + tile.first;
    for (int64_t query = from; query < to; query += block) {
      const int64_t rows = (to - query < block ? to - query : block) * group;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (query + r / group) * tile.q_stride + r % group * head_dim;
        gather_row(static_cast<const T*>(tile.q) + at, head_dim, tile.scale, q + r * dim);
        gather_row(static_cast<const T*>(tile.dout) + at, head_dim, 1.0f, dout + r * dim);
      }
      multiply<false>(rows, head_dim, kTileKeys, q, dim, 1, keys_t, kTileKeys, scores, kTileKeys);
      multiply<false>(rows, head_dim, kTileKeys, dout, dim, 1, values_t, kTileKeys, dp, kTileKeys);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = query + r / group, at = r % group * tile.lse_stride + token;
        gradient_row(scores + r * kTileKeys, dp + r * kTileKeys, visible(tile, token, begin), tile.lse[at],
                     tile.delta[at]);
      }
      multiply<true>(count, rows, dim, scores, 1, kTileKeys, dout, dim, dv, dim);
      multiply<true>(count, rows, dim, dp, 1, kTileKeys, q, dim, dk, dim);
      multiply<true>(rows, count, dim, dp, kTileKeys, 1, keys, dim, tile.dq + (query - tile.dq_first) * group * dim,
                     dim);
    }
    for (int64_t j = 0; j < count; ++j)
      for (int64_t d = 0; d < head_dim; d += kWidth) {
        const int64_t at = (begin + j) * tile.kv_stride + d;
        store(static_cast<T*>(tile.dk) + at, load(dk + j * dim + d), head_dim - d);
        store(static_cast<T*>(tile.dv) + at, load(dv + j * dim + d), head_dim - d);
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
