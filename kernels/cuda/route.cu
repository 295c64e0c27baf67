// Route: each expert counts the scores before its own, which is its place in the order, and a block for each expert puts
// what chose it in order.
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/math/sort_key.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

constexpr int kChoiceThreads = 128;
constexpr int kThreads = 1024, kWarps = kThreads / kWarp;  // many, as each round of them waits for memory

// A block a token.
__global__ void __launch_bounds__(kChoiceThreads)
    choose_experts(const float* scores, const float* bias, int experts, int k, int32_t* choice) {
  auto* keys = reinterpret_cast<uint32_t*>(shared_memory());  // [experts]
  const int64_t t = blockIdx.x;
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kChoiceThreads)
    keys[e] = route_key(scores[t * experts + e] + (bias ? bias[e] : 0.0f));
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kChoiceThreads) {
    const uint32_t own = keys[e];
    int before = 0;
    for (int other = 0; other < experts; ++other) before += keys[other] > own || (keys[other] == own && other < e);
    if (before < k) choice[t * k + before] = e;
  }
}

struct Orders {
  const int32_t* choice;
  int32_t *order, *first, *place;
  int64_t places;
};

// A block an expert: how many choices are of the experts before it, then its own one after the other.
__global__ void __launch_bounds__(kThreads) order_choices(Orders o) {
  int* counts = reinterpret_cast<int*>(shared_memory());  // [kWarps]
  const int expert = static_cast<int>(blockIdx.x), lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const auto sum_of_warps = [&](int warps) {
    int sum = 0;
    for (int w = 0; w < warps; ++w) sum += counts[w];
    return sum;
  };
  int before = 0;
  for (int64_t i = threadIdx.x; i < o.places; i += kThreads) before += o.choice[i] < expert;
  before = warp_sum(before);
  if (lane == 0) counts[warp] = before;
  __syncthreads();
  int next = sum_of_warps(kWarps);
  __syncthreads();
  if (threadIdx.x == 0) o.first[expert] = next;
  for (int64_t base = 0; base < o.places; base += kThreads) {
    const int64_t i = base + threadIdx.x;
    const bool own = i < o.places && o.choice[i] == expert;
    const uint32_t lanes = __ballot_sync(kAllLanes, own);
    if (lane == 0) counts[warp] = __popc(lanes);
    __syncthreads();
    if (own) {
      const int to = next + sum_of_warps(warp) + __popc(lanes & ((1u << lane) - 1));
      o.order[to] = static_cast<int32_t>(i), o.place[i] = to;
    }
    next += sum_of_warps(kWarps);
    __syncthreads();
  }
  if (threadIdx.x == 0 && expert + 1 == static_cast<int>(gridDim.x)) o.first[expert + 1] = next;
}

}  // namespace

void run(const Route& op, CudaContext& context) {
  const int64_t tokens = op.choice.shape[0], experts = op.scores.columns(), k = op.choice.columns();
  const size_t shared = static_cast<size_t>(experts) * sizeof(uint32_t);
  if (shared > context.shared_limit || tokens * k > INT32_MAX)
    fail("unsupported", op.name, ": scores is ", shape_text(op.scores), ", more than one launch takes");
  QENG_LAUNCH(context, choose_experts, dim3(static_cast<unsigned>(tokens)), dim3(kChoiceThreads), shared,
              op.scores.as<float>(), op.bias.as<float>(), static_cast<int>(experts), static_cast<int>(k),
              op.choice.as<int32_t>());
  const Orders orders{op.choice.as<int32_t>(), op.order.as<int32_t>(), op.first.as<int32_t>(), op.place.as<int32_t>(),
                      tokens * k};
  QENG_LAUNCH(context, order_choices, dim3(static_cast<unsigned>(experts)), dim3(kThreads), sizeof(int) * kWarps,
              orders);
}

}  // namespace qeng
