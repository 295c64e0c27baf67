// The inner loops that are built once per instruction set, as a table of functions; the rest of the backend calls
// through it.
//
// Files of this folder are compiled for each set, into namespaces qeng::isa::baseline, ::avx2, ::neon .. (QENG_ISA).
// They include intrinsics, <cstdint>, simd.h and kernels/math only: a standard header would emit inline functions whose
// AVX-512 copy the linker may then pick for the whole program. To add a loop: a field here, a static function in a
// file, and an assignment in that file's fill_...(Table&), which table.cpp calls.
//
// Loops are serial; callers split rows or elements among threads (kernels/parallel.h). Pointers need no alignment.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/math/adamw.h"
#include "kernels/math/bf16.h"
#include "kernels/math/fn.h"

namespace qeng {
struct Tile;  // kernels/cpu/tile.h
}

namespace qeng::isa {

enum class Float : uint8_t { f32, bf16, f16 };  // f16 only where said

struct Instruction;  // pointwise.h
struct Frame;
struct AttentionTile;  // attention.h
struct AttentionGradTile;
struct DeltaChunk;  // delta.h
struct DeltaForward;
struct DeltaBackward;
struct PagedTile;  // paged_attention.h
struct EncodeCodes;
struct SignTables;  // sign_tables.h

// Rows of x rounded as kernels/math/blocks/activations.h says. Memory is the caller's.
struct Activations {
  int64_t rows = 0, k = 0, group = 0;  // elements that share a scale
  bool few = false;                    // for block_dots, else for block_tiles
  int8_t* codes = nullptr;  // [rows, k]; each 32, or for few rows those of a block, in the order of Dot<Block>::kPlanes
  float* scales = nullptr;  // [rows, k / group]
  int32_t* sums = nullptr;  // [rows, k / group]: of a group's codes
  // Filled for formats whose groups have factors (Dot<Block>::kScaled):
  int16_t* sums_16 = nullptr;    // [rows, k / 16]: of 16 codes each, each 16 of them as Shorts of bytes.h
  int16_t* sums_32 = nullptr;    // [rows, k / 32]: of 32 codes each
  int16_t* halves_16 = nullptr;  // [rows, k / 16, 2]: of codes 0, 1, 4, 5 .. of 16, and of 2, 3, 6, 7 ..
  // For Table::matrix_tiles, the codes of whole groups of rows: [rows / kMatrixRows, k / kMatrixBytes rounded up,
  // kMatrixRows, kMatrixBytes]
  int8_t* tiles = nullptr;
};
constexpr int64_t kMatrixRows = 16, kMatrixBytes = 64;
constexpr int64_t kPanelRows = 16;  // rows of a weight that a panel holds
constexpr int64_t kBf16Step = 32;   // elements of k that a tile of bf16 holds
constexpr int64_t kBf16Side = 8;    // rows of a or columns of b that bf16_pack puts together

// What a row of a convolution is made of: a row of f32 or bf16, and its weights.
struct ConvTap {
  Float type = Float::f32;
  const void* row = nullptr;
  const float* w = nullptr;
};

constexpr int64_t kMostTurned = 256;  // columns of turn_rows

// What ordered_product takes at most of rows, and of depth and columns at once.
constexpr int64_t kOrderedRows = 256, kOrderedDepth = 128, kOrderedColumns = 64;
constexpr int64_t kOrderedMemory =  // floats
    kOrderedRows * (kOrderedDepth + 16) + kOrderedColumns * (kOrderedDepth + kOrderedRows);

struct Table {
  const char* name = nullptr;

  // ---- elementwise (elementwise.cpp)
  void (*add)(Float type, const void* a, const void* b, void* y, int64_t n) = nullptr;
  void (*scale)(Float from, const void* x, Float to, void* y, float alpha,
                int64_t n) = nullptr;                                            // also casts; f16 allowed
  void (*accumulate)(Float type, const void* x, float* y, int64_t n) = nullptr;  // y += x
  // A row of ScaleColumns, bias or null; of ScaleColumnsGrad: dscale += dy x, or null. dx may be dy.
  void (*scale_columns)(Float type, const void* x, const float* scale, Float bias_type, const void* bias, void* y,
                        int64_t n) = nullptr;
  void (*scale_columns_grad)(Float type, const void* x, const float* scale, const void* dy, void* dx, float* dscale,
                             int64_t n) = nullptr;

