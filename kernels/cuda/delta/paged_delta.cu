// GatedDelta in inference. Sequences that have one row more, as most have, are a kernel's of their own.
#include "kernels/cuda/delta/delta_pages.h"

namespace qeng {
namespace {

constexpr int kThreads = 128;

// Leaves the keys and the sums of g of new rows in the pages, but for those of chunks that later ones replace: when no
// block needs those of the chunk before any more.
template <class T>
__global__ void __launch_bounds__(kThreads) keep_keys(const Delta<T> op, const DeltaPages pages) {
  const int key_head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const DeltaSequence sequence(op, pages, static_cast<int>(blockIdx.y));
  if (sequence.lone()) return;
  for (int64_t position = sequence.begun, next; position < sequence.length; position = next) {
    next = min(sequence.length, (position / kChunk + 1) * kChunk);
    if (sequence.replaced(pages, next - 1)) continue;
    const int64_t page = sequence.page(op, pages, position), row = sequence.row - sequence.begun;
    if (page < 0) return;
    const DeltaPage kept(op, pages, page, key_head * op.group);
    for (int64_t i = position + thread / kWarp; i < next; i += kThreads / kWarp) {
      if (sequence.replaced(pages, i)) continue;
      const T* k = op.k(row + i, key_head);
      const float inverse = inverse_norm(k, op.dim, op.eps);
      for (int d = thread % kWarp; d < op.dim; d += kWarp)
        kept.keys[d * kChunk + i % kChunk] = normalised(k[d], inverse);
    }
    for (int value = thread; value < op.group; value += kThreads) {
      float* sums = DeltaPage(op, pages, page, key_head * op.group + value).sums;
      float sum = position % kChunk > 0 ? sums[position % kChunk - 1] : 0.0f;
      for (int64_t i = position; i < next; ++i) {
        sum += op.g[(row + i) * op.value_heads + key_head * op.group + value];
        if (!sequence.replaced(pages, i)) sums[i % kChunk] = sum;
      }
    }
  }
}

}  // namespace

template <class T>
void run_paged_delta(const GatedDelta& op, const Delta<T>& delta, CudaContext& context) {
  const DeltaPages pages{.state = op.state.as<float>(),
                         .rows = op.rows.as<float>(),
                         .pages = op.pages.as<int32_t>(),
                         .lengths = op.lengths.as<int32_t>(),
                         .most = op.pages.shape[1],
                         .count = op.state.shape[0],
                         .page_tokens = op.page_tokens,
                         .state_floats = op.shape.state(),
                         .rows_floats = op.shape.rows(),
                         .vectors = aligned(op.state.data, 16) && aligned(op.rows.data, 16)};
  run_paged_row(delta, pages, op.o.as<T>(), context);
  run_paged_chunks(delta, pages, op.o.as<T>(), context);
  QENG_LAUNCH(context, keep_keys<T>,
              dim3(static_cast<unsigned>(delta.key_heads), static_cast<unsigned>(delta.documents)), dim3(kThreads), 0,
              delta, pages);
}
template void run_paged_delta(const GatedDelta&, const Delta<float>&, CudaContext&);
template void run_paged_delta(const GatedDelta&, const Delta<bf16>&, CudaContext&);

}  // namespace qeng
