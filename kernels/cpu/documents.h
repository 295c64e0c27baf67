// Documents that lie end to end in rows: their boundaries cu [documents + 1] i32.
#pragma once
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {

// The boundaries are data: they must rise from 0 and stay within the rows.
inline void check_boundaries(const char* op, const char* label, const View& cu, int64_t rows) {
  const int32_t* bounds = cu.as<int32_t>();
  for (int64_t i = 0; i < cu.elements(); ++i)
    if (bounds[i] < (i ? bounds[i - 1] : 0) || bounds[i] > rows || bounds[0] != 0)
      fail("value", op, ": ", label, "[", i, "] is ", bounds[i], "; expected ascending from 0 to at most ", rows);
}

// Zeros in the rows from the given one on, which are past the last document.
inline void clear_rows(const View& view, int64_t from) {
  const int64_t width = view.rows() ? view.elements() / view.shape[0] : 0;
  if (from < view.shape[0])
    std::memset(at(view, from * width), 0,
                static_cast<size_t>((view.shape[0] - from) * width) * dtype_size(view.dtype));
}

// The pages of sequences, as an operation in inference has them (GatedDelta, CausalConv).
struct PageTable {
  const int32_t *cu, *lengths, *pages;
  int64_t most, page_tokens;
  template <class AnyOp>
  explicit PageTable(const AnyOp& op)
      : cu(op.cu.template as<int32_t>()),
        lengths(op.lengths.template as<int32_t>()),
        pages(op.pages.template as<int32_t>()),
        most(op.pages ? op.pages.shape[1] : 0),
        page_tokens(op.page_tokens) {}
  // How many rows sequence s has before these, and the page of its row at a position.
  int64_t begun(int64_t s) const { return lengths[s] - (cu[s + 1] - cu[s]); }
  int64_t page(int64_t s, int64_t position) const { return pages[s * most + position / page_tokens]; }

  // Checks what a step needs, which reads `back` rows before its own: Error("value").
  void check(const char* op, int64_t documents, int64_t count, int64_t back) const {
    for (int64_t s = 0; s < documents; ++s) {
      const int64_t rows = cu[s + 1] - cu[s];
      if (rows == 0) continue;
      if (begun(s) < 0 || lengths[s] > most * page_tokens)
        fail("value", op, ": lengths[", s, "] is ", lengths[s], "; expected at least the ", rows,
             " rows and at most the ", most * page_tokens, " of ", most, " pages");
      for (int64_t i = std::max<int64_t>(begun(s) - back, 0) / page_tokens; i * page_tokens < lengths[s]; ++i)
        if (const int32_t page = pages[s * most + i]; page < 0 || page >= count)
          fail("value", op, ": page ", page, " of document ", s, " is outside the ", count, " pages");
    }
  }
};

}  // namespace qeng
