// Fp8Round and Fp8Matmul: two passes over x, for its largest magnitude and for its codes, in both orders from one reading;
// the product is cuBLASLt's, where the device multiplies E4M3 (8.9 and later). Elsewhere, and where the library has no
// algorithm, numbers are widened to bf16, which holds them exactly.
#include <algorithm>

#include "kernels/cuda/linear/gemm.h"
#include "kernels/cuda/vector.h"
#include "kernels/math/e4m3.h"

namespace qeng {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kParts = 256;  // blocks that look for the largest: two fill a multiprocessor's loads

// Of a block of kCount threads, each of which has the result; shared: memory of a word for each warp.
template <int kCount>
__device__ uint32_t largest_of_block(uint32_t most, uint32_t* shared) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) most = max(most, __shfl_xor_sync(kAllLanes, most, offset));
  if (threadIdx.x % kWarp == 0) shared[threadIdx.x / kWarp] = most;
  __syncthreads();
  for (int warp = 0; warp < kCount / kWarp; ++warp) most = max(most, shared[warp]);
  return most;
}

// parts[block]: the largest magnitude of the block's share of x, by its bits. v: elements to an access.
template <class T, int v>
__global__ void __launch_bounds__(kThreads) largest_parts(const T* x, int64_t count, uint32_t* parts) {
  constexpr int kUnrolled = 4;
  const int64_t whole = count / v, step = int64_t{gridDim.x} * kThreads;
  uint32_t most = 0;
  const auto look = [&](const auto& pack, auto& values) {
    unpack(pack, values);
    for (const float value : values) most = max(most, bits_of(value) & 0x7fffffffu);
  };
  float values[v], single[1];
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  for (; i + (kUnrolled - 1) * step < whole; i += kUnrolled * step) {
    Pack<T, v> packs[kUnrolled];
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) packs[u] = load<v>(x + (i + u * step) * v);
#pragma unroll
    for (int u = 0; u < kUnrolled; ++u) look(packs[u], values);
  }
  for (; i < whole; i += step) look(load<v>(x + i * v), values);
  if (blockIdx.x == 0 && whole * v + threadIdx.x < count) look(load<1>(x + whole * v + threadIdx.x), single);
  most = largest_of_block<kThreads>(most, reinterpret_cast<uint32_t*>(shared_memory()));
  if (threadIdx.x == 0) parts[blockIdx.x] = most;
}

// A tile of codes, which a block makes of 128 rows of 64 columns: yt gets 128 bytes of each column.
constexpr int kRows = 128, kColumns = 64, kTileThreads = 128;
constexpr int kRowWords = kColumns / 4;
constexpr int kRun = 16;  // codes to an access
constexpr int kChunks = kColumns / kRun;
constexpr size_t kShared = sizeof(uint32_t) * (kRows * kRowWords + kTileThreads / kWarp);

// Where a word of the tile lies: neither the runs of eight rows that are written at once nor the columns of two runs of
// 16 rows that are read share a bank.
__device__ int place(int row, int word) { return kRowWords * (row ^ (row >> 4 & 1)) + (word ^ (row >> 1 & 3)); }

struct Rounding {
  int64_t rows, columns;
  const uint32_t* parts;
  int count;  // of parts
  uint8_t *y, *yt;
  float* scale;
};

// 16 elements of a row, of which `there` are, and their codes.
template <class T, bool kWhole>
__device__ Pack<T, kRun> run_of(const T* x, int there) {
  Pack<T, kRun> run{};
  if constexpr (kWhole) {
    if (there > 0) run = load<kRun>(x);
  } else {
    float values[kRun] = {};
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (i < there) values[i] = to_f32(x[i]);
    run = pack<T>(values);
  }
  return run;
}

template <class T>
__device__ void encode(const Pack<T, kRun>& run, float inverse, uint32_t (&words)[4]) {
  float values[kRun];
  unpack(run, values);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    words[w] = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) words[w] |= static_cast<uint32_t>(to_e4m3(values[4 * w + i] * inverse)) << (8 * i);
  }
}

