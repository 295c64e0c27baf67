// PagedAttention by tensor cores, for q in bf16 over codes. A block takes a piece of 256 keys at once, so its softmax knows
// all scores: a warp makes the scores of its own 64 keys, then sums some runs of all values. Products are transposed, keys
// and dimensions of values being rows of A, so that codes become fragments where they are: a table in shared memory turns
// some of them into levels at once (code_tables.h), a key's scale multiplies the score, a value's the probability.
//
// Levels of keys and their queries are f16, the queries times a power of two of each row; levels of values and their
// probabilities bf16. Keys that are rows are two bf16 each, values that are rows one.
//
// What a byte of codes costs in instructions decides how fast this decodes (tests/gpu/instructions.py). So the first warp
// alone finds a piece, copies follow each other without conditions but at the ends of a sequence, and what few pieces need
// (rows, masks, a softcap) stands behind one branch.
#include <algorithm>

#include "kernels/cuda/attention/tile_items.h"
#include "kernels/cuda/attention/tile_rows.h"

namespace qeng {

namespace {

using namespace tiles;

template <class F>
__global__ void __launch_bounds__(kThreads, 2) paged_tiles_kernel(PagedSides a, CodeTables layout) {
  if (!ptx::from_sm80()) return;
  ptx::begin_ahead();
  char* tables = shared_memory();
  Worker<F> worker(a, layout, *reinterpret_cast<Shared<F>*>(tables + layout.bytes()));
  const Task& task = worker.s.task;
  bool filled = false;
  Sums<F> all;
  while (worker.next_piece()) {
    if (!a.out.partial && task.begins) all.clear();
    if (task.item.pieces > 0) {
      worker.begin_piece();
      if (!filled) {
#pragma unroll 1
        for (int side = 0; side < 2; ++side) {  // keys and values
          const PagedSide& codes = side ? a.values : a.keys;
          if (codes.codes) fill_tables<kThreads>(tables, layout, codes.shape, codes.levels, side);
        }
        filled = true;
      }
      if (task.begins) worker.begin_turn();
      Sums<F> sums;
      sums.clear();
      worker.attend(sums);
      if (a.out.partial) {
        worker.put_partial(sums);
        continue;
      }
      worker.merge(sums, all);
    }
    if (!a.out.partial && task.piece + 1 >= task.pieces_end) worker.write(all);
  }
}

template <int runs>
bool launch_tiles(const PagedSides& sides, const CodeTables& layout, CudaContext& context) {
  const PagedShape& shape = sides.out.shape;
  const int64_t most_items = int64_t{shape.most_tiles} * shape.most_pieces * shape.columns;
  const auto launch_with = [&](auto form) {
    using F = decltype(form);
    const size_t shared = static_cast<size_t>(layout.bytes()) + sizeof(Shared<F>);
    if (shared > context.shared_limit) return false;
    QENG_LAUNCH_AHEAD(context, paged_tiles_kernel<F>, plan_blocks(most_items, context), dim3(kThreads), shared, sides,
                      layout);
    return true;
  };
  // In decoding the queries of a head are few.
  const int rows = shape.tokens <= shape.sequences ? shape.tile_heads : shape.tile_heads * shape.tile_queries;
  constexpr int kPart = runs <= 4 ? kPieceTiles / 2 : kPieceTiles / 4;
  constexpr int kMost = runs <= 4 ? kPieceTiles : kPart, kLeast = runs <= 2 ? kMost : kPart;  // as memory allows
  return (rows > 8 && launch_with(Form<runs, 2, kPart>())) || launch_with(Form<runs, 1, kMost>()) ||
         (kLeast < kMost && launch_with(Form<runs, 1, kLeast>()));
}

}  // namespace

bool paged_by_tiles(const PagedSides& sides, CudaContext& context) {
  const PagedShape& shape = sides.out.shape;
  if (!context.tensor_bf16() || sides.q_f32 || shape.page_tokens % kTileKeys != 0 || shape.dim % kv_codes::kRun != 0 ||
      shape.value_dim % kv_codes::kRun != 0 || !aligned(sides.q, 16) || !aligned(sides.keys.codes, 16) ||
      !aligned(sides.values.codes, 16))
    return false;
  CodeTables layout{};
  for (const PagedSide* side : {&sides.keys, &sides.values})
    if (side->codes) layout.add(side->shape);
  const int widest = std::max(shape.dim, shape.value_dim);
  return widest <= 64    ? launch_tiles<2>(sides, layout, context)
         : widest <= 128 ? launch_tiles<4>(sides, layout, context)
                         : launch_tiles<8>(sides, layout, context);
}

}  // namespace qeng
