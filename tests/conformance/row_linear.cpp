// RowLinear: linear layers for inference, with x rounded to int8 where weights are of a block format.
#include <cstring>

#include "kernels/math/blocks/activations.h"
#include "kernels/math/blocks/with_block.h"
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

// Weights of one dtype and rows of a length that suits it, or of many dtypes; a row of x, a few, and many.
// Or of bf16 or f16 as tensor cores take it, tiles of many rows on both sides.
Op row_linear(Draw& draw) {
  draw.sometimes_misalign();
  RowLinear op;
  const bool mixed = draw.integer(0, 3) == 0, dense = draw.integer(0, 3) == 0, tiles = !mixed && !draw.integer(0, 5);
  const DType one = tiles   ? draw.pick({DType::bf16, DType::f16})
                    : dense ? draw.pick({DType::f32, DType::bf16, DType::f16})
                            : draw.block_format();
  const int64_t k = mixed   ? 256 * draw.integer(1, 2)
                    : tiles ? 8 * draw.size(20)
                            : draw.row_length(one, dense ? 150 : 600);
  const int64_t rows = draw.size(tiles ? draw.pick<int64_t>({16, 64, 300}) : 9);
  op.x = draw.tensor(draw.float_dtype(), {rows, k});
  op.alpha = draw.pick({1.0f, 1.0f, -0.5f, 2.75f}), op.acc = draw.flip();
  const bool biased = draw.flip(), scaled = draw.flip();
  for (int64_t count = draw.integer(1, 3); count > 0; --count) {
    const int64_t n = tiles && draw.flip() ? 8 * draw.size(40) : draw.size(40);
    const DType dtype = !mixed               ? one
                        : draw.integer(0, 3) ? draw.block_format()
                                             : draw.pick({DType::f32, DType::bf16, DType::f16});
    const DType result = draw.flip() ? DType::f32 : op.x.dtype;
    op.w.push_back(draw.tensor(dtype, {n, k}));
    op.y.push_back(op.acc ? draw.tensor(result, {rows, n}) : draw.empty(result, {rows, n}));
    if (biased) op.bias.push_back(draw.flip() ? draw.tensor(draw.flip() ? DType::f32 : op.x.dtype, {n}) : View());
    if (scaled) op.scale.push_back(draw.flip() ? draw.tensor(DType::f32, {n}) : View());
  }
  return op;
}

// x rounded in groups of `group`, the last of which may be shorter: codes, and the scale of each.
struct RoundedRow {
  std::vector<double> codes, scales;
};

RoundedRow rounded_row(const std::vector<double>& x, size_t group) {
  RoundedRow rounded;
  for (size_t first = 0; first < x.size(); first += group) {
    const size_t end = std::min(x.size(), first + group);
    double largest = 0;
    for (size_t k = first; k < end; ++k) largest = std::max(largest, std::fabs(x[k]));
    const blocks::ActivationGroup made = blocks::activation_group(static_cast<float>(largest));
    blocks::ActivationFit fit;
    const auto count = [&](size_t k) { return blocks::activation_count(static_cast<float>(x[k]), made.inverse); };
    for (size_t k = first; k < end; ++k) blocks::add_to_fit(fit, count(k));
    const blocks::ActivationStep step = blocks::best_step(fit);
    for (size_t k = first; k < end; ++k) rounded.codes.push_back(blocks::activation_code(count(k), step.index));
    rounded.scales.push_back(blocks::activation_scale(made, step, static_cast<int>(group)));
  }
  return rounded;
}

// <x, row j of w> where w is of a block format: the equation of activations.h. Backends round A_b and the products of
// scales to f32.
template <class T>
T rounded_dot(const RoundedRow& x, size_t group, const View& w, int64_t j) {
  T sum = 0;
  blocks::with_block(w.dtype, [&](auto tag) {
    using Block = decltype(tag);
    constexpr size_t kElements = Block::kElements;
    const auto columns = static_cast<size_t>(w.columns());
    for (size_t first = 0; first < columns; first += group) {
      double dot = 0, less = 0;
      for (size_t i = first; i < std::min(columns, first + group); ++i) {
        Block block;
        std::memcpy(&block, w.as<char>() + (static_cast<size_t>(j) * columns + i) / kElements * sizeof block,
                    sizeof block);
        const auto k = static_cast<int>(i % kElements);
        const double q = x.codes[i], d = scale(block, k / Block::kGroup);
        if constexpr (requires { block.zero; }) {  // d (q - zero) as d q - (d zero)
          dot += d * (code(block, k) + block.zero) * q, less += d * block.zero * q;
        } else {
          dot += d * code(block, k) * q;
          if constexpr (Block::kHasMin) less += static_cast<double>(min(block, k / Block::kGroup)) * q;
        }
      }
      const double scale_of_x = x.scales[first / group];
      sum += T(1) * (T(dot) * T(scale_of_x));
      sum += T(-1) * (T(less) * T(scale_of_x));
    }
  });
  return sum;
}

}  // namespace

template <class T>
void reference(const RowLinear& op, Sheet<T>& sheet) {
  const Array<T> exact = sheet.in(op.x);
  for (size_t i = 0; i < op.w.size(); ++i) {
    Array<T> x = exact;
    if (op.w[i].dtype == DType::bf16)
      for (T& each : x.values) each = T(to_f32(to_bf16(static_cast<float>(value_of(each)))));
    const bool rounded = is_block(op.w[i].dtype);
    const Array<T> w = rounded ? Array<T>() : sheet.in(op.w[i]);
    const View bias_view = op.bias.empty() ? View() : op.bias[i], scale_view = op.scale.empty() ? View() : op.scale[i];
    const Array<T> bias = bias_view ? sheet.in(bias_view) : Array<T>();
    const Array<T> scale = scale_view ? sheet.in(scale_view) : Array<T>();
    Array<T>& y = sheet.update(op.y[i], op.acc);
    const int64_t n = op.w[i].shape[0], k = op.x.columns();
    const bool signs = op.w[i].dtype == DType::one_bit || op.w[i].dtype == DType::ternary;
    const int block = dtype_info(op.w[i].dtype).elements;
    const auto group = static_cast<size_t>(signs ? blocks::kSignGroup : blocks::group_elements(block));
    std::vector<double> row(static_cast<size_t>(k));
    for (int64_t r = 0; r < op.x.rows(); ++r) {
      for (int64_t l = 0; l < k; ++l) row[static_cast<size_t>(l)] = value_of(x[r * k + l]);
      const RoundedRow codes = rounded ? rounded_row(row, group) : RoundedRow();
      for (int64_t j = 0; j < n; ++j) {
        T sum = 0;
        if (rounded) sum = rounded_dot<T>(codes, group, op.w[i], j);
        for (int64_t l = 0; !rounded && l < k; ++l) sum += x[r * k + l] * w[j * k + l];
        if (scale_view) sum = scale[j] * sum;
        sum = T(op.alpha) * sum;
        if (bias_view) sum += bias[j];
        y[r * n + j] += sum;
      }
    }
  }
}

QENG_CONFORMANCE(RowLinear, .make = row_linear);

}  // namespace qeng::conformance
