// PulseGrad, Inertia, CountLevels, PackSigns, ClipToGrid. Whole words of 32 weights at a time; what is drawn is drawn
// by place.
#include "kernels/math/inertia.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/math/philox.h"

namespace qeng {

namespace {

constexpr int64_t kTileBytes = 4 << 20;  // of a tile of gradients in f32: they fit the last-level cache
constexpr int64_t kLeastTileRows = 16, kMostTileRows = 1024;

template <class T>
T load_as(const void* p) {
  T x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
template <class T>
void store_as(void* p, T x) {
  std::memcpy(p, &x, sizeof x);
}

struct Drawing {
  uint64_t seed, step;
  uint32_t subsequence;
  // The numbers of elements i .. i + 3; i a multiple of 4.
  void four(uint64_t i, float (&u)[4]) const {
    const Philox drawn = philox4x32(philox_counter(step, subsequence, i), static_cast<uint32_t>(seed),
                                    static_cast<uint32_t>(seed >> 32));
    for (int j = 0; j < 4; ++j) u[j] = uniform_of(drawn.word[j]);
  }
};
Drawing drawing(const View& rng, uint32_t subsequence) {
  return {rng.as<uint64_t>()[0], rng.as<uint64_t>()[1], subsequence};
}

void ternary_pulses(const float* g, int64_t k, float limit, char* out) {
  for (int64_t j = 0; j < k; j += 32) {
    uint32_t plus = 0, minus = 0;
    for (int b = 0; b < 32; ++b) {
      plus |= static_cast<uint32_t>(g[j + b] < -limit) << b;
      minus |= static_cast<uint32_t>(g[j + b] > limit) << b;
    }
    store_as(out + j / 4, ternary_word(plus, minus));
  }
}

void add_friction(float* g, int64_t k, float friction, float rms, const char* weights) {
  for (int64_t j = 0; j < k; j += 32) {
    const auto signs = load_as<uint32_t>(weights + j / 8);
    for (int b = 0; b < 32; ++b) g[j + b] = with_friction(g[j + b], friction, rms, signs >> b & 1);
  }
}

void stepped_pulses(const float* g, int64_t k, float factor, const Drawing& draw, uint64_t place, int8_t* out) {
  for (int64_t j = 0; j < k; j += 4) {
    float u[4];
    draw.four(place + static_cast<uint64_t>(j), u);
    for (int b = 0; b < 4; ++b) out[j + b] = static_cast<int8_t>(pulse_steps(g[j + b], factor, u[b]));
  }
}

struct Counts {
  int64_t pulses = 0, flips = 0;
};

// Words first .. last of counters in planes of `words` words each.
template <int planes>
Counts feed_counters(const Inertia& op, int64_t words, int64_t first, int64_t last) {
  Counts counts;
  char *weights = op.weights.as<char>(), *state = op.state.as<char>();
  const char* pulses = op.pulses.as<char>();
  for (int64_t i = first; i < last; ++i) {
    const auto pairs = load_as<uint64_t>(pulses + 8 * i);
    if (pairs == 0) continue;
    const auto signs = load_as<uint32_t>(weights + 4 * i);
    const PulseMasks masks = pulse_masks(pairs, signs);
    uint32_t health[planes];
    for (int p = 0; p < planes; ++p) health[p] = load_as<uint32_t>(state + 4 * (p * words + i));
    const uint32_t flips = step_counters(health, masks);
    for (int p = 0; p < planes; ++p) store_as(state + 4 * (p * words + i), health[p]);
    store_as(weights + 4 * i, signs ^ flips);
    counts.pulses += __builtin_popcount(masks.agree | masks.contrary), counts.flips += __builtin_popcount(flips);
  }
  return counts;
}

Counts feed_bytes(const Inertia& op, int64_t first, int64_t last) {
  Counts counts;
  char* weights = op.weights.as<char>();
  const int8_t* pulses = op.pulses.as<int8_t>();
  const float gamma = op.hyper.as<float>()[2], threshold = op.hyper.as<float>()[3];
  const Drawing draw = drawing(op.rng, op.subsequence);
  for (int64_t i = first; i < last; ++i) {
    auto signs = load_as<uint32_t>(weights + 4 * i);
    float u[4] = {};
    for (int b = 0; b < 32; ++b) {
      const int64_t place = 32 * i + b;
      const bool weight = signs >> b & 1;
      if (op.bop && b % 4 == 0) draw.four(static_cast<uint64_t>(place), u);
      const bool flips =
          op.bop ? step_momentum(op.state.as<int8_t>()[place], pulses[place], weight, gamma, threshold, u[b % 4])
                 : step_counter(op.state.as<uint8_t>()[place], pulses[place], weight);
      signs ^= static_cast<uint32_t>(flips) << b;
      counts.pulses += pulses[place] != 0, counts.flips += flips;
    }
    store_as(weights + 4 * i, signs);
  }
  return counts;
}

}  // namespace

void run(const PulseGrad& op, CpuContext& context) {
  const int64_t n = op.pulses.shape[0], k = op.x.columns(), width = op.dy.columns();
  const int64_t most = std::clamp(kTileBytes / (4 * std::max<int64_t>(k, 1)) / 16 * 16, kLeastTileRows, kMostTileRows);
  if (n == 0 || k == 0) return;
  const float strength = op.hyper.as<float>()[0], friction = op.hyper.as<float>()[1];
  const Drawing draw = drawing(op.rng, op.subsequence);
  float* tile = context.scratch.take<float>(std::min(most, n) * k);
  for (int64_t row = 0; row < n; row += most) {
    const ScratchFrame frame(context.scratch);
    GemmShape shape;
    shape.m = std::min(most, n - row), shape.n = k, shape.k = op.x.rows();
    shape.in = op.dy.dtype, shape.trans_a = true, shape.lda = width;
    if (shape.k > 0)
      multiply(shape, at(op.dy, op.first + row), op.x.data, nullptr, tile, context);
    else
      std::fill(tile, tile + shape.m * k, 0.0f);
    parallel_for(context.threads, shape.m, grain_rows(k), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* g = tile + i * k;
        const double mean_square = context.isa->sum_squares(g, k) / static_cast<double>(k);
        const bool finite = mean_square <= 3.4e38;  // so is its root in f32
        const auto place = (row + i) * k;
        if (finite && friction != 0)
          add_friction(g, k, friction, rms_of(mean_square), op.weights.as<char>() + place / 8);
        if (op.pulses.dtype == DType::ternary)
          ternary_pulses(g, k, finite ? pulse_limit(strength, mean_square) : __builtin_inff(),
                         op.pulses.as<char>() + place / 4);
        else
          stepped_pulses(g, k, finite ? pulse_factor(strength, mean_square) : 0.0f, draw, static_cast<uint64_t>(place),
                         op.pulses.as<int8_t>() + place);
      }
    });
  }
}

