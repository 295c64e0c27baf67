#include "engine/quantize/quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/blocks.h"
#include "kernels/parallel.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int64_t kPieceElements = int64_t{1} << 24;  // of f32 at a time on the host: 64 MB
constexpr float kLargestHalf = 65504;

void check_arguments(const Tensor& x, DType type, const Tensor* importance) {
  if (!is_block(type)) fail("dtype", "quantize: ", dtype_name(type), " is no block format; :to() converts to it");
  if (is_read_only(type))
    fail("dtype", "quantize: ", dtype_name(type),
         " is read, not written; iq4_xs, q3_k and q2_k are the small types that are");
  if (x.view.dtype != DType::f32 && x.view.dtype != DType::bf16 && x.view.dtype != DType::f16)
    fail("dtype", "quantize: the tensor is ", shape_text(x.view), ", expected f32, bf16 or f16",
         is_block(x.view.dtype) ? "; decode it first, with :to('f32')" : "");
  const int64_t columns = x.view.columns(), elements = dtype_info(type).elements;
  if (x.view.rank < 1 || columns % elements != 0) {
    const char* fits = columns % 32 ? "f16 takes any" : "q8_0, q5_0, q4_0 and iq4_nl take multiples of 32";
    fail("shape", "quantize: the tensor is ", shape_text(x.view), ", whose rows are not whole blocks of ", elements,
         " of ", dtype_name(type), "; ", fits);
  }
  if (importance && (importance->view.dtype != DType::f32 || importance->view.elements() != columns))
    fail("shape", "quantize: importance is ", shape_text(importance->view), ", expected f32 [", columns, "]");
}

// What the errors of columns weigh, in blocks of `elements`. Only how they compare within a block counts: the largest
// of each becomes about 1, so that no product of the fits overflows, by a power of two, which rounds nothing. Columns
// of a block that are all of no importance are all as important as the others.
std::vector<float> weights_of(const Tensor* importance, int64_t elements) {
  if (!importance) return {};
  std::vector<float> weights = to_host_f32(*importance);
  for (size_t i = 0; i < weights.size(); ++i)
    if (!(weights[i] >= 0 && std::isfinite(weights[i])))
      fail("value", "quantize: the importance of column ", i, " is ", weights[i],
           ", expected a number that is not negative");
  for (auto block = weights.begin(); block != weights.end(); block += elements) {
    const float most = *std::max_element(block, block + elements);
    const int exponent = most > 0 ? std::ilogb(most) : 0;
    std::transform(block, block + elements, block, [&](float w) { return most > 0 ? std::ldexp(w, -exponent) : 1.0f; });
  }
  return weights;
}

}  // namespace

TensorPtr quantize(const TensorPtr& x, DType type, const TensorPtr& importance, const std::string& account) {
  check_arguments(*x, type, importance.get());
  const std::vector<float> weights = weights_of(importance.get(), dtype_info(type).elements);
  Device& device = x->device();
  const int64_t columns = x->view.columns(), rows = x->view.rows();
  const TensorPtr result = make_tensor(device, Shape(x->view.shape, x->view.shape + x->view.rank), type, account);
  if (rows == 0) return result;
  const TensorPtr matrix = reshape_view(x, {rows, columns});
  const size_t row_bytes = dtype_bytes(type, columns);
  const int64_t piece = std::max<int64_t>(1, kPieceElements / columns);
  std::vector<uint16_t> blocks;  // of a piece; two bytes for the alignment that blocks need
  std::vector<char> wrong;
  for (int64_t first = 0; first < rows; first += piece) {
    const int64_t count = std::min(piece, rows - first);
    const std::vector<float> values = to_host_f32(*row_range(matrix, first, count));
    blocks.resize((static_cast<size_t>(count) * row_bytes + 1) / 2);
    wrong.assign(static_cast<size_t>(count), 0);
    const int64_t grain = std::max<int64_t>(1, 4096 / columns);
    parallel_for(available_threads(), count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row = values.data() + r * columns;
        const auto fits = [](float w) { return std::fabs(w) <= kLargestHalf; };
        if (std::all_of(row, row + columns, fits))
          encode_row(type, row, weights.empty() ? nullptr : weights.data(), columns,
                     reinterpret_cast<char*>(blocks.data()) + static_cast<size_t>(r) * row_bytes);
        else
          wrong[static_cast<size_t>(r)] = 1;
      }
    });
    const auto bad = std::find(wrong.begin(), wrong.end(), 1);
    if (bad != wrong.end())
      fail("value", "quantize: row ", first + (bad - wrong.begin()), " of ", shape_text(x->view),
           x->label.empty() ? "" : " " + x->label, " holds a weight that is not finite or above ", kLargestHalf,
           ", which no scale of ", dtype_name(type), " can hold");
    device.backend().upload(static_cast<char*>(result->view.data) + static_cast<size_t>(first) * row_bytes,
                            blocks.data(), static_cast<size_t>(count) * row_bytes);
  }
  return result;
}

}  // namespace qeng
