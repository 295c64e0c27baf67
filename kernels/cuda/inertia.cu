// PulseGrad, Inertia, CountLevels, PackSigns, ClipToGrid. Words of 32 weights come about by votes: a warp reads 32
// neighbouring floats, and lane i keeps the bits of its i-th word.
#include <algorithm>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/math/inertia.h"
#include "kernels/math/philox.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kAtOnce = 8;  // words of a warp: eight reads under way in each lane
constexpr int kRun = kAtOnce * kWarp;

// Bytes of a tile of gradients in f32. It stays in the second-level cache of large GPUs until its pulses are taken, and
// its product is wide enough for all multiprocessors. In the emulator small, so that tests have several.
#ifdef QENG_EMULATED
constexpr int64_t kTileBytes = 16 << 10;
#else
constexpr int64_t kTileBytes = 32 << 20;
#endif
constexpr int64_t kLeastTileRows = 16;

struct Drawing {
  const uint64_t* rng;
  uint64_t seed, step;  // of rng
  uint32_t subsequence;
  __device__ void begin() { seed = rng[0], step = rng[1]; }
  // The numbers of elements i .. i + 3; i a multiple of 4.
  __device__ void four(int64_t i, float (&u)[4]) const {
    const Philox drawn = philox4x32(philox_counter(step, subsequence, static_cast<uint64_t>(i)),
                                    static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    for (int j = 0; j < 4; ++j) u[j] = uniform_of(drawn.word[j]);
  }
};
Drawing drawing(const View& rng, uint32_t subsequence) { return {rng.as<uint64_t>(), 0, 0, subsequence}; }

// ---- PulseGrad

constexpr int kRowThreads = 128;  // a block a row: its four warps read it again from the first-level cache
constexpr int kRowWarps = kRowThreads / kWarp;

// The same in all threads of the block. In double, whose products of f32 are exact.
__device__ double row_mean_square(const float* g, int64_t k) {
  double* partial = reinterpret_cast<double*>(shared_memory());  // [kRowWarps]
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  double sum = 0;
  for (int64_t j = threadIdx.x * 4; j < k; j += kRowThreads * 4) {
    float values[4];
    unpack(load<4>(g + j), values);
    for (int i = 0; i < 4; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  sum = warp_sum(sum);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  sum = partial[0];
  for (int i = 1; i < kRowWarps; ++i) sum += partial[i];
  return sum / static_cast<double>(k);
}
// So is its root in f32.
__device__ bool is_finite(double mean_square) { return mean_square <= 3.4e38; }

// tile, pulses: the rows of the blocks; k: a multiple of 32.
__global__ void __launch_bounds__(kRowThreads)
    ternary_pulses(const float* tile, int64_t k, const float* hyper, const uint32_t* weights, uint64_t* pulses) {
  const float* g = tile + blockIdx.x * k;
  const uint32_t* signs = weights + blockIdx.x * (k / 32);
  uint64_t* out = pulses + blockIdx.x * (k / 32);
  const double mean_square = row_mean_square(g, k);
  const float limit = is_finite(mean_square) ? pulse_limit(hyper[0], mean_square) : INFINITY;
  const float friction = hyper[1], rms = rms_of(mean_square);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int64_t first = warp * kRun; first < k; first += kRowWarps * kRun) {
    float values[kAtOnce];
    for (int u = 0; u < kAtOnce; ++u) {
      const int64_t j = first + u * kWarp;
      values[u] = j < k ? with_friction(g[j + lane], friction, rms, signs[j / 32] >> lane & 1) : 0.0f;
    }
    uint32_t plus = 0, minus = 0;
    for (int u = 0; u < kAtOnce; ++u) {
      const uint32_t below = __ballot_sync(kAllLanes, values[u] < -limit),
                     above = __ballot_sync(kAllLanes, values[u] > limit);
      if (lane == u) plus = below, minus = above;
    }
    if (lane < kAtOnce && first + lane * kWarp < k) out[first / 32 + lane] = ternary_word(plus, minus);
  }
}

// row: of the first block in all pulses. words: whether four pulses can be stored at once.
__global__ void __launch_bounds__(kRowThreads)
    stepped_pulses(const float* tile, int64_t k, const float* hyper, const uint32_t* weights, Drawing draw, int64_t row,
                   bool words, uint8_t* pulses) {
  draw.begin();
  const float* g = tile + blockIdx.x * k;
  const double mean_square = row_mean_square(g, k);
  const float factor = is_finite(mean_square) ? pulse_factor(hyper[0], mean_square) : 0.0f;
  const float friction = hyper[1], rms = rms_of(mean_square);
  const int64_t place = (row + blockIdx.x) * k;
  for (int64_t j = threadIdx.x * 4; j < k; j += kRowThreads * 4) {
    float values[4], u[4];
    unpack(load<4>(g + j), values);
    draw.four(place + j, u);
    const uint32_t signs = weights[(place + j) / 32] >> (j % 32);
    uint32_t packed = 0;
    for (int i = 0; i < 4; ++i) {
      const float pushed = with_friction(values[i], friction, rms, signs >> i & 1);
      packed |= (static_cast<uint32_t>(pulse_steps(pushed, factor, u[i])) & 255u) << (8 * i);
    }
    uint8_t* out = pulses + place + j;
    if (words) {
      *reinterpret_cast<uint32_t*>(out) = packed;
    } else {
      for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(packed >> (8 * i));
    }
  }
}

// ---- Inertia

constexpr int kThreads = 256, kWarps = kThreads / kWarp;
constexpr int64_t kMostBlocks = 1024;  // so that few of them add to the counts; they fill 128 multiprocessors

// Adds the block's sums to {pulses, flips}; all threads come here.
__device__ void add_counts(int pulses, int flips, int64_t* counts) {
  int* sums = reinterpret_cast<int*>(shared_memory());  // [2, kWarps]
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  pulses = warp_sum(pulses), flips = warp_sum(flips);
  if (lane == 0) sums[warp] = pulses, sums[kWarps + warp] = flips;
  __syncthreads();
  if (threadIdx.x >= 2) return;
  unsigned long long total = 0;
  for (int i = 0; i < kWarps; ++i) total += static_cast<unsigned long long>(sums[threadIdx.x * kWarps + i]);
  if (total > 0) atomicAdd(reinterpret_cast<unsigned long long*>(counts) + threadIdx.x, total);
}

// A thread takes a word of 32 weights, and of each of the planes of `words` words.
template <int planes>
__global__ void __launch_bounds__(kThreads)
    feed_counters(const uint64_t* pulses, uint32_t* weights, uint32_t* state, int64_t words, int64_t* counts) {
  int pulse_count = 0, flip_count = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += int64_t{gridDim.x} * kThreads) {
    const uint64_t pairs = pulses[i];
    const uint32_t signs = weights[i];
    uint32_t health[planes];
    for (int p = 0; p < planes; ++p) health[p] = state[p * words + i];
    const PulseMasks masks = pulse_masks(pairs, signs);
    const uint32_t given = masks.agree | masks.contrary;
    if (given == 0) continue;
    const uint32_t flips = step_counters(health, masks);
    for (int p = 0; p < planes; ++p) state[p * words + i] = health[p];
    if (flips != 0) weights[i] = signs ^ flips;
    pulse_count += __popc(given), flip_count += __popc(flips);
  }
  add_counts(pulse_count, flip_count, counts);
}

template <bool vectors>
__device__ void read_16(const uint8_t* from, uint32_t (&words)[4]) {
  if constexpr (vectors) {
    const Pack<uint8_t, 16> pack = load<16>(from);
    for (int i = 0; i < 4; ++i) words[i] = pack.word[i];
  } else {
    for (int i = 0; i < 4; ++i) words[i] = 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) words[i / 4] |= static_cast<uint32_t>(from[i]) << (i % 4 * 8);
  }
}
template <bool vectors>
__device__ void write_16(uint8_t* to, const uint32_t (&words)[4]) {
  if constexpr (vectors) {
    Pack<uint8_t, 16> pack;
    for (int i = 0; i < 4; ++i) pack.word[i] = words[i];
    store(to, pack);
  } else {
#pragma unroll
    for (int i = 0; i < 16; ++i) to[i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
  }
}

// A thread takes 16 weights, half a word: 16 bytes of pulses and of counters, or momenta.
template <bool bop, bool vectors>
__global__ void __launch_bounds__(kThreads)
    feed_bytes(const uint8_t* pulses, uint16_t* weights, uint8_t* state, int64_t halves, int64_t* counts,
               const float* hyper, Drawing draw) {
  float gamma = 0, threshold = 0;
  if constexpr (bop) draw.begin(), gamma = hyper[2], threshold = hyper[3];
  int pulse_count = 0, flip_count = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < halves; i += int64_t{gridDim.x} * kThreads) {
    uint32_t given[4], kept[4], flips = 0;
    read_16<vectors>(pulses + 16 * i, given);
    read_16<vectors>(state + 16 * i, kept);
    const uint32_t signs = weights[i];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      float u[4];
      if constexpr (bop) draw.four(16 * i + 4 * w, u);
      uint32_t next = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int pulse = static_cast<int8_t>(given[w] >> (8 * b)), bit = 4 * w + b;
        const bool weight = signs >> bit & 1;
        bool flip;
        if constexpr (bop) {
          auto momentum = static_cast<int8_t>(kept[w] >> (8 * b));
          flip = step_momentum(momentum, pulse, weight, gamma, threshold, u[b]);
          next |= static_cast<uint32_t>(static_cast<uint8_t>(momentum)) << (8 * b);
        } else {
          auto health = static_cast<uint8_t>(kept[w] >> (8 * b));
          flip = step_counter(health, pulse, weight);
          next |= static_cast<uint32_t>(health) << (8 * b);
        }
        pulse_count += pulse != 0, flips |= static_cast<uint32_t>(flip) << bit;
      }
      kept[w] = next;
    }
    write_16<vectors>(state + 16 * i, kept);
    if (flips != 0) weights[i] = static_cast<uint16_t>(signs ^ flips);
    flip_count += __popc(flips);
  }
  add_counts(pulse_count, flip_count, counts);
}

