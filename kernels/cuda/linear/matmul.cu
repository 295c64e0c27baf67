// Matmul, and which kernel makes a product. One row by a transposed matrix, as in decoding, reads every element of b
// once, so it is a kernel of its own that reads b at the memory's speed; the rest is cuBLASLt's, or on 7.5 gemm_half.cu's.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "kernels/cuda/bounds.h"
#include "kernels/cuda/linear/cublaslt.h"
#include "kernels/cuda/linear/stored.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"

namespace qeng {

namespace {

// c[j] = alpha <a, b[j, :]> + bias[j] + (acc ? c[j] : 0)
struct Row {
  const void *a, *b, *bias;
  void* c;
  int64_t n, k, ldb;
  bool bias_f32, acc;
  float alpha;
};
constexpr int kRowThreads = 256, kRowWarps = kRowThreads / kWarp;
constexpr int kAhead = 4;  // 16-byte loads of b under way in each thread: 64 KB in a full multiprocessor

// `split` warps (a divisor of kRowWarps) share a row of b; v: elements to an access.
template <class In, class Out, int v>
__global__ void QENG_BOUNDS(kRowThreads, 0, 1) gemv(Row row, int split) {
  const int warp = static_cast<int>(threadIdx.x) / kWarp, lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t j = int64_t{blockIdx.x} * (kRowWarps / split) + warp / split;
  const In* a = static_cast<const In*>(row.a);
  const In* b = static_cast<const In*>(row.b) + (j < row.n ? j : 0) * row.ldb;
  const int64_t step = int64_t{split} * kWarp * v;
  float sum[v] = {};
  const auto add = [&](const Pack<In, v>& weights, int64_t l) {
    float x[v], w[v];
    unpack<In>(load<v>(a + l), x);
    unpack<In>(weights, w);
    for (int i = 0; i < v; ++i) sum[i] += x[i] * w[i];
  };
  int64_t l = (warp % split * kWarp + lane) * v;
  if (j < row.n) {
    for (; l + (kAhead - 1) * step < row.k; l += kAhead * step) {
      Pack<In, v> weights[kAhead];
      for (int u = 0; u < kAhead; ++u) weights[u] = load_once<v>(b + l + u * step);
      for (int u = 0; u < kAhead; ++u) add(weights[u], l + u * step);
    }
    for (; l < row.k; l += step) add(load_once<v>(b + l), l);
  }
  float total = sum[0];
  for (int i = 1; i < v; ++i) total += sum[i];
  total = warp_sum(total);
  if (split > 1) {
    float* partial = reinterpret_cast<float*>(shared_memory());
    if (lane == 0) partial[warp] = total;
    __syncthreads();
    total = 0;
    for (int i = 0; i < split; ++i) total += partial[warp / split * split + i];
  }
  if (lane != 0 || warp % split != 0 || j >= row.n) return;
  Out* c = static_cast<Out*>(row.c) + j;
  float value = row.alpha * total;
  if (row.bias) value += read_float(row.bias, row.bias_f32, j);
  if (row.acc) value += to_f32(*c);
  put(c, value);
}

void gemv(const CudaGemm& gemm, CudaContext& context) {
  const Row row{gemm.a,   gemm.b,    gemm.bias, gemm.c, gemm.n, gemm.k, gemm.ldb, gemm.bias_type == DType::f32,
                gemm.acc, gemm.alpha};
  for_gemm_types(gemm, [&](auto* in, auto* out) {
    using In = std::remove_pointer_t<decltype(in)>;
    using Out = std::remove_pointer_t<decltype(out)>;
    constexpr int v = kVector<In>;
    const bool vectors = gemm.k % v == 0 && gemm.ldb % v == 0 && aligned(gemm.a, 16) && aligned(gemm.b, 16);
    // Few rows leave multiprocessors without work: share each among more warps while all of them have loads to make.
    const int64_t enough_warps = 8192, reach = int64_t{kWarp} * kAhead * (vectors ? v : 1);
    int split = 1;
    while (split < kRowWarps && gemm.n * split < enough_warps && gemm.k > split * reach) split *= 2;
    const dim3 grid(static_cast<unsigned>(ceil_div(gemm.n, kRowWarps / split)));
    const size_t shared = split > 1 ? kRowWarps * sizeof(float) : 0;
    if (vectors)
      QENG_LAUNCH(context, (gemv<In, Out, v>), grid, dim3(kRowThreads), shared, row, split);
    else
      QENG_LAUNCH(context, (gemv<In, Out, 1>), grid, dim3(kRowThreads), shared, row, split);
  });
}

constexpr int kThreads = 256;

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) copy_bias(const In* x, Out* y, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < n) put(y + i, to_f32(x[i]));
}

