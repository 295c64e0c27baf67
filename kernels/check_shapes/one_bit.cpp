#include "kernels/check.h"
#include "kernels/check_shapes.h"
#include "kernels/view_text.h"

namespace qeng {

void check_shapes(const PulseGrad& op) {
  const Check check{op.name};
  check.is_float("dy", op.dy);
  check.dtype("x", op.x, {op.dy.dtype});
  check.that(op.x.rows() == op.dy.rows(),
             [&] { return "x is " + shape_text(op.x) + ", dy is " + shape_text(op.dy) + "; their rows differ"; });
  check.dtype("pulses", op.pulses, {DType::ternary, DType::u8});
  check.that(op.pulses.rank == 2 && op.pulses.shape[1] == op.x.columns() && op.x.columns() % 32 == 0, [&] {
    return "pulses is " + shape_text(op.pulses) + ", x is " + shape_text(op.x) +
           "; pulses has to be [n, columns of x], a multiple of 32";
  });
  check.is("weights", op.weights, DType::one_bit, {op.pulses.shape[0], op.x.columns()});
  check.that(op.first >= 0 && op.first + op.pulses.shape[0] <= op.dy.columns(), [&] {
    return "pulses is " + shape_text(op.pulses) + " from row " + std::to_string(op.first) + " on, dy is " +
           shape_text(op.dy);
  });
  check.is("hyper", op.hyper, DType::f32, {4});
  check.is("rng", op.rng, DType::i64, {2});
}

void check_shapes(const Inertia& op) {
  const Check check{op.name};
  check.dtype("weights", op.weights, {DType::one_bit});
  check.that(op.weights.rank == 2 && op.weights.columns() % 32 == 0,
             [&] { return "weights is " + shape_text(op.weights) + ", expected [n, k] with k a multiple of 32"; });
  check.dtype("state", op.state, {DType::one_bit, DType::u8});
  const int64_t n = op.weights.shape[0], k = op.weights.shape[1];
  const bool planes = op.state.dtype == DType::one_bit;
  check.is("pulses", op.pulses, planes ? DType::ternary : DType::u8, {n, k});
  if (planes) {
    const int64_t count = op.state.rank == 3 ? op.state.shape[0] : 0;
    check.that(count >= 1 && count <= 4 && op.state.shape[1] == n && op.state.shape[2] == k && !op.bop, [&] {
      return "state is " + shape_text(op.state) + ", weights is " + shape_text(op.weights) +
             "; expected 1 to 4 bit planes of that shape, or u8 of it; momenta are u8";
    });
  } else {
    check.is("state", op.state, DType::u8, {n, k});
  }
  check.is("counts", op.counts, DType::i64, {2});
  check.is("hyper", op.hyper, DType::f32, {4});
  check.is("rng", op.rng, DType::i64, {2});
}

void check_shapes(const CountLevels& op) {
  const Check check{op.name};
  check.dtype("state", op.state, {DType::one_bit, DType::u8});
  const bool planes = op.state.dtype == DType::one_bit;
  check.that(
      planes ? op.state.rank == 3 && op.state.shape[0] >= 1 && op.state.shape[0] <= 4 && op.state.columns() % 32 == 0
             : op.state.rank == 2,
      [&] {
        return "state is " + shape_text(op.state) +
               ", expected one_bit [1 to 4 planes, n, k] with k a multiple of 32, or u8 [n, k]";
      });
  check.is("counts", op.counts, DType::i64, {16});
}

void check_shapes(const PackSigns& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32});
  check.dtype("y", op.y, {DType::one_bit});
  check.like("y", op.y, "x", op.x, false);
  check.that(op.x.columns() % 32 == 0,
             [&] { return "x is " + shape_text(op.x) + ", expected rows of a multiple of 32"; });
}

void check_shapes(const ClipToGrid& op) {
  const Check check{op.name};
  check.dtype("x", op.x, {DType::f32});
  check.like("y", op.y, "x", op.x);
  check.is("rng", op.rng, DType::i64, {2});
  if (op.levels < 0 || op.levels > 127)
    fail("value", op.name, ": levels is ", op.levels, ", expected 0 (clip only) to 127");
}

}  // namespace qeng
