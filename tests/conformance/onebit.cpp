// One-bit training: gradients as pulses, and what counters make of them, weight by weight.
#include <algorithm>

#include "tests/conformance/philox.h"
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

View small_integers(Draw& draw, DType dtype, std::initializer_list<int64_t> shape) {
  const View view = draw.empty(dtype, shape);
  for (int64_t i = 0; i < view.elements(); ++i) encode(view, i, static_cast<double>(draw.integer(-6, 6)));
  return view;
}

Op pulse_grad(Draw& draw) {
  draw.sometimes_misalign();
  PulseGrad op;
  const int64_t rows = draw.size(40), n = draw.size(60), k = 32 * draw.integer(1, 9), past = draw.integer(0, 3);
  const DType dtype = draw.float_dtype();
  op.first = draw.integer(0, 3);
  op.dy = small_integers(draw, dtype, {rows, op.first + n + past}), op.x = small_integers(draw, dtype, {rows, k});
  op.pulses = draw.empty(draw.flip() ? DType::ternary : DType::u8, {n, k});
  const double strength =
      op.pulses.dtype == DType::u8 ? draw.pick({0.01, 0.7, 10.3, 200.1}) : draw.pick({0.0, 0.31, 1.437, 2.9, 1e30});
  op.weights = draw.tensor(DType::one_bit, {n, k});
  op.hyper = draw.values(DType::f32, {strength, draw.pick({0.0, 0.1, 1.3}), 0, 0});
  op.rng = draw.rng(), op.subsequence = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

Op inertia(Draw& draw) {
  draw.sometimes_misalign();
  Inertia op;
  const int64_t n = draw.size(50), k = 32 * draw.integer(1, 9);
  op.weights = draw.tensor(DType::one_bit, {n, k});
  if (draw.flip()) {
    op.state = draw.tensor(DType::one_bit, {draw.integer(1, 4), n, k});
    op.pulses = draw.tensor(DType::ternary, {n, k});
  } else {
    op.bop = draw.flip();
    op.state = draw.empty(DType::u8, {n, k}), op.pulses = draw.empty(DType::u8, {n, k});
    const int64_t most = draw.pick<int64_t>({2, 30, 127});
    for (int64_t i = 0; i < n * k; ++i) {
      const int64_t pulse = draw.flip() ? 0 : draw.integer(-most, most), momentum = draw.integer(-127, 127);
      encode(op.pulses, i, static_cast<double>(pulse < 0 ? pulse + 256 : pulse));
      encode(op.state, i,
             static_cast<double>(!op.bop        ? draw.integer(0, draw.flip() ? 255 : 5)
                                 : momentum < 0 ? momentum + 256
                                                : momentum));
    }
  }
  op.counts = draw.values(DType::i64, {7, static_cast<double>(int64_t{1} << 33)});
  op.hyper = draw.values(DType::f32, {0, 0, draw.pick({0.02, 0.5}), draw.pick({0.05, 0.4})});
  op.rng = draw.rng(), op.subsequence = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

Op count_levels(Draw& draw) {
  draw.sometimes_misalign();
  CountLevels op;
  const int64_t n = draw.size(80), k = 32 * draw.integer(1, 9);
  if (draw.flip()) {
    op.state = draw.tensor(DType::one_bit, {draw.integer(1, 4), n, k});
  } else {
    op.state = draw.empty(DType::u8, {n, k - draw.integer(0, 31)});
    for (int64_t i = 0; i < op.state.elements(); ++i) encode(op.state, i, static_cast<double>(draw.integer(0, 255)));
  }
  std::vector<double> before(16);
  for (double& count : before) count = static_cast<double>(draw.integer(0, int64_t{1} << 34));
  op.counts = draw.values(DType::i64, before);
  return op;
}

Op pack_signs(Draw& draw) {
  draw.sometimes_misalign();
  PackSigns op;
  op.x = draw.tensor(DType::f32, {draw.size(40), 32 * draw.integer(1, 9)});
  for (int64_t i = 0; i < op.x.elements(); i += 7) encode(op.x, i, i % 2 ? -0.0 : 0.0);
  op.y = draw.resized(op.x, DType::one_bit);
  return op;
}

Op clip_to_grid(Draw& draw) {
  draw.sometimes_misalign();
  ClipToGrid op;
  op.x = draw.tensor(DType::f32, {draw.size(40), draw.size(200)}, draw.pick({0.3, 2.0}));
  op.y = draw.flip() ? op.x : draw.empty_like(op.x);
  op.levels = draw.pick({0, 1, 7, 127});
  op.rng = draw.rng(), op.subsequence = static_cast<uint32_t>(draw.integer(0, 1000));
  return op;
}

}  // namespace

// Operands are small integers (small_integers), so that G is exact in f32 as here, and only the root and what it scales
// are rounded: to f32, as the op's comment has it.
template <class T>
void reference(const PulseGrad& op, Sheet<T>& sheet) {
  const Array<double> dy = Sheet<double>{}.in(op.dy), x = Sheet<double>{}.in(op.x),
                      hyper = Sheet<double>{}.in(op.hyper);
  const auto rng = sheet.integers(op.rng);
  Array<T>& pulses = sheet.out(op.pulses, Sheet<T>::Check::exact);
  const int64_t n = op.pulses.shape[0], k = op.x.columns(), rows = op.x.rows(), width = op.dy.columns();
  const Array<double> weights = Sheet<double>{}.in(op.weights);
  const auto strength = static_cast<float>(hyper[0]), friction = static_cast<float>(hyper[1]);
  for (int64_t i = 0; i < n; ++i) {
    std::vector<double> g(static_cast<size_t>(k));
    double squares = 0;
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t r = 0; r < rows; ++r) g[static_cast<size_t>(j)] += dy[r * width + op.first + i] * x[r * k + j];
      squares += g[static_cast<size_t>(j)] * g[static_cast<size_t>(j)];
    }
    const auto rms = static_cast<float>(std::sqrt(squares / static_cast<double>(k)));
    const float limit = strength * rms, factor = rms > 0 ? strength / rms : 0;
    for (int64_t j = 0; j < k; ++j) {
      const float rest = friction * rms * static_cast<float>(weights[i * k + j]);
      const double value = static_cast<float>(g[static_cast<size_t>(j)]) - rest, size = std::fabs(value);
      double steps = size > limit ? 1 : 0;
      if (op.pulses.dtype == DType::u8) {
        const double drawn = philox_uniform(rng, op.subsequence, i * k + j);
        const float scaled = static_cast<float>(size) * factor;
        steps = std::min(127.0, std::floor(double{scaled + static_cast<float>(drawn)}));
      }
      const double pulse = value > 0 ? -steps : steps;
      pulses[i * k + j] = T(op.pulses.dtype == DType::u8 && pulse < 0 ? pulse + 256 : pulse);  // two's complement
    }
  }
}