  // ---- pointwise (pointwise.cpp): programs as pointwise.h describes them
  int64_t pointwise_block = 0;  // columns
  void (*pointwise_link)(Instruction& in) = nullptr;
  // Columns begin .. end - 1: whole blocks; what there is of one, whose streams have room for all of it.
  void (*pointwise)(const Instruction* program, Frame& frame, int64_t begin, int64_t end) = nullptr;
  void (*pointwise_rest)(const Instruction* program, Frame& frame, int64_t begin, int64_t end) = nullptr;
  // The parts of a row function before its first column, and what they make together. few: of one block at most.
  void (*pointwise_begin)(Fn fn, float* parts, bool few) = nullptr;
  float (*pointwise_total)(Fn fn, const float* parts, bool few) = nullptr;
  void (*pointwise_finish)(Fn fn, const float* parts, bool few, float* cell) = nullptr;  // to a cell
  // Each row's function of rows of few columns that lie end to end, in all of its elements; `from` and `to` have room for
  // a vector more.
  void (*pointwise_rows)(Fn fn, const float* from, float* to, int64_t rows, int64_t columns) = nullptr;
  // Sets a cell, as instructions read it: what is written in smaller pieces they would have to wait for.
  void (*pointwise_set)(float* cell, float value) = nullptr;

  // ---- stored dtypes (block_decode.cpp): out[i] = element first + i of the row, i < count. dtype: float, f16 or a
  // block format; the values are those of decode_row (kernels/blocks.h).
  void (*decode)(DType dtype, const void* row, int64_t first, int64_t count, float* out) = nullptr;
  // encode_row (block_encode.cpp), the same bytes with any instruction set.
  void (*encode)(DType dtype, const float* x, const float* importance, int64_t count, void* row) = nullptr;

  // ---- bits (bits.cpp): how many are set of a, or of a xor b where b is not null
  int64_t (*count_bits)(const void* a, const void* b, int64_t bytes) = nullptr;

  // ---- hadamard (hadamard.cpp): x *= y; x = H x / sqrt(n), n a power of two
  void (*multiply)(float* x, const float* y, int64_t n) = nullptr;
  void (*hadamard)(float* x, int64_t n) = nullptr;
  // y = s_2 * H (s_1 * H (s_0 * x)) / dim [+ bias]: HeadLinear with signs [3, dim], dim 16 to kMostTurned. x, y: rows of
  // dim; a stride: elements from one row to the next
  void (*turn_rows)(Float type, const void* x, int64_t x_stride, int64_t rows, int64_t dim, const float* signs,
                    const float* bias, void* y, int64_t y_stride) = nullptr;

  // ---- activation (activation.cpp): SwiGlu, SwiGluGrad
  void (*swiglu)(Float type, bool gelu, const void* gate, const void* up, void* y, int64_t n) = nullptr;
  void (*swiglu_grad)(Float type, bool gelu, const void* gate, const void* up, const void* dy, void* dgate, void* dup,
                      int64_t n) = nullptr;

  // ---- rows of dim elements (rmsnorm.cpp): RmsNorm, RmsNormGrad. dresidual: null, or dx itself, or
  // another; dw: [dim] summed into, or null.
  void (*rmsnorm)(Float type, const void* x, const void* w, void* y, float* rstd, int64_t rows, int64_t dim, float eps,
                  bool plus_one) = nullptr;
  void (*rmsnorm_grad)(Float type, const void* x, const void* w, const float* rstd, const void* dy,
                       const void* dresidual, void* dx, float* dw, int64_t rows, int64_t dim, bool plus_one) = nullptr;
  // LayerNorm, LayerNormGrad (layer_norm.cpp). b: null, or of w's type; sums: [2, dim], dw and db summed into, or null.
  void (*layer_norm)(Float type, const void* x, Float weight_type, const void* w, const void* b, void* y, float* mean,
                     float* rstd, int64_t rows, int64_t dim, float eps) = nullptr;
  void (*layer_norm_grad)(Float type, const void* x, Float weight_type, const void* w, const float* mean,
                          const float* rstd, const void* dy, const void* dresidual, void* dx, float* sums, int64_t rows,
                          int64_t dim) = nullptr;

  // ---- convolutions (causal_conv.cpp): y = [bias] + sum over taps of w * row;  sum += a * b     each [n]
  void (*conv_row)(Float type, const ConvTap* taps, int64_t count, const float* bias, void* y, int64_t n) = nullptr;
  void (*multiply_add)(Float type, const void* a, const void* b, float* sum, int64_t n) = nullptr;

  // ---- out[j] = sum_i a[i] b[j, i], j < n, i < k (gemv.cpp): Matmul of one row
  void (*gemv)(const float* a, Float type, const void* b, float* out, int64_t n, int64_t k) = nullptr;

  // out[r * stride + j] = sum_i a[r, i] b[j, i], r < rows, j < n: the bits that gemv gives for that row
  void (*row_dots)(const float* a, int64_t rows, Float type, const void* b, float* out, int64_t stride, int64_t n,
                   int64_t k) = nullptr;

  // ---- a product of at most kOrderedRows rows, alpha 1 (ordered_product.cpp). An element is one chain of fused
  // multiply-adds in the order of k, so its bits depend on its row of a and its column of b alone, and zeros between them
  // change none. memory: kOrderedMemory floats
  void (*ordered_product)(const Tile& tile, float* memory) = nullptr;

