// One row of logits: log of the sum of exponentials, soft-capping, and the gradient of cross-entropy.
#include "kernels/cpu/isa/simd/functions.h"

namespace qeng::isa::QENG_ISA {
namespace {

float logsumexp(const float* z, int64_t n) {
  const float lowest = -__builtin_inff();
  float top = lowest;
  Vec tops = splat(lowest);
  int64_t i = 0;
  for (; i + kWidth <= n; i += kWidth) tops = max(load(z + i), tops);
  top = largest(tops);
  for (; i < n; ++i) top = z[i] > top ? z[i] : top;
  if (top == lowest) return lowest;
  constexpr int64_t kBlock = 4096;  // partial sums in f32, the total in double: 151936 terms keep 7 digits
  double total = 0;
  const Vec shift = splat(top);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = begin + kBlock < n ? begin + kBlock : n;
    Vec part = splat(0.0f);
    for (i = begin; i + kWidth <= end; i += kWidth) part = part + exp_normal(load(z + i) - shift);
    total += sum(part);
    if (i < end) {
      float tail[kWidth];
      store(tail, exp_normal(load(z + i, end - i) - shift));
      for (int64_t lane = 0; lane < end - i; ++lane) total += tail[lane];
    }
  }
  return top + static_cast<float>(__builtin_log(total));
}

void softcap(float* z, float softcap, int64_t n) {
  const Vec cap = splat(softcap);
  for_lanes(n, [=](int64_t i, int64_t lanes) { store(z + i, cap * tanh(load(z + i, lanes) / cap), lanes); });
}

void softmax_grad(const float* z, float lse, int64_t target, float scale, float softcap, Float type, void* dz,
                  int64_t n) {
  float at_target = 0;  // dz may overwrite z
  if (target >= 0) at_target = z[target];
  for_type(type, [=](auto tag) {
    using T = decltype(tag);
    T* out = static_cast<T*>(dz);
    const Vec shift = splat(lse), factor = splat(scale), cap = splat(softcap), one = splat(1.0f);
    if (softcap == 0)
      for_lanes(
          n, [=](int64_t i, int64_t lanes) { store(out + i, factor * exp_normal(load(z + i, lanes) - shift), lanes); });
    else
      for_lanes(n, [=](int64_t i, int64_t lanes) {
        const Vec x = load(z + i, lanes), t = x / cap;
        store(out + i, factor * exp_normal(x - shift) * (one - t * t), lanes);
      });
    if (target < 0) return;
    float lane[kWidth];
    store(lane, exp(splat(at_target - lse)));
    const float t = softcap == 0 ? 0 : at_target / softcap;
    put(out + target, scale * (lane[0] - 1.0f) * (1.0f - t * t));
  });
}

}  // namespace

void fill_softmax(Table& table) {
  table.logsumexp = logsumexp;
  table.softcap = softcap;
  table.softmax_grad = softmax_grad;
}

}  // namespace qeng::isa::QENG_ISA
