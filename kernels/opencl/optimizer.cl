// What an optimizer computes. X: element type of gradients
#include "kernels/math/adamw.h"
#include "kernels/math/adamw_codes.h"
#ifndef X
#define X f32
#endif

// A group for each CHUNK elements: the sum of their squares in two floats.
#define CHUNK 16384
__kernel void chunk_squares(__global const void* x, __global Twofold* partial, long count) {
  __local Twofold exchange[LANES];
  const long begin = get_group_id(0) * (long)CHUNK, end = min(begin + CHUNK, count);
  Twofold sum = {0, 0};
  for (long i = begin + get_local_id(0); i < end; i += LANES) {
    const float value = load(X, x, i);
    sum = add_product(sum, value, value);
  }
  sum = twofold_of_lanes(sum, exchange);
  if (get_local_id(0) == 0) partial[get_group_id(0)] = sum;
}
__kernel void sum_chunks(__global const Twofold* partial, __global float* out, long chunks, long place) {
  __local Twofold exchange[LANES];
  Twofold sum = {0, 0};
  for (long i = get_local_id(0); i < chunks; i += LANES) sum = add_twofold(sum, partial[i].high, partial[i].low);
  sum = twofold_of_lanes(sum, exchange);
  if (get_local_id(0) == 0) out[place] = sum.high + sum.low;
}

__kernel void clip_scale(__global const float* partials, __global float* out, long count, float max_norm) {
  __local float exchange[LANES];
  float sum = 0;
  for (long i = get_local_id(0); i < count; i += LANES) sum += partials[i];
  sum = sum_of_lanes(sum, exchange);
  if (get_local_id(0) != 0) return;
  const float norm = sqrt(sum);
  const bool finite = norm - norm == 0;
  out[0] = norm;
  out[1] = !finite ? 0.0f : max_norm > 0 ? min(1.0f, max_norm / (norm + 1e-6f)) : 1.0f;
  out[2] = finite ? 0.0f : 1.0f;
}

// 1 - beta^t without a power: what is left of 1 would have few bits.
static inline float correction(float beta, float t) { return -expm1(t * log1p(beta - 1.0f)); }
static inline AdamWStep step_of(__global const float* hyper, __global const float* clip, float beta1, float beta2,
                                float eps, float decay) {
  AdamWStep step;
  step.beta1 = beta1, step.beta2 = beta2, step.eps = eps, step.clip = clip[1];
  step.keep = 1.0f - hyper[0] * decay;
  step.rate = hyper[0] / correction(beta1, hyper[1]);
  step.correction2 = 1.0f / correction(beta2, hyper[1]);
  return step;
}

__kernel void adamw(__global float* w, __global void* grad, __global float* m, __global float* v, __global bf16* model,
                    __global const float* hyper, __global const float* clip, float beta1, float beta2, float eps,
                    float decay, int clear, int has_model, long count) {
  FOR_ITEM(i, count);
  if (clip[2] == 0) {
    float first = m[i], second = v[i];
    const float updated = adamw_update(step_of(hyper, clip, beta1, beta2, eps, decay), w[i], load(X, grad, i), &first,
                                       &second);
    w[i] = updated, m[i] = first, v[i] = second;
    if (has_model) model[i] = to_bf16(updated);
  }
  if (clear) store(X, grad, i, 0);
}

// With moments as codes: a group for each block of them. scales: [2, blocks]
#define EACH (kMomentBlock / LANES)
__kernel void adamw_of_codes(__global float* w, __global void* grad, __global uchar* m, __global uchar* v,
                             __global bf16* model, __global float* scales, __global const float* hyper,
                             __global const float* clip, float beta1, float beta2, float eps, float decay, int clear,
                             int has_model, long count, long blocks) {
  __local float exchange[LANES];
  const long block = get_group_id(0), begin = block * kMomentBlock + get_local_id(0);
  const float largest_m = scales[block], largest_v = scales[blocks + block];
  float first[EACH], second[EACH], most_m = 0, most_v = 0;
  const bool skip = clip[2] != 0;
  const AdamWStep step = step_of(hyper, clip, beta1, beta2, eps, decay);
  for (int u = 0; u < EACH; ++u) {
    const long i = begin + u * LANES;
    first[u] = 0, second[u] = 0;
    if (i >= count) continue;
    if (!skip) {
      first[u] = decode_first_moment(m[i], largest_m), second[u] = decode_second_moment(v[i], largest_v);
      const float updated = adamw_update(step, w[i], load(X, grad, i), &first[u], &second[u]);
      w[i] = updated;
      if (has_model) model[i] = to_bf16(updated);
      most_m = max(most_m, fabs(first[u])), most_v = max(most_v, second[u]);
    }
    if (clear) store(X, grad, i, 0);
  }
  most_m = max_of_lanes(most_m, exchange);
  most_v = max_of_lanes(most_v, exchange);
  barrier(CLK_GLOBAL_MEM_FENCE);  // all have read the scales
  const float inverse_m = inverse_of_largest(most_m), inverse_v = inverse_of_largest(most_v);
  for (int u = 0; u < EACH; ++u) {
    const long i = begin + u * LANES;
    if (skip || i >= count) continue;
    m[i] = encode_first_moment(first[u], inverse_m), v[i] = encode_second_moment(second[u], inverse_v);
  }
  if (get_local_id(0) == 0 && !skip) scales[block] = most_m, scales[blocks + block] = most_v;
}