// c = product + bias + (acc ? c : 0)
__global__ void __launch_bounds__(kThreads)
    add_bias(const float* product, const float* bias, bf16* c, int64_t rows, int64_t n, int64_t ldc, bool acc) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * n) return;
  bf16* to = c + i / n * ldc + i % n;
  *to = to_bf16(product[i] + bias[i % n] + (acc ? to_f32(*to) : 0.0f));
}

dim3 blocks_of(int64_t elements) { return dim3(static_cast<unsigned>(ceil_div(elements, kThreads))); }

#ifdef QENG_EMULATED
// The first product of a shape chooses its algorithm by time, which cannot be while a graph is recorded: then it would take
// the library's first guess for good. Whatever is recorded has run before; here that is asserted.
void expect_known(const CudaGemm& gemm, const CudaContext& context) {
  static std::map<const CudaContext*, std::set<std::string>> seen;
  const bool first = seen[&context].insert(gemm_text(gemm)).second;
  if (first && context.scratch.frozen())
    fail("internal", "a product is recorded whose shape has not run before: ", gemm_text(gemm));
}
#endif

void by_library(const CudaGemm& gemm, CudaContext& context) {
  if (!run_by_library(gemm, context)) gemm_simt(gemm, context);
}

// Elements of a decoded panel: 256 MB in bf16, which is wide enough that a is not read again often (2048 rows of logits
// for a vocabulary of 152000 take a panel of 768 columns of dh). In the emulator small, so that tests have several.
#ifdef QENG_EMULATED
constexpr int64_t kPanel = 2048;
#else
constexpr int64_t kPanel = int64_t{1} << 27;
#endif

// Panels are columns of c, so that no sum over k is divided: rows of a transposed b, columns of whole blocks otherwise.
int64_t panel_columns(const CudaGemm& gemm) {
  const int64_t unit = gemm.trans_b ? 1 : dtype_info(gemm.stored).elements;
  return std::min(gemm.n, std::max<int64_t>(1, kPanel / (gemm.k * unit)) * unit);
}

bool is_decoded(const CudaGemm& gemm) {
  return is_stored_only(gemm.stored) || (gemm.stored == DType::bf16 && gemm.in == DType::f32);
}

void by_panels(const CudaGemm& gemm, CudaContext& context) {
  const int64_t width = panel_columns(gemm);
  DecodeRows rows;
  rows.table =
      gemm.trans_b ? View(nullptr, gemm.stored, {gemm.n, gemm.k}) : View(nullptr, gemm.stored, {gemm.k, gemm.n});
  rows.table.data = const_cast<void*>(gemm.b);
  rows.rows = rows.table.rows(), rows.columns = rows.table.columns();
  rows.out = gemm.in, rows.y = gemm.panel ? gemm.panel : context.scratch.take(panel_bytes(gemm));
  for (int64_t j = 0; j < gemm.n; j += width) {
    CudaGemm part = gemm;
    part.n = std::min(width, gemm.n - j);
    (gemm.trans_b ? rows.row : rows.column) = j;
    (gemm.trans_b ? rows.rows : rows.columns) = part.n;
    decode_rows("matmul", rows, context);
    part.stored = DType::f32, part.b = rows.y, part.ldb = gemm.trans_b ? gemm.k : part.n;
    part.c = static_cast<char*>(gemm.c) + j * static_cast<int64_t>(dtype_size(gemm.out));
    if (gemm.bias)
      part.bias = static_cast<const char*>(gemm.bias) + j * static_cast<int64_t>(dtype_size(gemm.bias_type));
    run_gemm(part, context);
  }
}

}  // namespace

