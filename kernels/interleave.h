// Matrices whose rows lie interleaved by 32 (kernels/math/blocks/interleaved.h). Their dtypes bear the plain formats'
// names: the numbers are the same, and what reads by rows gets them through restore_blocks.
#pragma once
#include "kernels/view.h"

namespace qeng {

// The dtype that w would have, or w's own where there is none: of matrices of whole groups of rows.
DType interleaved_dtype(const View& w);

// Interleaves w's rows in place, which is of a dtype that interleaved_dtype turns into another; gives the view to use.
View interleave(const View& w, int threads);

// Blocks first .. first + count of row r, as the plain format has them. w: of an interleaved dtype.
void restore_blocks(const View& w, int64_t r, int64_t first, int64_t count, void* blocks);

// All of w as the plain format has it, into w.bytes() of memory elsewhere.
View restore(const View& w, void* memory);

}  // namespace qeng