template <class T>
void reference(const Inertia& op, Sheet<T>& sheet) {
  const Array<double> given = Sheet<double>{}.in(op.pulses), hyper = Sheet<double>{}.in(op.hyper);
  Array<double> state = Sheet<double>{}.in(op.state), weights = Sheet<double>{}.in(op.weights);
  const auto rng = sheet.integers(op.rng), counted = sheet.integers(op.counts);
  const bool planes = op.state.dtype == DType::one_bit;
  const int64_t n = weights.size(), bits = planes ? op.state.shape[0] : 8, top = (int64_t{1} << bits) - 1;
  int64_t pulses = 0, flips = 0;
  for (int64_t i = 0; i < n; ++i) {
    const auto wanted = static_cast<int64_t>(given[i] >= 128 ? given[i] - 256 : given[i]);
    const bool along = static_cast<double>(wanted) * weights[i] > 0;
    const int64_t steps = std::abs(wanted);
    pulses += steps != 0;
    bool flip = false;
    if (op.bop) {
      const auto momentum = static_cast<float>(state[i] >= 128 ? state[i] - 256 : state[i]);
      const auto gamma = static_cast<float>(hyper[2]), unit = 0.8f / 127;
      const float kept = (1.0f - gamma) * momentum, fed = gamma * (0.0625f / unit) * static_cast<float>(wanted);
      const auto drawn = static_cast<float>(philox_uniform(rng, op.subsequence, i));
      const float next = std::clamp(std::floor(fed + kept + drawn), -127.0f, 127.0f);
      state[i] = next < 0 ? double{next} + 256 : double{next};
      flip = next * static_cast<float>(weights[i]) * unit < -static_cast<float>(hyper[3]);
    } else if (steps > 0) {
      int64_t health = 0;
      for (int64_t p = 0; p < (planes ? bits : 0); ++p) health += state[p * n + i] > 0 ? int64_t{1} << p : 0;
      if (!planes) health = static_cast<int64_t>(state[i]);
      if (along) {
        health = std::min(top, health + steps);
      } else if (steps > health) {
        health = top, flip = true;
      } else {
        health -= steps;
      }
      for (int64_t p = 0; p < (planes ? bits : 0); ++p) state[p * n + i] = health >> p & 1 ? 1 : -1;
      if (!planes) state[i] = static_cast<double>(health);
    }
    if (flip) weights[i] = -weights[i], ++flips;
  }
  const auto put = [&](const View& view, const Array<double>& values) {
    Array<T>& out = sheet.out(view, Sheet<T>::Check::exact);
    for (int64_t i = 0; i < out.size(); ++i) out[i] = T(values[i]);
  };
  put(op.state, state), put(op.weights, weights);
  Array<T>& counts = sheet.out(op.counts, Sheet<T>::Check::exact);
  counts[0] = T(static_cast<double>(counted[0] + pulses)), counts[1] = T(static_cast<double>(counted[1] + flips));
}

