// KvStore's pools of codes: a warp encodes a row, a lane every 32nd dimension, and writes its bits into the tile. The
// words of a tile of values are shared by its 16 slots, whose rows may be stored at the same time, so bits are set by
// atomics; no two rows have a bit in common.
#include "kernels/cuda/attention/paged_sides.h"
#include "kernels/error.h"
#include "kernels/kv_pools.h"
#include "kernels/view_text.h"

namespace qeng {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarp;

struct StoringCodes {
  const void* from;
  const float* levels;
  const int32_t* slots;
  char* pool;
  int64_t rows, pool_slots;  // rows: tokens times heads
  int heads;
  kv_codes::Shape shape;
  bool values, aligned;  // aligned: the pool's tiles begin at whole words
  Fault* fault;
};

// Bits [first, first + count) of the memory from `base` on become `bits`. A pool that is not aligned is a string of bits
// in words all the same.
__device__ inline void put_bits(char* base, int64_t first, int count, uint32_t bits) {
  const auto address = reinterpret_cast<uintptr_t>(base);
  first += static_cast<int64_t>(8 * (address % 4));
  unsigned* word = reinterpret_cast<unsigned*>(address / 4 * 4) + first / 32;
  const int shift = static_cast<int>(first % 32);
  const uint64_t mask = ((uint64_t{1} << count) - 1) << shift, value = static_cast<uint64_t>(bits) << shift;
  atomicAnd(word, ~static_cast<unsigned>(mask));
  atomicOr(word, static_cast<unsigned>(value));
  if (shift + count <= 32) return;
  atomicAnd(word + 1, ~static_cast<unsigned>(mask >> 32));
  atomicOr(word + 1, static_cast<unsigned>(value >> 32));
}

// The words of a key's lane of a run: lane i of the warp has code i.
__device__ inline void put_key(const StoringCodes& s, char* tile, int run, int slot, uint32_t code) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, bits = kv_codes::bits_of(s.shape, run);
  for (int w = 0; w < bits; ++w) {
    const int shift = lane * bits - 32 * w;  // of the code in this word, which may hold a part of it
    uint32_t word = shift > -32 && shift < 32 ? (shift < 0 ? code >> -shift : code << shift) : 0;
    for (int distance = 1; distance < kWarp; distance *= 2) word |= __shfl_xor_sync(kAllLanes, word, distance);
    if (lane != w) continue;
    const int64_t place = kv_codes::words_before(s.shape, run) + kv_codes::kLanes * w + slot;
    if (s.aligned)
      reinterpret_cast<uint32_t*>(tile)[place] = word;
    else
      put_bits(tile, 32 * place, 32, word);
  }
}
__device__ inline void put_value(const StoringCodes& s, char* tile, int run, int slot, uint32_t code) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, bits = kv_codes::bits_of(s.shape, run);
  const kv_codes::Place place = kv_codes::value_place(slot, lane);
  const int first = place.position * bits, left = min(bits, 32 - first % 32);  // bits in the first of its words
  const int64_t word = kv_codes::words_before(s.shape, run) + kv_codes::kLanes * (first / 32) + place.lane;
  put_bits(tile, 32 * word + first % 32, left, code & ((1u << left) - 1));
  if (left < bits) put_bits(tile, 32 * (word + kv_codes::kLanes), bits - left, code >> left);
}

template <class T>
__global__ void __launch_bounds__(kThreads) store_codes_kernel(StoringCodes s) {
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (row >= s.rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, runs = s.shape.dim / kv_codes::kRun;
  const int64_t token = row / s.heads, head = row % s.heads;
  const int64_t slot = pool_slot(s.slots, token, s.pool_slots, head == 0 && lane == 0, s.fault);
  if (slot < 0) return;
  const T* x = static_cast<const T*>(s.from) + row * s.shape.dim;
  double squares = 0;
  for (int run = 0; run < runs; ++run) {
    const double value = static_cast<double>(to_f32(x[run * kv_codes::kRun + lane]));
    squares += value * value;
  }
  const float length = static_cast<float>(sqrt(warp_sum(squares)));
  const float factor = length > 0 ? __fdiv_rn(__fsqrt_rn(static_cast<float>(s.shape.dim)), length) : 0.0f;
  char* tile = s.pool + (slot / kv_codes::kLanes * s.heads + head) * kv_codes::tile_bytes(s.shape);
  const int place = static_cast<int>(slot % kv_codes::kLanes);
  double of_levels = 0;
  for (int run = 0; run < runs; ++run) {
    const bool wide = run * kv_codes::kRun < s.shape.wide;
    const float* levels = s.levels + (wide ? 1 << s.shape.bits : 0);
    const float y = __fmul_rn(to_f32(x[run * kv_codes::kRun + lane]), factor);
    const uint32_t code = length > 0 ? kv_codes::nearest(y, levels, 1 << kv_codes::bits_of(s.shape, run)) : 0;
    of_levels += static_cast<double>(levels[code]) * static_cast<double>(levels[code]);
    if (s.values)
      put_value(s, tile, run, place, code);
    else
      put_key(s, tile, run, place, code);
  }
  const double scale = length > 0 ? static_cast<double>(length) / sqrt(warp_sum(of_levels)) : 0;
  const uint16_t bits = to_f16(static_cast<float>(scale)).bits;
  if (lane < 2)  // a byte each, as the pool may not be aligned
    tile[4 * kv_codes::tile_words(s.shape) + 2 * place + lane] = static_cast<char>(bits >> (8 * lane));
}

}  // namespace

void store_codes(const View& from, const View& slots, const View& pool, const View& levels, bool values,
                 CudaContext& context) {
  const int64_t rows = from.shape[0] * from.shape[1], blocks = ceil_div(rows, kWarps);
  if (blocks > INT32_MAX || from.shape[2] > (1 << 20))
    fail("unsupported", "kv_store: ", shape_text(from), " is more than one launch takes");
  const StoringCodes s{from.data,
                       levels.as<float>(),
                       slots.as<int32_t>(),
                       pool.as<char>(),
                       rows,
                       pool_slots(pool, levels),
                       static_cast<int>(from.shape[1]),
                       code_shape(pool, levels, from.shape[2]),
                       values,
                       aligned(pool.data, 4),
                       context.fault};
  for_float(from, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    QENG_LAUNCH(context, store_codes_kernel<T>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, s);
  });
}

}  // namespace qeng