dim3 grid_of(int64_t threads) {
  return dim3(static_cast<unsigned>(std::min(ceil_div(threads, kThreads), kMostBlocks)));
}

// ---- CountLevels

// Adds the block's sums of every thread's counts; all threads come here.
template <int levels>
__device__ void add_levels(const int (&counted)[levels], int64_t* counts) {
  int* sums = reinterpret_cast<int*>(shared_memory());  // [kWarps, levels]
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll
  for (int level = 0; level < levels; ++level) {
    const int sum = warp_sum(counted[level]);
    if (lane == 0) sums[warp * levels + level] = sum;
  }
  __syncthreads();
  if (threadIdx.x >= levels) return;
  unsigned long long total = 0;
  for (int i = 0; i < kWarps; ++i)
    total += static_cast<unsigned long long>(sums[i * levels + static_cast<int>(threadIdx.x)]);
  if (total > 0) atomicAdd(reinterpret_cast<unsigned long long*>(counts) + threadIdx.x, total);
}

// A thread takes a word of each plane.
template <int planes>
__global__ void __launch_bounds__(kThreads) count_planes(const uint32_t* state, int64_t words, int64_t* counts) {
  int counted[1 << planes] = {};
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < words; i += int64_t{gridDim.x} * kThreads) {
    uint32_t plane[planes];
    for (int p = 0; p < planes; ++p) plane[p] = state[p * words + i];
#pragma unroll
    for (int level = 0; level < 1 << planes; ++level) {
      uint32_t here = ~0u;
#pragma unroll
      for (int p = 0; p < planes; ++p) here &= plane_at_level(plane[p], level >> p & 1);
      counted[level] += __popc(here);
    }
  }
  add_levels(counted, counts);
}