  // ---- RowLinear (block_dots.cpp, block_tiles.cpp): w is of a block format, k a multiple of its elements
  // Formats of one kind share activations.
  int (*activation_kind)(DType format, bool few) = nullptr;
  // x: rows row .. row + rows - 1.
  void (*round_activations)(DType format, const float* x, const Activations& to, int64_t row, int64_t rows) = nullptr;
  // out[r * stride + j] = <row row + r of x, w_j>, r < rows, j < n, where w is row 0. The same bits from each:
  // block_dots reads w as it is stored, interleaved_dots whole groups of interleaved rows, and a panel is repacked for
  // many rows of x.
  void (*block_dots)(DType format, const Activations& x, int64_t row, int64_t rows, const void* w, int64_t n,
                     float* out, int64_t stride) = nullptr;
  void (*interleaved_dots)(DType format, const Activations& x, int64_t row, int64_t rows, const void* w, int64_t n,
                           float* out, int64_t stride) = nullptr;
  int64_t (*panel_bytes)(DType format, int64_t k) = nullptr;
  // Rows first .. first + n of w, a matrix of any block format; n <= kPanelRows, first a multiple of it.
  void (*pack_panel)(DType format, bool interleaved, const void* w, int64_t first, int64_t n, int64_t k,
                     void* panel) = nullptr;
  // out[r * stride + j], j < kPanelRows, for rows first .. first + rows of x; first is a multiple of kMatrixRows.
  // panel: 64-byte aligned
  void (*block_tiles)(DType format, const Activations& x, int64_t first, int64_t rows, const void* panel, float* out,
                      int64_t stride) = nullptr;
  // RowLinear with bf16 weights where there are tiles for them (bf16_tiles_amx.cpp, bf16_tiles_bfmmla.cpp), else null.
  // x in groups of kMatrixRows rows, or one of fewer: bf16_group rounds `rows` of them to
  // columns * (k up to kBf16Step) elements, with zeros for the rest of the columns. Then out[r * stride + j] = <x_r, w_j>,
  // r < rows, j < n; sums: memory of [n up to kMatrixRows, groups * columns].
  void (*bf16_group)(Float type, const void* x, int64_t rows, int64_t columns, int64_t k, bf16* to) = nullptr;
  void (*bf16_tiles)(const bf16* x, int64_t rows, const void* w, float* sums, float* out, int64_t stride, int64_t n,
                     int64_t k) = nullptr;
  // Matmul of bf16 by tiles (bf16_tiles_bfmmla.cpp), else null. Rows of a, or with `across` columns of it, `stride` elements
  // apart: sides and depth of them, to [sides / kBf16Side, depth / 4, kBf16Side, 4], both rounded up, with zeros.
  // Then c[i * stride + j] = (add ? c : 0) + <a_i, b_j>, i < m, j < n: an element is one chain in the order of k.
  void (*bf16_pack)(const bf16* from, int64_t stride, bool across, int64_t sides, int64_t depth, bf16* to) = nullptr;
  void (*bf16_multiply)(const bf16* a, const bf16* b, int64_t m, int64_t n, int64_t k, float* c, int64_t stride,
                        bool add) = nullptr;
  bool matrix_tiles = false;  // block_tiles has instructions for whole tiles, and wants Activations::tiles

  // ---- RowLinear with one_bit and ternary weights (sign_dots.cpp): a group of row `row` of the tables is made of that
  // of x, f32, and out[r * stride + j] = <row row + r of x, w_j>, r < rows <= kMostSignRows, j < n, where w is row 0
  void (*sign_tables)(DType format, const float* x, const SignTables& to, int64_t row, int64_t group) = nullptr;
  void (*sign_dots)(DType format, const SignTables& x, int64_t row, int64_t rows, const void* w, int64_t n, float* out,
                    int64_t stride) = nullptr;

  // ---- Matmul with one_bit weights (sign_sums.cpp), kSumRows rows and kSumColumns columns of op(a) at a time
  // tables: [kSumRuns, 16, kSumRows]: entry `bits` has +-a +-b +-c +-d of a run of four, + for the bits that are set,
  // the first the lowest. x: [kSumColumns, kSumRows]
  void (*sign_sum_tables)(const float* x, float* tables) = nullptr;
  // sums[j, r] += sum over runs of what picks[j, run], 16 times the bits, has in its table, run after run, j < n
  void (*sign_sums)(const float* tables, const uint8_t* picks, int64_t n, float* sums) = nullptr;
  // to[column, row] = from[row, column]; rows and columns multiples of 16; a stride: elements from one row to the next
  void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                    int64_t to_stride) = nullptr;

