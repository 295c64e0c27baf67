// Rows of weights as they are stored.
#include "kernels/cpu/cpu.h"

namespace qeng {

void decode_into(const View& stored, int64_t r, int64_t first, int64_t count, DType dtype, void* y,
                 const CpuContext& context) {
  const char* row = row_at(stored, r);
  if (dtype == DType::f32) return context.isa->decode(stored.dtype, row, first, count, static_cast<float*>(y));
  constexpr int64_t kPiece = 1024;  // whole blocks of every format, in the first-level cache
  float values[kPiece];
  const View out(y, dtype, {count});
  for (int64_t i = 0; i < count;) {
    const int64_t n = std::min(count - i, kPiece - (first + i) % kPiece);
    context.isa->decode(stored.dtype, row, first + i, n, values);
    context.isa->scale(isa::Float::f32, values, float_type(out), at(out, i), 1.0f, n);
    i += n;
  }
}

}  // namespace qeng
