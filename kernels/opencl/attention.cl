// Attention, over packed documents and over a paged cache, and its gradients: a group of LANES items for each query and
// head, or each key and head of keys. An item has the score of a key in each run of LANES, and then columns of the
// result. Q: element type of queries and results, K and V: of keys and values. WIDTH: at least the longest row, whole
// LANES. PAGED: keys lie in pages.
#ifndef Q
#define Q f32
#define K f32
#define V f32
#define WIDTH LANES
#endif
#define EACH (WIDTH / LANES)

// tk: rows of keys, or slots of the pool. most: pages of a sequence.
typedef struct {
  long tq, tk, documents, heads, kv_heads, dim, value_dim, window, most, page_tokens;
  float scale, softcap;
  int has_sinks, acc;
} Shape;

__kernel void check_bounds(__global const int* cu, long rows, long count, int kind, __global Fault* fault) {
  FOR_ITEM(i, count);
  const int value = cu[i], before = i ? cu[i - 1] : 0;
  if (value < before || value > rows || (i == 0 && value != 0)) report(fault, kind, i, value, rows);
}

// The last document that begins at or before the row; its boundaries may be wrong.
static inline long document_of(__global const int* cu, long documents, long row) {
  long low = 0, high = documents;
  while (high - low > 1) {
    const long middle = (low + high) / 2;
    if (cu[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

typedef struct {
  long document, begin, end;
} Keys;
// The keys that query t sees. of_keys: their boundaries, or lengths of sequences.
static inline Keys keys_of(__global const int* cu_q, __global const int* of_keys, const Shape* s, long t,
                           __global Fault* fault) {
  Keys keys = {document_of(cu_q, s->documents, t), 0, 0};
  if (s->documents == 0 || t < cu_q[keys.document] || t >= cu_q[keys.document + 1]) return keys;
  const long after = cu_q[keys.document + 1] - 1 - t;
#ifdef PAGED
  const long length = of_keys[keys.document], queries = (long)cu_q[keys.document + 1] - cu_q[keys.document];
  if (length < queries || length > s->most * s->page_tokens) {
    report(fault, FaultKind_length, keys.document, length, s->most * s->page_tokens);
    return keys;
  }
  keys.end = length - after;
#else
  keys.begin = max(of_keys[keys.document], 0);
  keys.end = min((long)of_keys[keys.document + 1], s->tk) - after;
#endif
  if (s->window > 0) keys.begin = max(keys.begin, keys.end - s->window);
  return keys;
}

// Where the row of key j begins, in rows of all heads.
static inline long row_of(__global const int* pages, const Shape* s, long document, long j, __global Fault* fault) {
#ifdef PAGED
  const long page = pages[document * s->most + j / s->page_tokens], all = s->tk / s->page_tokens;
  if (page >= 0 && page < all) return page * s->page_tokens + j % s->page_tokens;
  report(fault, FaultKind_page, document, page, all);
  return 0;
#else
  return j;
#endif
}

static inline float capped(float score, float softcap) { return softcap > 0 ? softcap * tanh(score / softcap) : score; }
static inline float slope_of(float score, float softcap) {
  const float share = score / softcap;
  return softcap > 0 ? 1.0f - share * share : 1.0f;
}

#define DOT(sum, T, x, begin, row, n) \
  float sum = 0;                      \
  for (long d = 0; d < n; ++d) sum = fma(row[d], load(T, x, begin + d), sum)
#define TAKE_ROW(row, T, x, begin, n) \
  for (long d = get_local_id(0); d < n; d += LANES) row[d] = load(T, x, begin + d)

__kernel void attend(__global const void* q, __global const void* k, __global const void* v, __global const int* cu_q,
                     __global const int* of_keys, __global const int* pages, __global const float* sinks,
                     __global void* o, __global float* lse, Shape s, __global Fault* fault) {
  __local float query[WIDTH], exchange[LANES], probabilities[LANES];
  __local long rows[LANES];
  const long t = get_group_id(0), h = get_group_id(1), g = h / (s.heads / s.kv_heads), lane = get_local_id(0);
  const Keys keys = keys_of(cu_q, of_keys, &s, t, fault);
  TAKE_ROW(query, Q, q, (t * s.heads + h) * s.dim, s.dim);
  barrier(CLK_LOCAL_MEM_FENCE);
  float top = s.has_sinks ? sinks[h] : -INFINITY, total = s.has_sinks ? 1.0f : 0.0f, sum[EACH];
  for (int u = 0; u < EACH; ++u) sum[u] = 0;
  for (long first = keys.begin; first < keys.end; first += LANES) {
    const long j = first + lane;
    float score = -INFINITY;
    if (j < keys.end) {
      rows[lane] = row_of(pages, &s, keys.document, j, fault) * s.kv_heads + g;
      DOT(dot, K, k, rows[lane] * s.dim, query, s.dim);
      score = capped(s.scale * dot, s.softcap);
    }
    const float above = max_of_lanes(score, exchange), next = top > above ? top : above;
    const float probability = j < keys.end ? exp(score - next) : 0.0f, factor = exp(top - next);
    total = total * factor + sum_of_lanes(probability, exchange);
    top = next;
    probabilities[lane] = probability;
    barrier(CLK_LOCAL_MEM_FENCE);
    const int here = (int)min((long)LANES, keys.end - first);
    for (int u = 0; u < EACH; ++u) {
      const long d = lane + u * LANES;
      if (d >= s.value_dim) break;
      float part = sum[u] * factor;
      for (int i = 0; i < here; ++i) part = fma(probabilities[i], load(V, v, rows[i] * s.value_dim + d), part);
      sum[u] = part;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  const bool seen = keys.begin < keys.end;
  for (int u = 0; u < EACH; ++u) {
    const long d = lane + u * LANES;
    if (d < s.value_dim) store(Q, o, (t * s.heads + h) * s.value_dim + d, seen ? sum[u] / total : 0.0f);
  }
#ifndef PAGED
  if (lane == 0) lse[h * s.tq + t] = seen ? top + log(total) : 0.0f;
#endif
}

#ifndef PAGED
__kernel void attention_delta(__global const void* o, __global const void* dout, __global float* delta, Shape s) {
  FOR_ITEM(i, s.heads * s.tq);
  const long begin = (i % s.tq * s.heads + i / s.tq) * s.value_dim;
  float sum = 0;
  for (long d = 0; d < s.value_dim; ++d) sum = fma(load(Q, o, begin + d), load(Q, dout, begin + d), sum);
  delta[i] = sum;
}

// A group for each head.
__kernel void attention_dsinks(__global const float* sinks, __global const float* lse, __global const float* delta,
                               __global float* dsinks, Shape s) {
  __local float exchange[LANES];
  const long h = get_group_id(0);
  float sum = 0;
  for (long t = get_local_id(0); t < s.tq; t += LANES)
    if (delta[h * s.tq + t] != 0) sum -= exp(sinks[h] - lse[h * s.tq + t]) * delta[h * s.tq + t];
  sum = sum_of_lanes(sum, exchange);
  if (get_local_id(0) == 0) dsinks[h] = s.acc ? dsinks[h] + sum : sum;
}

__kernel void attention_dq(__global const void* q, __global const void* k, __global const void* v,
                           __global const int* cu_q, __global const int* cu_k, __global const float* lse,
                           __global const void* dout, __global const float* delta, __global void* dq, Shape s,
                           __global Fault* fault) {
  __local float query[WIDTH], of_out[WIDTH], slopes[LANES];
  const long t = get_group_id(0), h = get_group_id(1), g = h / (s.heads / s.kv_heads), lane = get_local_id(0);
  const Keys keys = keys_of(cu_q, cu_k, &s, t, fault);
  TAKE_ROW(query, Q, q, (t * s.heads + h) * s.dim, s.dim);
  TAKE_ROW(of_out, Q, dout, (t * s.heads + h) * s.value_dim, s.value_dim);
  barrier(CLK_LOCAL_MEM_FENCE);
  float sum[EACH];
  for (int u = 0; u < EACH; ++u) sum[u] = 0;
  for (long first = keys.begin; first < keys.end; first += LANES) {
    const long j = first + lane;
    if (j < keys.end) {
      DOT(dot, Q, k, (j * s.kv_heads + g) * s.dim, query, s.dim);
      DOT(dp, Q, v, (j * s.kv_heads + g) * s.value_dim, of_out, s.value_dim);
      const float score = capped(s.scale * dot, s.softcap);
      slopes[lane] = exp(score - lse[h * s.tq + t]) * (dp - delta[h * s.tq + t]) * slope_of(score, s.softcap);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const int here = (int)min((long)LANES, keys.end - first);
    for (int u = 0; u < EACH; ++u) {
      const long d = lane + u * LANES;
      if (d >= s.dim) break;
      float part = sum[u];
      for (int i = 0; i < here; ++i)
        part = fma(slopes[i], load(Q, k, ((first + i) * s.kv_heads + g) * s.dim + d), part);
      sum[u] = part;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  for (int u = 0; u < EACH; ++u) {
    const long d = lane + u * LANES;
    if (d < s.dim) store(Q, dq, (t * s.heads + h) * s.dim + d, s.scale * sum[u]);
  }
}

// A group for each key and head of keys, over the queries of its document that see it, head by head.
__kernel void attention_dkv(__global const void* q, __global const void* k, __global const void* v,
                            __global const int* cu_q, __global const int* cu_k, __global const float* lse,
                            __global const void* dout, __global const float* delta, __global void* dk,
                            __global void* dv, Shape s) {
  __local float key[WIDTH], value[WIDTH], slopes[LANES], probabilities[LANES];
  const long j = get_group_id(0), g = get_group_id(1), lane = get_local_id(0), share = s.heads / s.kv_heads;
  TAKE_ROW(key, Q, k, (j * s.kv_heads + g) * s.dim, s.dim);
  TAKE_ROW(value, Q, v, (j * s.kv_heads + g) * s.value_dim, s.value_dim);
  barrier(CLK_LOCAL_MEM_FENCE);
  const long document = document_of(cu_k, s.documents, j);
  long begin = 0, end = 0;
  if (s.documents > 0 && j >= cu_k[document] && j < cu_k[document + 1]) {
    end = min((long)cu_q[document + 1], s.tq);
    const long sees = cu_q[document + 1] - (cu_k[document + 1] - j);  // the first query that does
    if (s.window > 0) end = min(end, sees + s.window);
    begin = max(sees, (long)max(cu_q[document], 0));
  }
  float of_k[EACH], of_v[EACH];
  for (int u = 0; u < EACH; ++u) of_k[u] = 0, of_v[u] = 0;
  for (long h = g * share; h < (g + 1) * share; ++h)
    for (long first = begin; first < end; first += LANES) {
      const long t = first + lane;
      if (t < end) {
        DOT(dot, Q, q, (t * s.heads + h) * s.dim, key, s.dim);
        DOT(dp, Q, dout, (t * s.heads + h) * s.value_dim, value, s.value_dim);
        const float score = capped(s.scale * dot, s.softcap);
        probabilities[lane] = exp(score - lse[h * s.tq + t]);
        slopes[lane] = probabilities[lane] * (dp - delta[h * s.tq + t]) * slope_of(score, s.softcap);
      }
      barrier(CLK_LOCAL_MEM_FENCE);
      const int here = (int)min((long)LANES, end - first);
      for (int u = 0; u < EACH; ++u) {
        const long d = lane + u * LANES;
        float to_k = of_k[u], to_v = of_v[u];
        for (int i = 0; i < here && d < s.dim; ++i)
          to_k = fma(slopes[i], load(Q, q, ((first + i) * s.heads + h) * s.dim + d), to_k);
        for (int i = 0; i < here && d < s.value_dim; ++i)
          to_v = fma(probabilities[i], load(Q, dout, ((first + i) * s.heads + h) * s.value_dim + d), to_v);
        of_k[u] = to_k, of_v[u] = to_v;
      }
      barrier(CLK_LOCAL_MEM_FENCE);
    }
  for (int u = 0; u < EACH; ++u) {
    const long d = lane + u * LANES;
    if (d < s.dim) store(Q, dk, (j * s.kv_heads + g) * s.dim + d, s.scale * of_k[u]);
    if (d < s.value_dim) store(Q, dv, (j * s.kv_heads + g) * s.value_dim + d, of_v[u]);
  }
}
#endif
