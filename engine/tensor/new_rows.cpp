#include <algorithm>

#include "engine/tensor/tensor.h"
#include "kernels/view_text.h"

namespace qeng {

TensorPtr with_new_rows(const TensorPtr& w, int64_t first, int64_t count, DType dtype, const std::string& account) {
  if (w->view.rank != 2 || first < 1 || first > w->view.shape[0] || count < 1)
    fail("value", "new_rows: w is ", shape_text(w->view), ", new rows are ", count, " from row ", first, " on");
  if (dtype != DType::f32 && dtype != DType::bf16)
    fail("dtype", "new_rows: dtype is ", dtype_name(dtype), ", expected f32 or bf16");
  const int64_t rows = w->view.shape[0], n = w->view.shape[1];
  const TensorPtr result = make_tensor(w->device(), {std::max(rows, first + count), n}, dtype, account);
  copy_into(*row_range(result, 0, rows), *w);

  constexpr int64_t kStep = 4096;  // rows on the host at a time
  std::vector<double> mean(static_cast<size_t>(n));
  for (int64_t at = 0; at < first; at += kStep) {
    const int64_t step = std::min(kStep, first - at);
    const std::vector<float> values = to_host_f32(*row_range(result, at, step));
    for (size_t i = 0; i < values.size(); ++i) mean[i % mean.size()] += values[i];
  }
  std::vector<double> fresh;
  for (double& value : mean) value /= static_cast<double>(first);
  for (int64_t i = 0; i < count; ++i) fresh.insert(fresh.end(), mean.begin(), mean.end());
  from_host(*row_range(result, first, count), fresh.data(), fresh.size());
  return result;
}

}  // namespace qeng
