// Route: the words of Sort (kernels/math/sort_key.h) for each token, then a counting sort of the choices.
#include <algorithm>

#include "kernels/cpu/cpu.h"
#include "kernels/math/sort_key.h"

namespace qeng {
namespace {

void choose(const Route& op, CpuContext& context) {
  const int64_t tokens = op.choice.shape[0], experts = op.scores.columns(), k = op.choice.columns();
  const float *scores = op.scores.as<float>(), *bias = op.bias.as<float>();
  int32_t* choice = op.choice.as<int32_t>();
  auto* words = context.scratch.take<uint64_t>(context.threads * experts);
  parallel_for(context.threads, tokens, grain_rows(8 * experts), [&](int64_t begin, int64_t end) {
    uint64_t* mine = words + team_rank() * experts;
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t e = 0; e < experts; ++e)
        mine[e] = sort_word(route_key(scores[t * experts + e] + (bias ? bias[e] : 0.0f)), e, true);
      if (k < experts) std::nth_element(mine, mine + k, mine + experts);
      std::sort(mine, mine + k);
      for (int64_t j = 0; j < k; ++j) choice[t * k + j] = sort_column(mine[j]);
    }
  });
}

}  // namespace

void run(const Route& op, CpuContext& context) {
  choose(op, context);
  const int64_t places = op.choice.elements(), experts = op.scores.columns();
  const int32_t* choice = op.choice.as<int32_t>();
  int32_t *order = op.order.as<int32_t>(), *first = op.first.as<int32_t>();
  std::fill(first, first + experts + 1, 0);
  for (int64_t i = 0; i < places; ++i) ++first[choice[i] + 1];
  for (int64_t e = 0; e < experts; ++e) first[e + 1] += first[e];
  auto* next = context.scratch.take<int32_t>(experts);
  std::copy(first, first + experts, next);
  for (int64_t i = 0; i < places; ++i) {
    const int32_t to = next[choice[i]]++;
    order[to] = static_cast<int32_t>(i);
    op.place.as<int32_t>()[i] = to;
  }
}

}  // namespace qeng
