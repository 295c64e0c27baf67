// The keys, or the values, of a paged cache as PagedAttention's kernels find them: codes, rows, or codes with the rows
// that a query takes exactly.
#pragma once
#include "kernels/cuda/attention/paged_rows.h"
#include "kernels/cuda/pool_slot.h"
#include "kernels/math/blocks/q8_0.h"
#include "kernels/math/kv_codes.h"

namespace qeng {

// Queues the encoding of rows into a pool of codes: keys or values of KvStore.
void store_codes(const View& from, const View& slots, const View& pool, const View& levels, bool values,
                 CudaContext& context);

enum class Stored : uint8_t { f32, bf16, f16, q8_0 };

struct PagedSide {
  int dim;
  const char* codes;  // null: all keys are rows
  const float* levels;
  kv_codes::Shape shape;
  int runs, wide_runs, tile_words;
  uint32_t wide_set, narrow_set;  // the runs of shape.bits + 1 bits and those of shape.bits, a bit each
  const void* rows;               // null: all keys are codes
  Stored stored;
  bool vectors;              // rows begin at whole 16-byte vectors
  const int32_t* row_pages;  // [sequences, most_pages], of row_pool_pages
  int row_pool_pages;

  __device__ int run_bits(int run) const { return shape.bits + (run < wide_runs); }
  __device__ int run_words(int run) const {  // of a tile, where a run's begin
    return kv_codes::kLanes * (run * shape.bits + min(run, wide_runs));
  }
};

// What a kernel of these sides is given.
struct PagedSides {
  const void* q;
  bool q_f32;
  float scale, softcap, inverse_cap;  // scale and softcap times log2(e), and 1 / softcap
  PagedSide keys, values;
  const int32_t* pages;  // of codes
  int exact_first, exact_last;
  PagedOutput out;
  Fault* fault;

  // From which key on an item needs rows beside codes, if its first query sees the keys below `seen`.
  __device__ int recent(int seen) const { return exact_last > 0 ? seen - exact_last : INT32_MAX; }
};
PagedSides paged_sides(const PagedAttention& op, const PagedOutput& out, CudaContext& context);

// Which keys some query of an item takes from the codes of a side, and which from its rows.
struct Sources {
  bool codes, rows;
};
// Of keys [begin, end), of which an item's first query sees those below `seen`, its last those below `last_seen`.
__device__ inline Sources sources_of(const PagedSides& a, const PagedSide& side, int begin, int end, int seen,
                                     int last_seen) {
  if (!side.codes || !side.rows) return {side.codes != nullptr, side.rows != nullptr};
  return {max(begin, a.exact_first) < min(end, last_seen - a.exact_last),
          begin < a.exact_first || end > a.recent(seen)};
}
// Whether a query that sees keys below `seen` takes a key from the rows.
__device__ inline bool from_rows(const PagedSides& a, const PagedSide& side, int key, int seen) {
  if (!side.codes || !side.rows) return side.rows != nullptr;
  return key < a.exact_first || key >= seen - a.exact_last;
}

// The slot of a key in a pool of pages; page 0 stands for one that is not there, which is reported.
__device__ inline int slot_of(const PagedShape& shape, const int32_t* pages, int pool_pages, int sequence, int key,
                              Fault* fault) {
  const auto [index, within] = shape.by_page_tokens.divide(key);
  int page = pages[int64_t{sequence} * shape.most_pages + index];
  if (page < 0 || page >= pool_pages) {
    report(fault, FaultKind::page, sequence, page, pool_pages);
    page = 0;
  }
  return page * shape.page_tokens + within;
}

// Elements [at, at + n) of a matrix of rows. at: a multiple of n, which divides 32.
template <int n>
__device__ void read_rows(const PagedSide& side, int64_t at, float (&x)[n]) {
  const auto plain = [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* from = static_cast<const T*>(side.rows) + at;
    if (side.vectors) {
      unpack(load<n>(from), x);
    } else {
      for (int i = 0; i < n; ++i) x[i] = to_f32(from[i]);
    }
  };
  switch (side.stored) {
    case Stored::f32: return plain(static_cast<float*>(nullptr));
    case Stored::bf16: return plain(static_cast<bf16*>(nullptr));
    case Stored::f16: return plain(static_cast<f16*>(nullptr));
    default: break;
  }
  const blocks::Q8_0& block = static_cast<const blocks::Q8_0*>(side.rows)[at / 32];
  const float d = to_f32(block.d);
  for (int i = 0; i < n; ++i) x[i] = d * static_cast<float>(block.qs[at % 32 + i]);
}

// By tensor cores, for q in bf16. False: the shapes or the alignment do not suit, and nothing was queued.
bool paged_by_tiles(const PagedSides& sides, CudaContext& context);
// For everything, in f32.
void paged_by_rows(const PagedSides& sides, CudaContext& context);

}  // namespace qeng