__global__ void __launch_bounds__(kThreads) count_bytes(const uint8_t* state, int64_t elements, int64_t* counts) {
  int counted[16] = {};
#pragma unroll 1
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements; i += int64_t{gridDim.x} * kThreads) {
    const int bin = state[i] / 16;
#pragma unroll
    for (int level = 0; level < 16; ++level) counted[level] += bin == level;  // in registers, which no index reaches
  }
  add_levels(counted, counts);
}

// ---- PackSigns, ClipToGrid

__global__ void __launch_bounds__(kThreads) pack_signs(const float* x, uint32_t* y, int64_t words) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kAtOnce;
  float values[kAtOnce];
  for (int u = 0; u < kAtOnce; ++u) values[u] = first + u < words ? x[(first + u) * kWarp + lane] : 0.0f;
  uint32_t word = 0;
  for (int u = 0; u < kAtOnce; ++u) {
    const uint32_t bits = __ballot_sync(kAllLanes, values[u] >= 0);
    if (lane == u) word = bits;
  }
  if (lane < kAtOnce && first + lane < words) y[first + lane] = word;
}

struct Clipped {
  static constexpr int kWidth = 4, kInputs = 1;
  const float* x;
  float* y;
  Drawing draw;
  float levels;  // or 0
  __device__ void begin() { draw.begin(); }
  template <int n>
  __device__ Pack<float, n> read(int64_t i) const {
    return load_once<n>(x + i);
  }
  __device__ float at(float value, float u) const {
    const auto clip = [](float z) { return z < -1.0f ? -1.0f : z > 1.0f ? 1.0f : z; };  // a NaN stays one
    const float clipped = clip(value);
    return levels > 0 && clipped == clipped ? clip(to_grid(clipped, levels, u)) : clipped;
  }
  template <int n>
  __device__ void write(int64_t i, const Pack<float, n>& packed) const {
    float value[n], u[4] = {};
    unpack(packed, value);
    if (levels > 0) draw.four(i / 4 * 4, u);
    if constexpr (n == 1) {
      const float low = i % 2 ? u[1] : u[0], high = i % 2 ? u[3] : u[2];
      value[0] = at(value[0], i % 4 < 2 ? low : high);
    } else {
      for (int k = 0; k < n; ++k) value[k] = at(value[k], u[k]);
    }
    store(y + i, pack<float>(value));
  }
};

}  // namespace

