// What Table::pointwise runs for Pointwise: instructions for a machine with one accumulator, a block of columns of one
// row, which stays in vector registers from one instruction to the next.
//
// Operands are cells (one value, in kCell floats that are equal), slots (a block) and streams (elements of a row of
// memory, from the frame's column on). Cells and slots lie in the frame's memory. A block is of so many columns as the
// table says; a narrow one, of one vector, is for rows of few columns, and for cells.
#pragma once
#include <cstdint>

#include "kernels/math/fn.h"

namespace qeng::isa {

constexpr int64_t kCell = 16;              // floats: of the widest vector
constexpr int64_t kMostBlock = 8 * kCell;  // columns
constexpr int kMostStreams = 96, kMostAhead = 8;

enum class Action : uint8_t {
  load,        // the accumulator = operand
  apply,       // = fn(accumulator, operand); of one operand: fn(accumulator); where(accumulator, slot or cell, other)
  apply_from,  // = fn(operand, accumulator)
  reduce,      // row function of columns: their part joins kMostBlock floats of memory
  keep,        // slot or f32 stream = accumulator
  put,         // stream = accumulator, rounded; u8: 1 where it is not 0
  put_past,    // the same past the caches: whole blocks in f32 or bf16, 64-byte aligned
  add,         // stream += accumulator
  end,
};
enum class Kind : uint8_t { itself, cell, slot, f32, bf16, f16, i32, i64, u8 };  // from f32 on: streams
constexpr bool is_stream(Kind kind) { return kind >= Kind::f32; }

struct Instruction {
  void (*run[2])() = {};  // of a block, of a narrow one; Table::pointwise_link finds them
  Action action = Action::end;
  Fn fn = Fn::input;
  Kind kind = Kind::itself, other_kind = Kind::itself;  // of where: its second and third operand
  int32_t at = 0, other = 0;                            // in the memory, or the number of the stream
};

// Memory that will be read or written soon, column by column as a stream, for the caches to fetch.
struct Ahead {
  const char* first = nullptr;  // where column 0 lies
  int size = 0;                 // of an element
};

struct Frame {
  float* memory = nullptr;
  char* stream[kMostStreams] = {};  // where column 0 lies
  int64_t column = 0;               // of the block's first
  int64_t count = 0;                // columns of the block that there are; row functions leave out the others
  Ahead ahead[kMostAhead];
  int aheads = 0;
};

}  // namespace qeng::isa
