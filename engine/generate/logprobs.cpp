#include "engine/generate/logprobs.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <mutex>
#include <numeric>

#include "kernels/error.h"
#include "kernels/math/bf16.h"
#include "kernels/parallel.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {
// log(sum(exp(z))), the sum in double over exact exponentials.
double log_sum(const std::vector<float>& logits, float top) {
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z) - top);
  return top + std::log(sum);
}

float finite_top(const std::vector<float>& logits) {
  const float top = largest_logit(logits);
  if (!std::isfinite(top)) fail("value", "logprobs: no logit is finite");
  return top;
}
int64_t rows_of(const View& logits) {
  if (logits.rank < 1 || logits.rank > 2 || logits.elements() == 0) {
    fail("shape", "logprobs: logits are ", shape_text(logits), ", expected [vocab] or [rows, vocab]");
  }
  return logits.elements() / logits.columns();
}

// body(row) for each row, in parallel; the first exception is rethrown.
template <class Body>
void for_rows(int64_t rows, const Body& body) {
  std::exception_ptr error;
  std::mutex guard;
  parallel_each(available_threads(), rows, [&](int64_t row) {
    try {
      body(row);
    } catch (...) {
      const std::lock_guard lock(guard);
      if (!error) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}
}  // namespace

void read_logits(const View& logits, int64_t row, const char* what, std::vector<float>& out) {
  const auto vocab = static_cast<size_t>(logits.columns());
  const size_t first = static_cast<size_t>(row) * vocab;
  out.resize(vocab);
  float* z = out.data();
  if (logits.dtype == DType::f32) {
    std::copy_n(logits.as<float>() + first, vocab, z);
  } else if (logits.dtype == DType::bf16) {
    const bf16* from = logits.as<bf16>() + first;
    for (size_t i = 0; i < vocab; ++i) z[i] = to_f32(from[i]);
  } else {
    fail("dtype", what, ": logits are ", shape_text(logits), ", expected f32 or bf16");
  }
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (size_t i = 0; i < vocab; ++i) bad |= z[i] != z[i];
  if (!bad) return;
  const auto token = std::find_if(out.begin(), out.end(), [](float x) { return std::isnan(x); }) - out.begin();
  fail("value", what, ": the logit of token ", token, " is NaN: the model's weights or activations overflowed");
}

float largest_logit(std::span<const float> logits) {
  float top = -INFINITY;
  const float* z = logits.data();
  const size_t count = logits.size();
#pragma omp simd reduction(max : top)
  for (size_t i = 0; i < count; ++i) top = z[i] > top ? z[i] : top;
  return top;
}

std::vector<RowLogprobs> logprobs(const View& logits, std::span<const int32_t> tokens, int64_t k) {
  const int64_t rows = rows_of(logits), vocab = logits.columns();
  if (static_cast<int64_t>(tokens.size()) != rows) {
    fail("shape", "logprobs: ", tokens.size(), " tokens for logits ", shape_text(logits),
         ", expected one for each row");
  }
  if (k < 0) fail("value", "logprobs: top is ", k, ", expected 0 or more");
  std::vector<RowLogprobs> all(tokens.size());
  for_rows(rows, [&](int64_t row) {
    const int32_t token = tokens[static_cast<size_t>(row)];
    if (token >= vocab) fail("value", "logprobs: token ", token, " is outside the ", vocab, " logits");
    std::vector<float> z;
    read_logits(logits, row, "logprobs", z);
    const double sum = log_sum(z, finite_top(z));
    RowLogprobs& out = all[static_cast<size_t>(row)];
    if (token >= 0) out.logprob = z[static_cast<size_t>(token)] - sum;
    if (k == 0) return;
    std::vector<int32_t> ids(z.size());
    std::iota(ids.begin(), ids.end(), 0);
    const auto kept = static_cast<std::ptrdiff_t>(std::min(k, vocab));
    std::partial_sort(ids.begin(), ids.begin() + kept, ids.end(), [&](int32_t a, int32_t b) {
      const float za = z[static_cast<size_t>(a)], zb = z[static_cast<size_t>(b)];
      return za > zb || (za == zb && a < b);
    });
    ids.resize(static_cast<size_t>(kept));
    for (const int32_t id : ids) out.top.push_back({id, z[static_cast<size_t>(id)] - sum});
  });
  return all;
}

std::vector<RowDifference> compare_logits(const View& reference, const View& logits) {
  const int64_t rows = rows_of(logits);
  if (reference.columns() != logits.columns() || rows_of(reference) != rows) {
    fail("shape", "compare_logits: ", shape_text(logits), " against a reference of ", shape_text(reference));
  }
  std::vector<RowDifference> all(static_cast<size_t>(rows));
  for_rows(rows, [&](int64_t row) {
    std::vector<float> a, b;
    read_logits(reference, row, "compare_logits", a);
    read_logits(logits, row, "compare_logits", b);
    const float top_a = finite_top(a), top_b = finite_top(b);
    const double sum_a = log_sum(a, top_a), sum_b = log_sum(b, top_b);
    RowDifference& out = all[static_cast<size_t>(row)];
    for (size_t i = 0; i < a.size(); ++i) {
      const double log_p = a[i] - sum_a, log_q = b[i] - sum_b;
      if (std::isfinite(log_p)) out.divergence += std::exp(log_p) * (log_p - log_q);
    }
    out.same_top = std::find(a.begin(), a.end(), top_a) - a.begin() == std::find(b.begin(), b.end(), top_b) - b.begin();
  });
  return all;
}

}  // namespace qeng
