#include "engine/train/counter_levels.h"

namespace qeng {

std::vector<int64_t> counter_levels(const Tensor& state) {
  Device& device = state.device();
  TensorPtr counts = make_tensor(device, {16}, DType::i64, "workspace");
  std::vector<int64_t> levels(16);
  write_bytes(*counts, levels.data());
  device.run(CountLevels{state.view, counts->view});
  read_bytes(*counts, levels.data());
  levels.resize(state.view.dtype == DType::one_bit ? size_t{1} << state.view.shape[0] : 16);
  return levels;
}

}  // namespace qeng
