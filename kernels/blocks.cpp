#include "kernels/blocks.h"

#include <algorithm>

#include "kernels/cpu/isa/table.h"
#include "kernels/error.h"
#include "kernels/math/blocks/with_block.h"

namespace qeng {

namespace {

template <class T>
void convert_row(const void* row, int64_t first, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = to_f32(static_cast<const T*>(row)[first + i]);
}

void check_block(DType dtype) {
  if (!is_block(dtype)) fail("dtype", dtype_name(dtype), " is no block format");
}

}  // namespace

void decode_row(DType dtype, const void* row, int64_t first, int64_t count, float* out) {
  switch (dtype) {
    case DType::f32: return convert_row<float>(row, first, count, out);
    case DType::bf16: return convert_row<bf16>(row, first, count, out);
    case DType::f16: return convert_row<f16>(row, first, count, out);
    default: check_block(dtype);
  }
  blocks::with_block(dtype, [&](auto tag) {
    using Block = decltype(tag);
    static_assert(Block::kElements % Block::kGroup == 0);
    for (int64_t done = 0; done < count;) {
      const int64_t i = first + done, inside = i % Block::kElements;
      const int64_t n = std::min(count - done, Block::kElements - inside);
      decode(static_cast<const Block*>(row)[i / Block::kElements], static_cast<int>(inside), static_cast<int>(n),
             out + done);
      done += n;
    }
  });
}

void encode_row(DType dtype, const float* x, const float* importance, int64_t count, void* row) {
  check_block(dtype);
  if (is_read_only(dtype)) fail("dtype", dtype_name(dtype), " is read, not written");
  isa::best().encode(dtype, x, importance, count, row);
}

int64_t count_bits(const void* a, const void* b, int64_t bytes) { return isa::best().count_bits(a, b, bytes); }

}  // namespace qeng
