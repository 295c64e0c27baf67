// Attention's forward tile: scores of one tile of keys at a time, online softmax (Milakov & Gimelshein 2018, arXiv
// 1805.02867) with f32 sums, as in Dao et al. 2022 (arXiv 2205.14135).
#include "kernels/cpu/isa/attention/attention.h"

#include "kernels/cpu/isa/simd/tile.h"

namespace qeng::isa::QENG_ISA {
namespace {

// Decoding with few heads to a kv head: K and V are used too few times to be worth copying and transposing.
constexpr int64_t kFewRows = 4;

// scores[j] = <q, k[j]>     k: `count` rows of dim elements, stride apart
template <class T>
inline void row_scores(const float* q, const T* k, int64_t stride, int64_t count, int64_t dim, float* scores) {
  for (int64_t j = 0; j < count; ++j, k += stride) {
    for (int64_t d = 0; d < dim; d += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(k + 8 * stride + d);
    Vec sums = splat(0.0f);
    for (int64_t d = 0; d < dim; d += kWidth) sums = fma(load(q + d), load(k + d, dim - d), sums);
    scores[j] = sum(sums);
  }
}

// o += sum_j p[j] v[j], four rows of v at a time
template <class T>
inline void row_values(const float* p, const T* v, int64_t stride, int64_t count, int64_t dim, float* o) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4, v += 4 * stride)
    for (int64_t d = 0; d < dim; d += kWidth) {
      Vec sums = load(o + d);
      for (int64_t i = 0; i < 4; ++i) {
        if (d % 32 == 0) __builtin_prefetch(v + (8 + i) * stride + d);
        sums = fma(splat(p[j + i]), load(v + i * stride + d, dim - d), sums);
      }
      store(o + d, sums);
    }
  for (; j < count; ++j, v += stride)
    for (int64_t d = 0; d < dim; d += kWidth) store(o + d, fma(splat(p[j]), load(v + d, dim - d), load(o + d)));
}

template <class T>
void forward(const AttentionTile& tile) {
  const int64_t group = tile.group, dim = padded(tile.head_dim), wide = padded(tile.value_dim);
  const int64_t rows = tile.queries * group;
  float* q = tile.scratch;
  float* o = q + rows * dim;
  float* scores = o + rows * wide;
  float* keys = scores + rows * kTileKeys;  // transposed: [dim, kTileKeys]
  float* values = keys + kTileKeys * dim;   // first the keys before they are transposed
  float* top = values + kTileKeys * (dim > wide ? dim : wide);
  float* total = top + rows;
  for (int64_t r = 0; r < rows; ++r) {
    const T* from =
        static_cast<const T*>(tile.q) + (tile.first + r / group) * tile.q_stride + r % group * tile.head_dim;
    gather_row(from, tile.head_dim, tile.scale, q + r * dim);
    top[r] = kNothing, total[r] = 0;
  }
  clear(o, rows * wide);
  for (int64_t begin = tile.begin; begin < tile.end; begin += kTileKeys) {
    const int64_t count = tile.end - begin < kTileKeys ? tile.end - begin : kTileKeys;
    const T* k = static_cast<const T*>(tile.k) + begin * tile.k_stride;
    const T* v = static_cast<const T*>(tile.v) + begin * tile.v_stride;
    if (rows > kFewRows) {
      gather_keys(k, tile.k_stride, count, tile.head_dim, values);
      transpose_keys(values, dim, keys);
      gather_keys(v, tile.v_stride, count, tile.value_dim, values);
      multiply<false>(rows, tile.head_dim, padded(count), q, dim, 1, keys, kTileKeys, scores, kTileKeys);
    }
    for (int64_t r = 0; r < rows; ++r) {
      float* row = scores + r * kTileKeys;
      if (rows <= kFewRows) row_scores(q + r * dim, k, tile.k_stride, count, tile.head_dim, row);
      cap_row(row, tile.softcap);
      softmax_row(row, visible(tile, tile.first + r / group, begin), top[r], total[r], o + r * wide, wide);
      if (rows <= kFewRows) row_values(row, v, tile.v_stride, count, tile.value_dim, o + r * wide);
    }
    if (rows > kFewRows) multiply<true>(rows, count, wide, scores, kTileKeys, 1, values, wide, o, wide);
  }
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = tile.first + r / group, head = r % group;
    const Vec factor = splat(finish_row(tile.sinks ? tile.sinks + head : nullptr, top[r], total[r]));
    T* to = static_cast<T*>(tile.o) + token * tile.o_stride + head * tile.value_dim;
    for (int64_t d = 0; d < tile.value_dim; d += kWidth)
      store(to + d, load(o + r * wide + d) * factor, tile.value_dim - d);
    tile.lse[head * tile.lse_stride + token] = total[r] == 0 ? 0.0f : top[r] + __builtin_logf(total[r]);
  }
}

void attention(const AttentionTile& tile) {
  if (tile.type == Float::bf16)
    forward<bf16>(tile);
  else
    forward<float>(tile);
}

// delta[row] = <dout, o> over value_dim, rows of one token's heads
void attention_delta(Float type, const void* dout, const void* o, int64_t rows, int64_t dim, float* delta,
                     int64_t stride) {
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    for (int64_t r = 0; r < rows; ++r) {
      Vec sums = splat(0.0f);
      for (int64_t d = 0; d < dim; d += kWidth)
        sums = fma(load(static_cast<const T*>(dout) + r * dim + d, dim - d),
                   load(static_cast<const T*>(o) + r * dim + d, dim - d), sums);
      delta[r * stride] = sum(sums);
    }
  });
}

}  // namespace

void fill_attention(Table& table) {
  table.attention = attention;
  table.attention_delta = attention_delta;
}

}  // namespace qeng::isa::QENG_ISA
