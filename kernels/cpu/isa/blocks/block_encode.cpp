// Rows of f32 to block formats: the encoders of kernels/math/blocks, whose fits are made of vectors. This file is
// compiled without fused products (CMakeLists.txt), so that the blocks do not depend on the instruction set.
#include "kernels/cpu/isa/table.h"
#include "kernels/math/blocks/with_block.h"

namespace qeng::isa::QENG_ISA {
namespace {

void encode_row(DType dtype, const float* x, const float* importance, int64_t count, void* row) {
  blocks::with_block(dtype, [=](auto tag) {
    using Block = decltype(tag);
    if constexpr (requires(Block & b) { blocks::encode(x, importance, b); }) {
      auto* out = static_cast<Block*>(row);
      for (int64_t i = 0; i < count; i += Block::kElements)
        blocks::encode(x + i, importance ? importance + i : nullptr, *out++);
    } else {
      __builtin_trap();  // is_read_only
    }
  });
}

}  // namespace

void fill_block_encode(Table& table) { table.encode = encode_row; }

}  // namespace qeng::isa::QENG_ISA
