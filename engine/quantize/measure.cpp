#include "engine/quantize/measure.h"

#include <algorithm>

#include "kernels/interleave.h"
#include "kernels/parallel.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 24;  // of f32 at a time on the host: 64 MB, twice
constexpr int64_t kRun = 1 << 16;  // elements of a partial sum, so that threads do not change the sum

}  // namespace

void add_column_squares(Tensor& sums, const Tensor& x) {
  const int64_t columns = x.view.columns(), rows = x.view.rows();
  if (sums.view.dtype != DType::f32 || sums.view.elements() != columns || !sums.device().backend().host_memory())
    fail("shape", "add_column_squares: sums are ", shape_text(sums.view), ", expected f32 [", columns, "] on the CPU");
  const std::vector<float> values = to_host_f32(x);
  float* into = sums.view.as<float>();
  parallel_for(available_threads(), columns, 64, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) {
        const double value = values[static_cast<size_t>(r * columns + c)];
        sum += value * value;
      }
      into[c] += static_cast<float>(sum);
    }
  });
}

SquaredError squared_error(const TensorPtr& x, const TensorPtr& y) {
  if (!x->view.same_shape(y->view))
    fail("shape", "squared_error: ", shape_text(x->view), " and ", shape_text(y->view), " differ in shape");
  SquaredError result;
  const int64_t columns = x->view.columns(), rows = x->view.rows();
  const TensorPtr a = reshape_view(x, {rows, columns}), b = reshape_view(y, {rows, columns});
  int64_t piece = std::max<int64_t>(1, kPieceElements / std::max<int64_t>(1, columns));
  if (a->view.interleaved || b->view.interleaved) piece += kInterleavedRows - piece % kInterleavedRows;
  for (int64_t first = 0; first < rows; first += piece) {
    const int64_t count = std::min(piece, rows - first);
    const std::vector<float> p = to_host_f32(*row_range(a, first, count)), q = to_host_f32(*row_range(b, first, count));
    const auto elements = static_cast<int64_t>(p.size()), runs = (elements + kRun - 1) / kRun;
    std::vector<SquaredError> partial(static_cast<size_t>(runs));
    parallel_for(available_threads(), runs, 1, [&](int64_t begin, int64_t end) {
      for (int64_t run = begin; run < end; ++run) {
        SquaredError& sum = partial[static_cast<size_t>(run)];
        for (int64_t i = run * kRun; i < std::min(elements, (run + 1) * kRun); ++i) {
          const double value = p[static_cast<size_t>(i)], difference = value - q[static_cast<size_t>(i)];
          sum.error += difference * difference;
          sum.total += value * value;
        }
      }
    });
    for (const SquaredError& sum : partial) result.error += sum.error, result.total += sum.total;
  }
  return result;
}

}  // namespace qeng