void run(const Inertia& op, CpuContext& context) {
  const int64_t words = op.weights.elements() / 32;
  std::vector<Counts> counts(static_cast<size_t>(context.threads));
  parallel_for(context.threads, words, kGrainElements / 32, [&](int64_t first, int64_t last) {
    const auto feed = [&] {
      if (op.state.dtype == DType::u8) return feed_bytes(op, first, last);
      switch (op.state.shape[0]) {
        case 1: return feed_counters<1>(op, words, first, last);
        case 2: return feed_counters<2>(op, words, first, last);
        case 3: return feed_counters<3>(op, words, first, last);
        default: return feed_counters<4>(op, words, first, last);
      }
    };
    const Counts found = feed();
    Counts& mine = counts[static_cast<size_t>(team_rank())];
    mine.pulses += found.pulses, mine.flips += found.flips;
  });
  for (const Counts& each : counts) op.counts.as<int64_t>()[0] += each.pulses, op.counts.as<int64_t>()[1] += each.flips;
}

void run(const CountLevels& op, CpuContext& context) {
  using Levels = std::array<int64_t, 16>;
  std::vector<Levels> counted(static_cast<size_t>(context.threads), Levels{});
  if (op.state.dtype == DType::u8) {
    parallel_for(context.threads, op.state.elements(), kGrainElements, [&](int64_t first, int64_t last) {
      Levels& counts = counted[static_cast<size_t>(team_rank())];
      for (int64_t i = first; i < last; ++i) ++counts[op.state.as<uint8_t>()[i] / 16];
    });
  } else {
    const int64_t planes = op.state.shape[0], words = op.state.elements() / planes / 32;
    parallel_for(context.threads, words, kGrainElements / 32, [&](int64_t first, int64_t last) {
      Levels& counts = counted[static_cast<size_t>(team_rank())];
      for (int64_t i = first; i < last; ++i)
        for (int64_t level = 0; level < int64_t{1} << planes; ++level) {
          uint32_t here = ~0u;
          for (int64_t p = 0; p < planes; ++p)
            here &= plane_at_level(op.state.as<uint32_t>()[p * words + i], level >> p & 1);
          counts[static_cast<size_t>(level)] += __builtin_popcount(here);
        }
    });
  }
  for (const Levels& counts : counted)
    for (size_t level = 0; level < counts.size(); ++level) op.counts.as<int64_t>()[level] += counts[level];
}

void run(const PackSigns& op, CpuContext& context) {
  const float* x = op.x.as<float>();
  parallel_for(context.threads, op.x.elements() / 32, kGrainElements / 32, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      uint32_t word = 0;
      for (int b = 0; b < 32; ++b) word |= static_cast<uint32_t>(x[32 * i + b] >= 0) << b;
      store_as(op.y.as<char>() + 4 * i, word);
    }
  });
}

void run(const ClipToGrid& op, CpuContext& context) {
  const float* x = op.x.as<float>();
  float* y = op.y.as<float>();
  const Drawing draw = drawing(op.rng, op.subsequence);
  static_assert(kGrainElements % 4 == 0);  // a range starts at a Philox counter
  parallel_for(context.threads, op.x.elements(), kGrainElements, [&](int64_t first, int64_t last) {
    float u[4] = {};
    for (int64_t i = first; i < last; ++i) {
      const float clipped = std::clamp(x[i], -1.0f, 1.0f);
      if (op.levels > 0 && i % 4 == 0) draw.four(static_cast<uint64_t>(i), u);
      y[i] = op.levels > 0 && clipped == clipped
                 ? std::clamp(to_grid(clipped, static_cast<float>(op.levels), u[i % 4]), -1.0f, 1.0f)
                 : clipped;
    }
  });
}

}  // namespace qeng
