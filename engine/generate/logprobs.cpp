#include "engine/generate/logprobs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/error.h"

namespace qeng {

TokenLogprobs token_logprobs(const View& logits, int64_t token, int64_t count) {
  const int64_t vocab = logits.elements();
  if (logits.dtype != DType::f32) fail("dtype", "token_logprobs: logits are ", shape_text(logits), ", expected f32");
  if (token < 0 || token >= vocab) fail("value", "token_logprobs: token ", token, " is outside the ", vocab, " logits");
  if (count < 0) fail("value", "token_logprobs: ", count, " alternatives; expected 0 or more");
  const float* z = logits.as<float>();
  const double largest = *std::max_element(z, z + vocab);
  double sum = 0;
  for (int64_t i = 0; i < vocab; ++i) sum += std::exp(z[i] - largest);
  const double total = largest + std::log(sum);
  TokenLogprobs result{z[token] - total, {}};
  std::vector<int32_t> order(static_cast<size_t>(vocab));
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + static_cast<std::ptrdiff_t>(std::min(count, vocab));
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) { return z[a] > z[b] || (z[a] == z[b] && a < b); });
  for (auto it = order.begin(); it != end; ++it) result.top.push_back({*it, z[*it] - total});
  return result;
}

}  // namespace qeng