  // ---- one row of logits (softmax.cpp)
  // log(sum(exp(z)))
  float (*logsumexp)(const float* z, int64_t n) = nullptr;
  // z = softcap * tanh(z / softcap)
  void (*softcap)(float* z, float softcap, int64_t n) = nullptr;
  // dz = scale * (exp(z - lse) - [j == target]), times 1 - (z / softcap)^2 where softcap is not 0; dz of the type may
  // start where z does
  void (*softmax_grad)(const float* z, float lse, int64_t target, float scale, float softcap, Float type, void* dz,
                       int64_t n) = nullptr;

  // ---- optimizer (optimizer.cpp). The same order of additions on every instruction set.
  double (*sum_squares)(const float* x, int64_t n) = nullptr;
  void (*adamw)(const AdamWStep& step, float* w, const float* grad, float* m, float* v, bf16* model,
                int64_t n) = nullptr;
  // Of a block of at most kMomentBlock elements, whose moments are codes: the largest of m and of v.
  void (*adamw_codes)(const AdamWStep& step, float* w, const float* grad, uint8_t* m, uint8_t* v, float* largest_m,
                      float* largest_v, bf16* model, int64_t n) = nullptr;

  // ---- dropout (dropout.cpp): elements first .. first + n of a tensor; first a multiple of 4.
  void (*dropout)(Float type, const void* x, void* y, int64_t first, int64_t n, uint64_t seed, uint64_t step,
                  uint32_t subsequence, float p) = nullptr;
  // y = x + strength (2 u - 1), u in [0, 1) as dropout draws it; first may be any.
  void (*embedding_noise)(Float type, const void* x, void* y, int64_t first, int64_t n, uint64_t seed, uint64_t step,
                          uint32_t subsequence, float strength) = nullptr;

  // ---- gated delta rule (gated_delta.cpp, gated_delta_grad.cpp): chunks as delta.h describes them. delta_advance: the
  // states of a whole chunk become those that it leaves; scratch as for DeltaForward.
  void (*gated_delta)(const DeltaForward& task) = nullptr;
  void (*delta_advance)(const DeltaChunk& chunk, int64_t group, int64_t key_dim, int64_t value_dim,
                        float* scratch) = nullptr;
  void (*gated_delta_grad)(const DeltaBackward& task) = nullptr;

  // ---- attention (attention.cpp, attention_grad.cpp): tiles as attention.h describes them
  void (*attention)(const AttentionTile& tile) = nullptr;
  void (*attention_grad)(const AttentionGradTile& tile) = nullptr;
  // delta[r * stride] = <dout[r], o[r]>     dout, o: [rows, dim]
  void (*attention_delta)(Float type, const void* dout, const void* o, int64_t rows, int64_t dim, float* delta,
                          int64_t stride) = nullptr;
  // y = scale * (parts[0] + parts[1] + ...)     each [n]
  void (*sum_parts)(const float* const* parts, int64_t count, float scale, Float type, void* y, int64_t n) = nullptr;

  // ---- y = x w [+ bias] (paged_attention.cpp): HeadLinear. x: [rows, dim]   w: [dim, out], out a multiple of 16
  // y: [rows, out]; a stride: elements from one row to the next; a row's bits do not depend on the others
  void (*matrix_rows)(const float* x, int64_t x_stride, int64_t rows, int64_t dim, const float* w, const float* bias,
                      float* y, int64_t y_stride, int64_t out) = nullptr;

  // ---- paged attention (paged_attention.cpp): tiles as paged_attention.h describes them
  void (*paged_attention)(const PagedTile& tile) = nullptr;
  void (*merge_pieces)(const PagedTile& tile) = nullptr;
  // x: [heads, dim] f32, to slot 0 to 15 of the heads' tiles; codes: memory of [dim]
  void (*encode_codes)(const float* x, const EncodeCodes& how, int64_t heads, int64_t slot, char* tiles,
                       uint32_t* codes) = nullptr;

  // ---- rope (rope.cpp): one token. x, y: [heads, dim]   cosines, sines: [half]
  void (*rope)(Float type, const void* x, void* y, const float* cosines, const float* sines, int64_t heads, int64_t dim,
               int64_t half, bool interleaved) = nullptr;
};

// The tables, slowest first; from kFirstVariant on each is the one before but for some loops.
#if defined(__aarch64__)
inline constexpr const char* kNames[] = {"baseline", "neon", "dotprod", "armv86"};
inline constexpr int kFirstVariant = 2;
#else
inline constexpr const char* kNames[] = {"baseline", "avx2", "avx512", "avx512vnni", "avx512gfni", "amx"};
inline constexpr int kFirstVariant = 3;
#endif

// They are filled on first use. find: nullptr if this machine cannot run it or there is none of that name.
// best: the fastest that this machine can run.
const Table* find(const char* name);
const Table& best();

}  // namespace qeng::isa
