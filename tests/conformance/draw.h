// Draws random operands for one op. The memory is the Draw's; each tensor has guard bytes on both sides, so that a
// write past its end is found on any backend. Same seed, same draws, whatever the standard library.
#pragma once
#include <deque>
#include <functional>
#include <initializer_list>
#include <random>
#include <vector>

#include "tests/conformance/sheet.h"

namespace qeng::conformance {

constexpr size_t kGuard = 64;  // bytes before and after each tensor; keeps the 64-byte alignment of allocations
constexpr unsigned char kPoison = 0xff;  // what guards and outputs hold before an op runs: a NaN in every float dtype

struct Buffer {
  std::vector<unsigned char> bytes;  // guard, tensor, guard
  size_t front = kGuard;             // bytes of the first guard
  void* tensor() { return bytes.data() + front; }
};

struct Documents {
  View cu_q, cu_k;
  int64_t queries = 0, keys = 0;
};

class Draw {
 public:
  explicit Draw(uint64_t seed) : engine_(seed) {}

  int64_t integer(int64_t low, int64_t high);  // low .. high, both included
  double uniform(double low, double high);
  double normal();
  bool flip() { return integer(0, 1) == 1; }
  template <class T>
  T pick(std::initializer_list<T> choices) {
    return choices.begin()[integer(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  // From now on tensors start where their dtype allows, instead of at multiples of 64 bytes.
  void misalign() { misaligned_ = true; }
  // A quarter of the draws where tensors start anywhere: a device that moves 16 bytes at a time cannot there.
  void sometimes_misalign() {
    if (integer(0, 3) == 0) misalign();
  }
  DType float_dtype() { return pick({DType::f32, DType::bf16}); }
  // A dimension: often tiny, sometimes just off a power of two, at most `most`.
  int64_t size(int64_t most);
  // The length of a row: any, or whole vectors of 16 bytes, and then up to eight times as long.
  int64_t columns(int64_t most) { return integer(0, 2) ? size(most) : 8 * size(most); }

  View empty(DType dtype, std::initializer_list<int64_t> shape);  // poisoned: for outputs
  // Of a block format: random codes, with scales that give about that deviation; the last dimension is whole blocks.
  View tensor(DType dtype, std::initializer_list<int64_t> shape, double deviation = 1, double mean = 0);
  DType block_format();
  DType stored_dtype(DType arithmetic);  // mostly a block format; f16, or bf16 where that is not the arithmetic's own
  // A length of rows of the dtype: as size(), but whole blocks, up to `most` or one block.
  int64_t row_length(DType dtype, int64_t most);
  View values(DType dtype, std::vector<double> list);
  View tokens(int64_t count, int64_t below);
  View rng();                   // [2] i64: a seed and a step
  View like(const View& view);  // another tensor of that shape and dtype, normal
  View empty_like(const View& view) { return resized(view, view.dtype); }
  View resized(const View& view, DType dtype);  // that shape, another dtype, poisoned
  // Documents, some of them empty, and a number of rows past the last one on both sides.
  Documents documents(int64_t most_documents, int64_t most_tokens);
  Documents documents(int64_t most_documents, std::initializer_list<int64_t> lengths);
  Documents documents(int64_t most_documents, const std::function<int64_t()>& length);

  std::deque<Buffer>& buffers() { return buffers_; }

 private:
  void fill_blocks(const View& view, double deviation);
  std::mt19937_64 engine_;
  std::deque<Buffer> buffers_;
  bool misaligned_ = false;
};

}  // namespace qeng::conformance