template <bool kWhole>
__device__ void put_codes(uint8_t* to, int there, const uint32_t (&words)[4]) {
  if constexpr (kWhole) {
    if (there > 0) *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
  } else {
#pragma unroll
    for (int i = 0; i < kRun; ++i)
      if (i < there) to[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
}

__device__ int there_of(int64_t all, int64_t first) {
  const int64_t left = all - first;
  return left < 0 ? 0 : left < kRun ? static_cast<int>(left) : kRun;
}

// kWhole: rows and columns are multiples of 16, and all memory is aligned to as many bytes.
template <class T, bool kWhole>
__global__ void __launch_bounds__(kTileThreads) round_tile(const T* x, const Rounding p) {
  uint32_t* const tile = reinterpret_cast<uint32_t*>(shared_memory());  // [kRows, kRowWords]
  const int thread = static_cast<int>(threadIdx.x);
  uint32_t most = 0;
  for (int i = thread; i < p.count; i += kTileThreads) most = max(most, p.parts[i]);
  most = largest_of_block<kTileThreads>(most, tile + kRows * kRowWords);
  const float scale = e4m3_scale(most), inverse = e4m3_inverse(scale);
  if (blockIdx.x == 0 && blockIdx.y == 0 && thread == 0) *p.scale = scale;
  const int64_t row0 = int64_t{blockIdx.y} * kRows, column0 = int64_t{blockIdx.x} * kColumns;
  constexpr int kRuns = kRows * kChunks / kTileThreads, kApart = kTileThreads / kChunks;
  const int first = thread / kChunks, chunk = thread % kChunks;
  const int64_t column = column0 + chunk * kRun, index = (row0 + first) * p.columns + column;
  const int columns = there_of(p.columns, column);
  Pack<T, kRun> runs[kRuns];  // all are under way before the first is needed
#pragma unroll
  for (int i = 0; i < kRuns; ++i)
    runs[i] = run_of<T, kWhole>(x + index + i * kApart * p.columns, row0 + first + i * kApart < p.rows ? columns : 0);
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int row = first + i * kApart;
    uint32_t words[4];
    encode(runs[i], inverse, words);
    if (p.y) put_codes<kWhole>(p.y + index + i * kApart * p.columns, row0 + row < p.rows ? columns : 0, words);
    if (!p.yt) continue;
#pragma unroll
    for (int w = 0; w < 4; ++w) tile[place(row, 4 * chunk + w)] = words[w];
  }
  if (!p.yt) return;
  __syncthreads();
  const int four = thread % (kColumns / 4), row = thread / (kColumns / 4) * kRun;  // 16 rows of four columns
  uint32_t turned[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t rows[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) rows[r] = tile[place(row + 4 * i + r, four)];
    const uint32_t low01 = __byte_perm(rows[0], rows[1], 0x5140), low23 = __byte_perm(rows[2], rows[3], 0x5140);
    const uint32_t high01 = __byte_perm(rows[0], rows[1], 0x7362), high23 = __byte_perm(rows[2], rows[3], 0x7362);
    turned[0][i] = __byte_perm(low01, low23, 0x5410), turned[1][i] = __byte_perm(low01, low23, 0x7632);
    turned[2][i] = __byte_perm(high01, high23, 0x5410), turned[3][i] = __byte_perm(high01, high23, 0x7632);
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const int64_t turned_row = column0 + 4 * four + c;
    if (turned_row < p.columns)
      put_codes<kWhole>(p.yt + turned_row * p.rows + row0 + row, there_of(p.rows, row0 + row), turned[c]);
  }
}

// E4M3 times a power of two.
struct Widen {
  static constexpr int kWidth = kVector<bf16>, kInputs = 1;
  const uint8_t* x;
  const float* scale;
  bf16* y;
  float factor = 0;
  __device__ void begin() { factor = *scale; }
  template <int n>
  __device__ Pack<uint8_t, n> read(int64_t i) const {
    return load_once<n>(x + i);
  }
  template <int n>
  __device__ void write(int64_t i, const Pack<uint8_t, n>& codes) const {
    float values[n];
    for (int k = 0; k < n; ++k)
      values[k] = from_e4m3(static_cast<uint8_t>(codes.word[k / 4] >> (8 * (k % 4)))) * factor;
    store(y + i, pack<bf16>(values));
  }
};

const bf16* widened(const View& codes, const View& scale, CudaContext& context) {
  bf16* wide = context.scratch.take<bf16>(codes.elements());
  const Widen widen{codes.as<uint8_t>(), scale.as<float>(), wide};
  launch_elementwise(context, "fp8_matmul", widen, codes.elements(), aligned(codes.data, Widen::kWidth));
  return wide;
}

// c = bias + (acc ? c : 0)
template <class C>
__global__ void __launch_bounds__(kThreads)
    start_with_bias(const void* bias, bool bias_f32, C* c, int64_t count, int64_t n, bool acc) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) put(c + i, read_float(bias, bias_f32, i % n) + (acc ? to_f32(c[i]) : 0.0f));
}

}  // namespace

