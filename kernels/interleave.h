// Matrices whose rows lie interleaved by 32 (kernels/math/blocks/interleaved.h), which the CPU reads faster: the same
// numbers and bytes in another order. What reads by rows gets them through restore_blocks.
#pragma once
#include "kernels/math/blocks/interleaved.h"
#include "kernels/view.h"

namespace qeng {

// Whether w's rows may lie so: of a matrix of whole groups of rows, of a format that gains by it.
inline bool can_interleave(const View& w) {
  return (w.dtype == DType::tq2_0 || w.dtype == DType::q6_k) && w.rank == 2 && w.shape[0] % kInterleavedRows == 0;
}

// Interleaves w's rows in place, which can_interleave() and lie in order; gives the view to use.
View interleave(const View& w, int threads);

// Blocks first .. first + count of row r, as the format has them. w: interleaved.
void restore_blocks(const View& w, int64_t r, int64_t first, int64_t count, void* blocks);

// All of w, its rows in order, into w.bytes() of memory elsewhere. w: interleaved.
View restore(const View& w, void* memory);

}  // namespace qeng