std::string gemm_text(const CudaGemm& gemm) {
  const auto side = [](int64_t rows, int64_t columns, bool transposed) {
    return "[" + std::to_string(rows) + ", " + std::to_string(columns) + "]" + (transposed ? "^T" : "");
  };
  std::string text = gemm.trans_a ? side(gemm.k, gemm.m, true) : side(gemm.m, gemm.k, false);
  text += " x " + (gemm.trans_b ? side(gemm.n, gemm.k, true) : side(gemm.k, gemm.n, false));
  text += " -> " + side(gemm.m, gemm.n, false) + ", " + dtype_name(gemm.in) + " to " + dtype_name(gemm.out);
  if (gemm.bias) text += ", bias";
  if (gemm.acc) text += ", added";
  return text;
}

size_t panel_bytes(const CudaGemm& gemm) {
  if (!is_decoded(gemm)) return 0;
  return static_cast<size_t>(panel_columns(gemm) * gemm.k) * dtype_size(gemm.in);
}

bool run_by_library(const CudaGemm& gemm, CudaContext& context) {
#ifdef QENG_EMULATED
  expect_known(gemm, context);
#endif
  if (!context.cublas) context.cublas = open_cublaslt(context);  // here, as inference never wants it
  return context.cublas && context.cublas->run(gemm, context);
}

void run_gemm(const CudaGemm& gemm, CudaContext& context) {
  if (gemm.m == 0 || gemm.n == 0) return;
  if (is_decoded(gemm)) return by_panels(gemm, context);
  if (gemm.m == 1 && gemm.trans_b && (!gemm.trans_a || gemm.lda == 1)) return gemv(gemm, context);
  if (gemm_half(gemm, context)) return;
  // cuBLASLt adds a bias of c's dtype only, and reads it 16 bytes at a time. To widen a bf16 one is exact, but an f32
  // one is not to be rounded to bf16: it is added to a product in f32.
  const bool fits = gemm.bias_type == gemm.out;
  if (!gemm.bias || (fits && aligned(gemm.bias, 16))) return by_library(gemm, context);
  CudaGemm other = gemm;
  if (fits || gemm.out == DType::f32) {
    const auto copy = [&](auto* from, auto* to) {
      using In = std::remove_pointer_t<decltype(from)>;
      using Out = std::remove_pointer_t<decltype(to)>;
      Out* bias = context.scratch.take<Out>(gemm.n);
      QENG_LAUNCH(context, (copy_bias<In, Out>), blocks_of(gemm.n), dim3(kThreads), 0,
                  static_cast<const In*>(gemm.bias), bias, gemm.n);
      other.bias = bias, other.bias_type = gemm.out;
    };
    CudaGemm types = gemm;
    types.in = gemm.bias_type;
    for_gemm_types(types, copy);
    return by_library(other, context);
  }
  float* product = context.scratch.take<float>(gemm.m * gemm.n);
  other.bias = nullptr, other.acc = false;
  other.c = product, other.out = DType::f32, other.ldc = gemm.n;
  by_library(other, context);
  QENG_LAUNCH(context, add_bias, blocks_of(gemm.m * gemm.n), dim3(kThreads), 0, product,
              static_cast<const float*>(gemm.bias), static_cast<bf16*>(gemm.c), gemm.m, gemm.n, gemm.ldc, gemm.acc);
}

CudaGemm gemm_of(const Matmul& op) {
  const auto [m, n, k] = sizes_of(op);
  CudaGemm gemm;
  gemm.m = m, gemm.n = n, gemm.k = k;
  gemm.a = op.a.data, gemm.b = op.b.data, gemm.c = op.c.data;
  if (op.bias) gemm.bias = op.bias.data, gemm.bias_type = op.bias.dtype;
  gemm.in = op.a.dtype, gemm.out = op.c.dtype, gemm.stored = op.b.dtype;
  gemm.trans_a = op.trans_a, gemm.trans_b = op.trans_b, gemm.acc = op.acc;
  gemm.alpha = op.alpha;
  gemm.lda = op.a.columns(), gemm.ldb = op.b.columns(), gemm.ldc = n;
  return gemm;
}

void run(const Matmul& op, CudaContext& context) { run_gemm(gemm_of(op), context); }

}  // namespace qeng
