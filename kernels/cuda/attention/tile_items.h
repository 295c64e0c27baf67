// How the first warp of a block of paged_tiles.cu (tile_worker.h) goes on: to the next piece of an item, the next turn of
// its rows, or the next item of the plan; and where the keys of a piece are. The others read it behind a barrier.
#pragma once
#include "kernels/cuda/attention/tile_worker.h"

namespace qeng::tiles {

template <class F>
__device__ void Worker<F>::advance() {
  Task& task = s.task;
  int turn_now = task.turn, piece = task.piece + 1;
  const int pieces_end = task.pieces_end, rows = task.rows;
  __syncwarp();  // all have read what one lane writes below
  bool begins = false;
  if (piece >= pieces_end) {
    begins = true, turn_now += F::kRows;
    if (turn_now >= rows) {
      const int next = uniform(lane == 0 ? take_item(a.out.plan, a.out.shape.columns) : 0);
      if (lane == 0) task.number = next;
      if (next >= items) return;
      describe(next);
      __syncwarp();
      turn_now = 0;
    }
    piece = task.item.piece;
  }
  __syncwarp();
  if (lane == 0) task.turn = turn_now, task.piece = piece, task.begins = begins;
  if (task.item.pieces > 0) find_piece(piece);  // rows past the last sequence have none
}

// What all need of an item: in Shared::task.
template <class F>
__device__ void Worker<F>::describe(int next) {
  const PagedShape& shape = a.out.shape;
  const auto [number, column] = shape.by_columns.divide(next);
  const auto [kv_head, block] = shape.by_head_blocks.divide(column);
  const PagedItem item = a.out.plan->list()[number];
  const int head_block = block * shape.tile_heads;
  const int heads = min(shape.tile_heads, shape.group - head_block);
  if (lane == 0) {
    s.task.partial = next * kTileRows * partial_row(shape.value_dim);
    s.task.kv_head = kv_head, s.task.rows = item.queries * heads, s.task.end = item.seen + item.queries - 1;
    s.task.lowest = shape.window > 0 ? max(0, item.seen - shape.window) : 0;
    s.task.pieces_end = item.piece + item.pieces, s.task.recent = a.recent(item.seen), s.task.item = item;
  }
  if (lane < kTileRows) {
    const int query = item.queries == 1 ? 0 : lane / heads,
              head = kv_head * shape.group + head_block + lane - query * heads;
    s.task.places[lane] = int64_t{item.first + query} * shape.heads + head;
    s.task.heads[lane] = head, s.task.seen[lane] = item.seen + query;
  }
}

// Looks up where the keys of a piece are: in Shared::needs, code_tiles and slots of rows.
template <class F>
__device__ void Worker<F>::find_piece(int piece) {
  const Task& task = s.task;
  const int window = a.out.shape.window, piece_first = piece * kPieceKeys,
            piece_last = min(piece_first + kPieceKeys, task.end);
  const int tile = lane % kPieceTiles, begin = piece_first + tile * kTileKeys;
  Sources keys{}, values{};
  bool edge = false;
  if (a.keys.codes && a.values.codes && piece_first >= max(a.exact_first, task.lowest) &&
      piece_first + kPieceKeys <= min(task.item.seen, task.recent) &&
      (window == 0 || piece_first >= task.end - window)) {  // in the middle of a sequence
    keys.codes = values.codes = true;
  } else {
    const int stop = min(begin + kTileKeys, piece_last);
    if (begin < piece_last && stop > task.lowest) {
      keys = sources_of(a, a.keys, begin, stop, task.item.seen, task.end);
      values = sources_of(a, a.values, begin, stop, task.item.seen, task.end);
    }
    edge = begin + kTileKeys > min(task.item.seen, piece_last) || (window > 0 && begin < task.end - window);
  }
  const auto find = [&](const int32_t* pages, int pool_pages) {
    return slot_of(a.out.shape, pages, pool_pages, task.item.sequence, begin, a.fault);
  };
  if (lane < kPieceTiles) {
    if (keys.codes || values.codes)
      s.code_tiles[tile] = static_cast<uint32_t>(place_of(find(a.pages, a.out.shape.pool_pages) / kTileKeys));
    if (keys.rows) s.key_slots[tile] = find(a.keys.row_pages, a.keys.row_pool_pages);
    if (values.rows) s.value_slots[tile] = find(a.values.row_pages, a.values.row_pool_pages);
  }
  Needs found{of_tiles(keys.codes, values.codes), of_tiles(keys.rows, values.rows), of_tiles(edge, false), 0};
  found.care = scaled_late() ? found.rows | found.rows >> kPieceTiles | found.edges : kEveryTile;
  if (lane == 0) s.needs = found;
}

}  // namespace qeng::tiles