void run(const Fp8Round& op, CudaContext& context) {
  const int64_t rows = op.x.rows(), columns = op.x.columns(), count = rows * columns;
  uint32_t* parts = context.scratch.take<uint32_t>(kParts);
  for_float(op.x, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr int v = kVector<T>;
    const int64_t blocks = std::clamp<int64_t>(ceil_div(count, int64_t{kThreads} * v), 1, kParts);
    const dim3 grid(static_cast<unsigned>(blocks));
    if (aligned(op.x.data, 16))
      QENG_LAUNCH(context, (largest_parts<T, v>), grid, dim3(kThreads), sizeof(uint32_t) * kThreads / kWarp,
                  op.x.as<T>(), count, parts);
    else
      QENG_LAUNCH(context, (largest_parts<T, 1>), grid, dim3(kThreads), sizeof(uint32_t) * kThreads / kWarp,
                  op.x.as<T>(), count, parts);
    const Rounding rounding{rows,
                            columns,
                            parts,
                            static_cast<int>(blocks),
                            op.y ? op.y.as<uint8_t>() : nullptr,
                            op.yt ? op.yt.as<uint8_t>() : nullptr,
                            op.scale.as<float>()};
    const dim3 tiles(static_cast<unsigned>(std::max<int64_t>(1, ceil_div(columns, kColumns))),
                     static_cast<unsigned>(std::max<int64_t>(1, ceil_div(rows, kRows))));
    const bool whole = rows % kRun == 0 && columns % kRun == 0 && aligned(op.x.data, 16) && aligned(rounding.y, kRun) &&
                       aligned(rounding.yt, kRun);
    if (whole)
      QENG_LAUNCH(context, (round_tile<T, true>), tiles, dim3(kTileThreads), kShared, op.x.as<T>(), rounding);
    else
      QENG_LAUNCH(context, (round_tile<T, false>), tiles, dim3(kTileThreads), kShared, op.x.as<T>(), rounding);
  });
}

void run(const Fp8Matmul& op, CudaContext& context) {
  CudaGemm gemm;
  gemm.m = op.c.rows(), gemm.n = op.c.columns(), gemm.k = op.a.columns();
  if (gemm.m == 0 || gemm.n == 0) return;
  gemm.c = op.c.data, gemm.out = op.c.dtype;
  gemm.trans_b = true, gemm.acc = op.acc || op.bias;
  gemm.lda = gemm.ldb = gemm.k, gemm.ldc = gemm.n;
  if (op.bias)
    for_float(op.c, [&](auto* type) {
      using C = std::remove_pointer_t<decltype(type)>;
      const int64_t count = gemm.m * gemm.n;
      QENG_LAUNCH(context, start_with_bias<C>, dim3(static_cast<unsigned>(ceil_div(count, kThreads))), dim3(kThreads),
                  0, op.bias.data, op.bias.dtype == DType::f32, op.c.as<C>(), count, gemm.n, op.acc);
    });
  // The library wants rows of whole 16 bytes.
  const bool fits = gemm.k % kRun == 0 && gemm.n % kRun == 0 && aligned(op.a.data, kRun) && aligned(op.b.data, kRun) &&
                    aligned(op.c.data, kRun);
  if (context.capability >= 89 && fits) {
    CudaGemm codes = gemm;
    codes.in = DType::u8, codes.a = op.a.data, codes.b = op.b.data;
    codes.scale_a = op.scale_a.as<float>(), codes.scale_b = op.scale_b.as<float>();
    if (run_by_library(codes, context)) return;
  }
  gemm.in = DType::bf16;
  gemm.a = widened(op.a, op.scale_a, context), gemm.b = widened(op.b, op.scale_b, context);
  run_gemm(gemm, context);
}

}  // namespace qeng
