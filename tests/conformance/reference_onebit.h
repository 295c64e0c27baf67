// One-bit training: gradients as pulses, and what counters make of them, weight by weight.
#pragma once
#include <algorithm>
#include <cmath>

#include "tests/conformance/reference_dropout.h"
#include "tests/conformance/sheet.h"

namespace qeng::conformance {

template <class T>
void reference(const ScaleColumns& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), scale = sheet.in(op.scale), bias = op.bias ? sheet.in(op.bias) : Array<T>();
  Array<T>& y = sheet.out(op.y);
  const int64_t n = op.x.columns();
  for (int64_t i = 0; i < y.size(); ++i) {
    y[i] = x[i] * scale[i % n];
    if (op.bias) y[i] += bias[i % n];
  }
}

template <class T>
void reference(const ScaleColumnsGrad& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x), scale = sheet.in(op.scale), dy = sheet.in(op.dy);
  Array<T>& dx = sheet.out(op.dx);
  const int64_t n = op.x.columns();
  for (int64_t i = 0; i < dx.size(); ++i) dx[i] = dy[i] * scale[i % n];
  if (!op.dscale) return;
  Array<T>& dscale = sheet.update(op.dscale, op.acc);
  for (int64_t i = 0; i < dy.size(); ++i) dscale[i % n] += dy[i] * x[i];
}

// Operands are small integers (generators.cpp), so that G is exact in f32 as here, and only the root and what it scales
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
        const double drawn = philox_uniform(static_cast<uint64_t>(rng[0]), static_cast<uint64_t>(rng[1]), op.stream,
                                            static_cast<uint64_t>(i * k + j));
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
      const auto drawn = static_cast<float>(philox_uniform(static_cast<uint64_t>(rng[0]), static_cast<uint64_t>(rng[1]),
                                                           op.stream, static_cast<uint64_t>(i)));
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
      const auto drawn = static_cast<float>(philox_uniform(static_cast<uint64_t>(rng[0]), static_cast<uint64_t>(rng[1]),
                                                           op.stream, static_cast<uint64_t>(i)));
      const auto levels = static_cast<float>(op.levels);
      value =
          std::clamp(static_cast<double>(std::floor(static_cast<float>(value) * levels + drawn) / levels), -1.0, 1.0);
    }
    y[i] = T(value);
  }
}

}  // namespace qeng::conformance
