// KvStore, CopyPages, PagedAttention from their equations in kernels/ops.h.
#pragma once
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const KvStore& op, Sheet<T>& sheet) {
  const auto slots = sheet.integers(op.slots);
  const int64_t width = op.k.shape[1] * op.k.shape[2];
  for (const auto& [from, to] : {std::pair{op.k, op.k_pool}, std::pair{op.v, op.v_pool}}) {
    const Array<T> rows = sheet.in(from);
    Array<T>& pool = sheet.update(to);
    for (size_t t = 0; t < slots.size(); ++t)
      for (int64_t j = 0; slots[t] >= 0 && j < width; ++j) {
        const int64_t row = static_cast<int64_t>(t) * width;
        T value = rows[row + j];
        if (to.dtype == DType::q8_0) {  // off by half a step of largest / 127, and by the rounding of the step to f16
          double largest = 0;
          for (int64_t i = j / 32 * 32; i < j / 32 * 32 + 32; ++i) largest = std::max(largest, std::fabs(value_of(rows[row + i])));
          value = within(value, 0.501 * largest / 127 + std::fabs(value_of(value)) * 0x1.01p-11 + 0x1p-24 * 64);
        }
        if (to.dtype == DType::f16) value = within(value, 0x1p-25);  // half a step of subnormal numbers
        pool[slots[t] * width + j] = value;
      }
  }
}

template <class T>
void reference(const CopyPages& op, Sheet<T>& sheet) {
  const auto pairs = sheet.integers(op.pairs);
  Array<T>& pool = sheet.update(op.pool, true, Sheet<T>::Check::exact);
  const int64_t page = op.page_tokens * op.pool.shape[1] * op.pool.shape[2];
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    for (int64_t j = 0; j < page; ++j) pool[pairs[i + 1] * page + j] = pool[pairs[i] * page + j];
}

template <class T>
void reference(const PagedAttention& op, Sheet<T>& sheet) {
  using std::exp;
  const Array<T> q = sheet.in(op.q), k = sheet.in(op.k_pool), v = sheet.in(op.v_pool);
  const auto cu_q = sheet.integers(op.cu_q), lengths = sheet.integers(op.lengths), pages = sheet.integers(op.pages);
  Array<T>& o = sheet.out(op.o);
  const double half_ulp = unit_roundoff(op.q.dtype);  // tensor cores take the probabilities in q's dtype
  const int64_t heads = op.q.shape[1], group = heads / op.k_pool.shape[1], dim = op.q.shape[2],
                most = op.pages.shape[1];
  for (size_t s = 0; s < lengths.size(); ++s)
    for (int64_t t = cu_q[s]; t < cu_q[s + 1]; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t seen = lengths[s] - (cu_q[s + 1] - 1 - t),
                      first = op.window > 0 ? std::max<int64_t>(0, seen - op.window) : 0;
        const auto slot = [&](int64_t j) {
          return pages[static_cast<size_t>(static_cast<int64_t>(s) * most + j / op.page_tokens)] * op.page_tokens +
                 j % op.page_tokens;
        };
        std::vector<T> scores;
        double largest = -INFINITY;
        for (int64_t j = first; j < seen; ++j) {
          T score = 0;
          for (int64_t d = 0; d < dim; ++d) score += q(t, h, d) * k(slot(j), h / group, d);
          scores.push_back(T(op.scale) * score);
          largest = std::max(largest, static_cast<double>(value_of(scores.back())));
        }
        T total = 0;
        for (T& score : scores) score = exp(score - T(largest)), total += score, score = kept(score, half_ulp);
        for (int64_t d = 0; d < dim; ++d) {
          T sum = 0;
          for (int64_t j = first; j < seen; ++j)
            sum += scores[static_cast<size_t>(j - first)] * v(slot(j), h / group, d);
          o(t, h, d) = sum / total;
        }
      }
}

}  // namespace qeng::conformance
