// A Pointwise as the machine of kernels/cpu/isa/pointwise.h runs it, row by row. A phase ends where a row function has
// seen all columns: what needs its value comes later. What is the same in all of a row is computed once for it.
#pragma once
#include <vector>

#include "kernels/cpu/isa/pointwise.h"
#include "kernels/cpu/isa/table.h"
#include "kernels/ops.h"
#include "kernels/pointwise.h"

namespace qeng {

struct PointwiseProgram {
  // In a frame's memory: what there is of the row so far, and its value. Of folded rows: streams, of the operand and of
  // the values.
  struct Reduction {
    Fn fn;
    int32_t parts, cell;
  };
  struct Phase {
    std::vector<isa::Instruction> of_row, of_columns;  // first those on cells, as on a block of one column
    std::vector<Reduction> reductions;
    std::vector<uint8_t> reads, writes;  // streams: inputs, outputs
    bool updates = false;                // outputs are read too
    std::vector<uint8_t> ahead;          // those of them that no phase before has
  };
  struct Cell {
    size_t number;  // of an input or an output
    int32_t at;
  };
  std::vector<Phase> phases;
  std::vector<Cell> row_inputs, row_outputs;  // whose views have one element a row
  std::vector<Cell> kept_outputs;             // of folded rows, by stream: one element a row, or sums over rows
  std::vector<std::pair<int32_t, float>> constants;
  // Streams: the inputs, the outputs, then rows of f32 that one phase keeps for later ones, of whole blocks.
  int kept = 0;
  int32_t floats = 0;  // of a frame's memory
};

struct PointwiseWays {
  bool keeps;  // rows may be kept; otherwise each phase computes anew what it needs
  bool past;   // outputs are written past the caches where they can be
  // Short rows lie end to end as one. Then what is the same in all of a row is computed for each element, row functions
  // give streams, and inputs that are not dense are streams of f32 that have been filled.
  bool folded;
};
PointwiseProgram program_of(const Pointwise& op, const PointwiseSpace& space, PointwiseWays ways,
                            const isa::Table& isa);

}  // namespace qeng
