// Rows of weights as they are stored.
#include "kernels/cpu/cpu.h"
#include "kernels/interleave.h"

namespace qeng {

void decode_row(const View& stored, int64_t r, int64_t first, int64_t count, float* y, const CpuContext& context) {
  if (!stored.interleaved) return context.isa->decode(stored.dtype, row_at(stored, r), first, count, y);
  constexpr int64_t kBlocks = 8, kMostBytes = 256;  // a block of these formats has 66 or 210 bytes
  const int64_t block = dtype_info(stored.dtype).elements;
  alignas(64) char blocks[kBlocks * kMostBytes];
  while (count > 0) {
    const int64_t from = first / block, inside = first % block, n = std::min(count, kBlocks * block - inside);
    restore_blocks(stored, r, from, (inside + n + block - 1) / block, blocks);
    context.isa->decode(stored.dtype, blocks, inside, n, y);
    first += n, count -= n, y += n;
  }
}

void decode_into(const View& stored, int64_t r, int64_t first, int64_t count, DType dtype, void* y,
                 const CpuContext& context) {
  if (dtype == DType::f32) return decode_row(stored, r, first, count, static_cast<float*>(y), context);
  constexpr int64_t kPiece = 1024;  // whole blocks of every format, in the first-level cache
  float values[kPiece];
  const View out(y, dtype, {count});
  for (int64_t i = 0; i < count;) {
    const int64_t n = std::min(count - i, kPiece - (first + i) % kPiece);
    decode_row(stored, r, first + i, n, values, context);
    context.isa->scale(isa::Float::f32, values, float_type(out), at(out, i), 1.0f, n);
    i += n;
  }
}

}  // namespace qeng
