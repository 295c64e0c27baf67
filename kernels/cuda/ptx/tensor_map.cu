// Descriptions of tensors for TMA. The driver makes them on the host; we fetch its function through the runtime, as
// nothing links against the driver's library.
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx/tensor_map.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {

static_assert(kPanelColumns * 2 == 128, "the box's inner extent is the span of the 128-byte swizzle");

bool fits_tensor_map(const View& view) {
  constexpr int64_t kMostElements = int64_t{1} << 32, kMostStride = int64_t{1} << 40;
  if (view.dtype != DType::bf16 || view.rank != 3 || view.elements() == 0 || !aligned(view.data, 16)) return false;
  for (int i = 0; i < 3; ++i)
    if (view.shape[i] > kMostElements) return false;
  const int64_t head_stride = view.shape[2] * 2, row_stride = view.shape[1] * head_stride;
  return head_stride % 16 == 0 && row_stride < kMostStride;
}

#ifndef QENG_EMULATED
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encode_function() {
  static const Encode function = [] {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &pointer, 12000, cudaEnableDefault, &found),
               "look up cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess || !pointer)
      fail("cuda",
           "the driver has no cuTensorMapEncodeTiled: it is older than CUDA 12; update it, or set "
           "QENG_ATTENTION=mma");
    return reinterpret_cast<Encode>(pointer);
  }();
  return function;
}

}  // namespace
#endif

TensorMap panel_map(const View& view, int rows, int heads) {
  if (!fits_tensor_map(view) || rows < 1 || heads < 1 || int64_t{rows} * heads > 256)
    fail("cuda", "TMA cannot read ", shape_text(view), " in boxes of ", rows, " rows of ", heads,
         " heads: expected bf16 [tokens, heads, ",
         "head_dim] at a multiple of 16 bytes, head_dim a multiple of 8, 1 to 256 rows");
  const int64_t head_stride = view.shape[2] * 2, row_stride = view.shape[1] * head_stride;
#ifdef QENG_EMULATED
  return {static_cast<const char*>(view.data),
          view.shape[2],
          view.shape[1],
          view.shape[0],
          head_stride,
          row_stride,
          kPanelColumns,
          heads,
          rows};
#else
  TensorMap map;
  const cuuint64_t extents[3] = {static_cast<cuuint64_t>(view.shape[2]), static_cast<cuuint64_t>(view.shape[1]),
                                 static_cast<cuuint64_t>(view.shape[0])};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(head_stride), static_cast<cuuint64_t>(row_stride)};
  const cuuint32_t box[3] = {kPanelColumns, static_cast<cuuint32_t>(heads), static_cast<cuuint32_t>(rows)},
                   steps[3] = {1, 1, 1};
  const CUresult result = encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, view.data, extents, strides, box,
                                            steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail("cuda", "cuTensorMapEncodeTiled refused ", shape_text(view), " in boxes of ", rows, " rows: error ",
         static_cast<int>(result));
  return map;
#endif
}

}  // namespace qeng
