#include "engine/quantize/binarize.h"

#include <cmath>
#include <cstring>

#include "kernels/blocks.h"
#include "kernels/parallel.h"
#include "kernels/view_text.h"

namespace qeng {

RowScaled binarize(const TensorPtr& w, const std::string& account) {
  const View& view = w->view;
  if (view.dtype != DType::f32 && view.dtype != DType::bf16 && view.dtype != DType::f16)
    fail("dtype", "binarize: the weights are ", shape_text(view), ", expected f32, bf16 or f16");
  if (view.rank != 2 || view.shape[1] % 32 != 0)
    fail("shape", "binarize: the weights are ", shape_text(view), ", expected rows of a multiple of 32");
  const int64_t rows = view.shape[0], columns = view.shape[1];
  const std::vector<float> values = to_host_f32(*w);
  const size_t row_bytes = dtype_bytes(DType::one_bit, columns);
  std::vector<char> bits(static_cast<size_t>(rows) * row_bytes);
  std::vector<float> scales(static_cast<size_t>(rows));
  parallel_for(available_threads(), rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = values.data() + r * columns;
      double sum = 0;
      for (int64_t j = 0; j < columns; ++j) sum += std::fabs(row[j]);
      scales[static_cast<size_t>(r)] = static_cast<float>(sum / static_cast<double>(columns));
      encode_row(DType::one_bit, row, nullptr, columns, bits.data() + static_cast<size_t>(r) * row_bytes);
    }
  });
  for (size_t r = 0; r < scales.size(); ++r)
    if (!std::isfinite(scales[r])) fail("value", "binarize: row ", r, " of the weights is not finite");
  Device& device = w->device();
  RowScaled result{make_tensor(device, {rows, columns}, DType::one_bit, account),
                   make_tensor(device, {rows}, DType::f32, account)};
  if (rows > 0) {
    device.backend().upload(result.w->view.data, bits.data(), bits.size());
    device.backend().upload(result.scale->view.data, scales.data(), scales.size() * sizeof(float));
  }
  return result;
}

}  // namespace qeng