template <class T>
void reference(const CountLevels& op, Sheet<T>& sheet) {
  const Array<double> state = Sheet<double>{}.in(op.state);
  const auto before = sheet.integers(op.counts);
  const bool bits = op.state.dtype == DType::one_bit;
  const int64_t planes = bits ? op.state.shape[0] : 1, n = state.size() / planes;
  std::vector<int64_t> found(16);
  for (int64_t i = 0; i < n; ++i) {
    int64_t level = bits ? 0 : static_cast<int64_t>(state[i]) >> 4;
    for (int64_t p = 0; p < (bits ? planes : 0); ++p) level += state[p * n + i] > 0 ? int64_t{1} << p : 0;
    ++found[static_cast<size_t>(level)];
  }
  Array<T>& counts = sheet.out(op.counts, Sheet<T>::Check::exact);
  for (size_t level = 0; level < found.size(); ++level)
    counts[static_cast<int64_t>(level)] = T(static_cast<double>(before[level] + found[level]));
}

template <class T>
void reference(const PackSigns& op, Sheet<T>& sheet) {
  const Array<double> x = Sheet<double>{}.in(op.x);
  Array<T>& y = sheet.out(op.y, Sheet<T>::Check::exact);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = T(x[i] >= 0 ? 1.0 : -1.0);
}

template <class T>
void reference(const ClipToGrid& op, Sheet<T>& sheet) {
  const Array<double> x = Sheet<double>{}.in(op.x);
  const auto rng = sheet.integers(op.rng);
  Array<T>& y = sheet.out(op.y, Sheet<T>::Check::exact);
  for (int64_t i = 0; i < y.size(); ++i) {
    double value = std::clamp(x[i], -1.0, 1.0);
    if (op.levels > 0) {
      const auto drawn = static_cast<float>(philox_uniform(rng, op.subsequence, i));
      const auto levels = static_cast<float>(op.levels);
      value =
          std::clamp(static_cast<double>(std::floor(static_cast<float>(value) * levels + drawn) / levels), -1.0, 1.0);
    }
    y[i] = T(value);
  }
}

QENG_CONFORMANCE(PulseGrad, .make = pulse_grad, .free_shape = {"dy"}, .free_dtype = {"pulses"});
QENG_CONFORMANCE(Inertia, .make = inertia);
QENG_CONFORMANCE(CountLevels, .make = count_levels);
QENG_CONFORMANCE(PackSigns, .make = pack_signs);
QENG_CONFORMANCE(ClipToGrid, .make = clip_to_grid);

}  // namespace qeng::conformance