void run(const PulseGrad& op, CudaContext& context) {
  const int64_t n = op.pulses.shape[0], k = op.x.columns();
  if (n == 0 || k == 0) return;
  const int64_t most = std::min(n, std::max(kTileBytes / (4 * k) / 16 * 16, kLeastTileRows));
  CudaGemm product;  // G = dy^T x
  product.n = k, product.k = op.x.rows();
  product.b = op.x.data, product.c = context.scratch.take<float>(most * k);
  product.in = op.dy.dtype, product.trans_a = true;
  product.lda = op.dy.columns(), product.ldb = product.ldc = k;
  const float *tile = static_cast<const float*>(product.c), *hyper = op.hyper.as<float>();
  const Drawing draw = drawing(op.rng, op.subsequence);
  for (int64_t row = 0; row < n; row += most) {
    product.m = std::min(most, n - row), product.a = at(op.dy, op.first + row);
    product.k > 0 ? run_gemm(product, context) : gemm_simt(product, context);
    const dim3 grid(static_cast<unsigned>(product.m)), block(kRowThreads);
    constexpr size_t shared = kRowWarps * sizeof(double);
    if (op.pulses.dtype == DType::ternary)
      QENG_LAUNCH(context, ternary_pulses, grid, block, shared, tile, k, hyper,
                  op.weights.as<uint32_t>() + row * (k / 32), op.pulses.as<uint64_t>() + row * (k / 32));
    else
      QENG_LAUNCH(context, stepped_pulses, grid, block, shared, tile, k, hyper, op.weights.as<uint32_t>(), draw, row,
                  aligned(op.pulses.data, 4), op.pulses.as<uint8_t>());
  }
}

void run(const Inertia& op, CudaContext& context) {
  const int64_t words = op.weights.elements() / 32;
  constexpr size_t shared = 2 * kWarps * sizeof(int);
  if (op.state.dtype == DType::one_bit) {
    const auto feed = [&](auto kernel) {
      launch(context, op.name, kernel, grid_of(words), dim3(kThreads), shared, op.pulses.as<uint64_t>(),
             op.weights.as<uint32_t>(), op.state.as<uint32_t>(), words, op.counts.as<int64_t>());
    };
    switch (op.state.shape[0]) {
      case 1: return feed(feed_counters<1>);
      case 2: return feed(feed_counters<2>);
      case 3: return feed(feed_counters<3>);
      default: return feed(feed_counters<4>);
    }
  }
  const auto feed = [&](auto kernel) {
    launch(context, op.name, kernel, grid_of(2 * words), dim3(kThreads), shared, op.pulses.as<uint8_t>(),
           op.weights.as<uint16_t>(), op.state.as<uint8_t>(), 2 * words, op.counts.as<int64_t>(), op.hyper.as<float>(),
           drawing(op.rng, op.subsequence));
  };
  const bool vectors = aligned_for(16, op.pulses, op.state);
  if (op.bop)
    feed(vectors ? feed_bytes<true, true> : feed_bytes<true, false>);
  else
    feed(vectors ? feed_bytes<false, true> : feed_bytes<false, false>);
}

void run(const CountLevels& op, CudaContext& context) {
  const bool bits = op.state.dtype == DType::one_bit;
  const int64_t planes = bits ? op.state.shape[0] : 1, count = op.state.elements() / planes / (bits ? 32 : 1);
  const auto counted = [&](auto kernel, const auto* state, size_t levels) {
    launch(context, op.name, kernel, grid_of(count), dim3(kThreads), levels * kWarps * sizeof(int), state, count,
           op.counts.as<int64_t>());
  };
  const auto* words = op.state.as<uint32_t>();
  if (!bits) return counted(count_bytes, op.state.as<uint8_t>(), 16);
  switch (planes) {
    case 1: return counted(count_planes<1>, words, 2);
    case 2: return counted(count_planes<2>, words, 4);
    case 3: return counted(count_planes<3>, words, 8);
    default: return counted(count_planes<4>, words, 16);
  }
}

void run(const PackSigns& op, CudaContext& context) {
  const int64_t words = op.x.elements() / 32, blocks = ceil_div(words, kWarps * kAtOnce);
  if (blocks > INT32_MAX) fail("unsupported", op.name, ": x is ", shape_text(op.x), ", more than one launch takes");
  QENG_LAUNCH(context, pack_signs, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, op.x.as<float>(),
              op.y.as<uint32_t>(), words);
}

void run(const ClipToGrid& op, CudaContext& context) {
  const Clipped clipped{op.x.as<float>(), op.y.as<float>(), drawing(op.rng, op.subsequence),
                        static_cast<float>(op.levels)};
  launch_elementwise(context, op.name, clipped, op.x.elements(), aligned_for(clipped.kWidth, op.x, op.y));
}

}  // namespace qeng
