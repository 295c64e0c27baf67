// Gemm by oneDNN, versions 2.6 and 3: the one file that includes dnnl.hpp.
//
// oneDNN's own threads are OpenMP's, which wait for each other by spinning and for all of the team at every product. So
// oneDNN has one thread here, and a product is cut into pieces of c that our pool hands out. Sums over k are never cut,
// so results do not depend on the threads.
#include <omp.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstring>
#include <dnnl.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/cpu.h"

namespace qeng {

namespace {

using dnnl::memory;

constexpr size_t kMaxPrimitives = 2048;  // generated code is some 10 KB each; shapes of a run are dozens

memory::data_type type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return memory::data_type::f32;
    case DType::bf16: return memory::data_type::bf16;
    default: fail("dtype", "matmul: ", dtype_name(dtype), " is not supported by the cpu backend; f32 and bf16 are");
  }
}

struct Hash {
  size_t operator()(const GemmShape& s) const {
    size_t hash = 14695981039346656037u;
    for (const uint64_t part :
         {static_cast<uint64_t>(s.m) ^ static_cast<uint64_t>(s.lda) << 32,
          static_cast<uint64_t>(s.n) ^ static_cast<uint64_t>(s.ldc) << 32,
          static_cast<uint64_t>(s.k) ^ static_cast<uint64_t>(s.ldb) << 32,
          uint64_t{bits_of(s.alpha)} << 8 | uint64_t{s.trans_a} | uint64_t{s.trans_b} << 1 | uint64_t{s.acc} << 2 |
              uint64_t{s.has_bias} << 3,
          static_cast<uint64_t>(s.in) | static_cast<uint64_t>(s.out) << 8 | static_cast<uint64_t>(s.bias) << 16})
      hash = (hash ^ part) * 1099511628211u ^ (hash >> 29);
    return hash;
  }
};

bool is_amx(const dnnl::matmul::primitive_desc& description) {
  return std::string_view(description.impl_info_str()).find("amx") != std::string_view::npos;
}

// oneDNN's kernels for AMX are wrong where the last tile along k is not whole: up to version 2.7 they are illegal
// instructions or give other numbers (uxlfoundation/oneDNN issue 1661), up to 3.14 a NaN reaches rows that have none
// (5717).
dnnl::matmul::primitive_desc without_partial_tiles(dnnl::matmul::primitive_desc description, int64_t k) {
  constexpr int64_t kTile = 32;  // of bf16
  while (k % kTile != 0 && is_amx(description))
    if (!description.next_impl()) fail("unsupported", "matmul: oneDNN has nothing but AMX for k ", k);
  return description;
}

dnnl::matmul::primitive_desc describe(const dnnl::engine& engine, const GemmShape& s) {
  const int64_t lda = s.lda_of(), ldb = s.ldb_of();
  const memory::desc a({s.m, s.k}, type_of(s.in), s.trans_a ? memory::dims{1, lda} : memory::dims{lda, 1});
  const memory::desc b({s.k, s.n}, type_of(s.in), s.trans_b ? memory::dims{1, ldb} : memory::dims{ldb, 1});
  const memory::desc bias({1, s.n}, type_of(s.bias), memory::format_tag::ab);
  const memory::desc c({s.m, s.n}, type_of(s.out), memory::dims{s.ldc_of(), 1});
  dnnl::post_ops post;  // oneDNN adds its own bias before post-ops, so a scaled product takes it as a post-op
  if (s.alpha != 1) {
#if DNNL_VERSION_MAJOR >= 3
    post.append_eltwise(dnnl::algorithm::eltwise_linear, s.alpha, 0);
#else
    post.append_eltwise(1, dnnl::algorithm::eltwise_linear, s.alpha, 0);
#endif
  }
  if (s.alpha != 1 && s.has_bias) post.append_binary(dnnl::algorithm::binary_add, bias);
  if (s.acc) post.append_sum(1);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(post);
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const bool own_bias = s.has_bias && s.alpha == 1;
#if DNNL_VERSION_MAJOR >= 3
  if (own_bias) return without_partial_tiles({engine, a, b, bias, c, attributes}, s.k);
  return without_partial_tiles({engine, a, b, c, attributes}, s.k);
#else
  if (own_bias) return without_partial_tiles({dnnl::matmul::desc(a, b, bias, c), attributes, engine}, s.k);
  return without_partial_tiles({dnnl::matmul::desc(a, b, c), attributes, engine}, s.k);
#endif
}

// oneDNN's plain loops, a few hundredths of the speed: what remains where no kernel can do all that the shape asks for.
bool is_reference(const dnnl::matmul::primitive_desc& description) {
  return std::string_view(description.impl_info_str()).substr(0, 3) == "ref";
}

// oneDNN asks OpenMP for its number of threads where it builds a primitive and where it runs one.
void take_one_thread() {
  thread_local const bool taken = (omp_set_num_threads(1), true);
  (void)taken;
}

// A primitive, and for each thread memory objects whose pointers are set at each run.
class Primitive {
 public:
  Primitive(const dnnl::engine& engine, const GemmShape& shape, const dnnl::matmul::primitive_desc& description)
      : engine_(engine), description_(description), primitive_(description) {
    if (shape.has_bias) {
      bias_ = memory::desc({1, shape.n}, type_of(shape.bias), memory::format_tag::ab);
      bias_argument_ = shape.alpha == 1 ? DNNL_ARG_BIAS : (DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1);
    }
  }
  size_t scratchpad_bytes() const { return description_.scratchpad_desc().get_size(); }
  void prepare(int threads) {
    while (of_rank_.size() < static_cast<size_t>(threads)) of_rank_.emplace_back(*this);
  }
  void run(int rank, const void* a, const void* b, const void* bias, void* c, void* scratchpad) {
    OfThread& of = of_rank_[static_cast<size_t>(rank)];
    of.a.set_data_handle(const_cast<void*>(a));
    of.b.set_data_handle(const_cast<void*>(b));
    of.c.set_data_handle(c);
    if (bias_argument_) of.bias.set_data_handle(const_cast<void*>(bias));
    of.scratchpad.set_data_handle(scratchpad);
    primitive_.execute(of.stream, of.arguments);
  }

 private:
  struct OfThread {
    dnnl::stream stream;
    memory a, b, bias, c, scratchpad;
    std::unordered_map<int, memory> arguments;
    explicit OfThread(const Primitive& p)
        : stream(p.engine_),
          a(p.description_.src_desc(), p.engine_, nullptr),
          b(p.description_.weights_desc(), p.engine_, nullptr),
          c(p.description_.dst_desc(), p.engine_, nullptr),
          scratchpad(p.description_.scratchpad_desc(), p.engine_, nullptr),
          arguments{{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, scratchpad}} {
      if (p.bias_argument_) arguments[p.bias_argument_] = bias = memory(p.bias_, p.engine_, nullptr);
    }
  };
  dnnl::engine engine_;
  dnnl::matmul::primitive_desc description_;
  dnnl::matmul primitive_;
  memory::desc bias_;
  int bias_argument_ = 0;
  std::vector<OfThread> of_rank_;
};

int64_t ceil_div(int64_t n, int64_t size) { return (n + size - 1) / size; }

// The pieces of c, each of `rows` rows and `columns` columns but the last. What oneDNN 2.6 does best on one thread, in
// time against that of the whole product:
// - Rows of c alone if there are enough, of bf16: 1.00 for 256 of them, 1.05 for 128, which many threads need. A row's
//   bits do not depend on how many are computed with it. Of f32, tiles are as fast, and twice as fast where b has 3072
//   columns, with which its kernel for whole rows is slow.
// - Columns, where they are rows of b and k is not too small: 0.95 to 1.03. oneDNN's best kernel wants a dense c, so
//   that a piece is computed beside it and copied.
// - Any tiles otherwise, by its kernel for strided operands: 0.8 to 1.1.
// The last two depend on the shape alone.
struct Grid {
  int64_t rows, columns;
  bool beside = false;

  Grid(const GemmShape& s, int threads) : rows(s.m), columns(s.n) {
    constexpr int64_t kMost = 512, kLeastRows = 128, kLeast = 64, kManyThreads = 8;
    constexpr double kLeastFlops = 1e6,
                     kEnoughFlops = 8e6;  // two pieces from 2 kLeastFlops on, more of kEnoughFlops each
    const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
    if (flops < 2 * kLeastFlops) return;
    const auto worth = static_cast<int64_t>(std::clamp(flops / kEnoughFlops, 2.0, 1e6));
    if (s.in != DType::f32 && !s.trans_a && s.m >= kMost && s.n < 8 * s.m) {
      const int64_t wanted = std::min<int64_t>(worth, threads > kManyThreads ? 2 * threads : kManyThreads);
      rows = equal(s.m, std::clamp(ceil_div(s.m, wanted), kLeastRows, kMost));
      return;
    }
    beside = s.trans_b && !s.trans_a && !s.acc && !s.lda && s.k >= 128 && s.n >= 2 * kLeast;
    columns = equal(s.n, kMost), rows = equal(s.m, kMost);
    while (count(s) < std::min<int64_t>(2 * kManyThreads, worth) && std::max(rows, columns) > kLeast) {
      int64_t& longer = rows > columns ? rows : columns;
      longer = equal(longer, std::max(kLeast, ceil_div(longer, 2)));
    }
    beside = beside && columns < s.n;
  }
  int64_t across(const GemmShape& s) const { return ceil_div(s.n, columns); }
  int64_t count(const GemmShape& s) const { return ceil_div(s.m, rows) * across(s); }

 private:
  // The size of equal pieces of n, at most `most`, in steps of what kernels compute at once.
  static int64_t equal(int64_t n, int64_t most) {
    return n <= most ? n : std::min(most, ceil_div(ceil_div(n, ceil_div(n, most)), 16) * 16);
  }
};

// The product of a piece with so many rows and columns.
GemmShape piece_shape(const GemmShape& s, const Grid& grid, int64_t rows, int64_t columns) {
  GemmShape piece = s;
  piece.m = rows, piece.n = columns;
  if (s.trans_a && rows < s.m) piece.lda = s.lda_of();
  if (!s.trans_b && columns < s.n) piece.ldb = s.ldb_of();
  if (grid.beside)
    piece.ldc = 0;
  else if (columns < s.n)
    piece.ldc = s.ldc_of();
  return piece;
}

// Intel's processors with FP16 instructions start a product of bf16 vectors every other cycle, which is half of f32's
// speed. Their tiles do that work; a virtual machine may hide those.
bool has_slow_bf16_vectors() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAvx512Fp16 = 1u << 23;
  return __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAvx512Fp16) != 0;
#else
  return false;
#endif
}

// How oneDNN multiplies bf16. Version 2.6 does not at all without AVX-512 (ONEDNN_MAX_CPU_ISA=AVX2 makes any machine
// such a one), and makes floats of each again and again where the processor has no instructions for them, a quarter of
// f32's speed. Products that are emulated go by multiply_tiles, in f32.
enum class Bf16 { no, emulated, vectors, tiles };
Bf16 bf16_of(const dnnl::engine& engine) {
  GemmShape shape;
  shape.m = shape.n = shape.k = 64, shape.in = shape.out = DType::bf16;
  try {
    const auto description = describe(engine, shape);
    if (is_reference(description)) return Bf16::no;
    if (is_amx(description)) return Bf16::tiles;
    constexpr auto wanted = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    const auto found = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    return (found & wanted) == wanted && !has_slow_bf16_vectors() ? Bf16::vectors : Bf16::emulated;
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    return Bf16::no;
  }
}

}  // namespace

struct Gemm::Primitives {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  // Without it f32 goes by multiply_tiles too: the f32 kernel there is the one that computes a tile.
  Bf16 bf16 = bf16_of(engine);
  bool takes(DType in) const { return bf16 != Bf16::no && (bf16 != Bf16::emulated || in == DType::f32); }
  std::unordered_map<GemmShape, std::optional<Primitive>, Hash> of_shape;

  std::optional<Primitive>& find(const GemmShape& shape) {
    const auto found = of_shape.find(shape);
    if (found != of_shape.end()) return found->second;
    std::optional<Primitive> primitive;
    const auto description = describe(engine, shape);
    if (!is_reference(description)) primitive.emplace(engine, shape, description);
    return of_shape.try_emplace(shape, std::move(primitive)).first->second;
  }

  // Those of the pieces of a product: [1] for the last along m, [][1] along n. False where oneDNN has none.
  using OfPieces = std::array<std::array<Primitive*, 2>, 2>;
  bool find(const GemmShape& shape, const Grid& grid, OfPieces& found) {
    if (of_shape.size() + 4 > kMaxPrimitives) of_shape.clear();
    for (size_t i = 0; i < 2; ++i)
      for (size_t j = 0; j < 2; ++j) {
        const int64_t rows = i ? (shape.m - 1) % grid.rows + 1 : grid.rows;
        const int64_t columns = j ? (shape.n - 1) % grid.columns + 1 : grid.columns;
        std::optional<Primitive>& primitive = find(piece_shape(shape, grid, rows, columns));
        if (!primitive) return false;
        found[i][j] = &*primitive;
      }
    return true;
  }
};

Gemm::Gemm() : primitives_((take_one_thread(), std::make_unique<Primitives>())) {}
Gemm::~Gemm() = default;

bool Gemm::run(const GemmShape& s, const void* a, const void* b, const void* bias, void* c, CpuContext& context) {
  if (!primitives_->takes(s.in)) return false;
  take_one_thread();
  const auto failed = [&](const char* what) {
    fail("internal", "matmul: oneDNN: ", what, " (m ", s.m, ", n ", s.n, ", k ", s.k, ", ", dtype_name(s.in), ")");
  };
  const Grid grid(s, context.threads);
  const int64_t across = grid.across(s), count = grid.count(s);
  const auto in = static_cast<int64_t>(dtype_size(s.in)), out = static_cast<int64_t>(dtype_size(s.out));
  const ScratchFrame frame(context.scratch);
  Primitives::OfPieces primitives;
  size_t bytes = 0;
  try {
    if (!primitives_->find(s, grid, primitives)) return false;
    for (const auto& row : primitives)
      for (Primitive* primitive : row) {
        primitive->prepare(context.threads);
        bytes = std::max(bytes, (primitive->scratchpad_bytes() + 63) / 64 * 64);
      }
  } catch (const dnnl::error& error) {
    failed(error.what());
  }
  const size_t beside_bytes = grid.beside ? static_cast<size_t>((grid.rows * grid.columns * out + 63) / 64 * 64) : 0;
  const int64_t team = std::min<int64_t>(context.threads, count);
  auto* memory = context.scratch.take<char>(team * static_cast<int64_t>(bytes + beside_bytes));
  std::atomic<bool> complete = true;
  parallel_each(context.threads, count, [&](int64_t index) {
    take_one_thread();
    const int64_t i = index / across * grid.rows, j = index % across * grid.columns;
    const int64_t rows = std::min(grid.rows, s.m - i), columns = std::min(grid.columns, s.n - j);
    char* mine = memory + static_cast<size_t>(team_rank()) * (bytes + beside_bytes);
    char* to = static_cast<char*>(c) + (i * s.ldc_of() + j) * out;
    try {
      primitives[i + rows == s.m][j + columns == s.n]->run(
          team_rank(), static_cast<const char*>(a) + i * (s.trans_a ? 1 : s.lda_of()) * in,
          static_cast<const char*>(b) + j * (s.trans_b ? s.ldb_of() : 1) * in,
          bias ? static_cast<const char*>(bias) + j * static_cast<int64_t>(dtype_size(s.bias)) : nullptr,
          grid.beside ? mine + bytes : to, mine);
    } catch (const dnnl::error&) {
      complete = false;
    }
    for (int64_t r = 0; grid.beside && r < rows; ++r)
      std::memcpy(to + r * s.ldc_of() * out, mine + bytes + r * columns * out, static_cast<size_t>(columns * out));
  });
  if (!complete) failed("a piece of the product failed");
  return true;
}

bool Gemm::has(const GemmShape& shape, int threads) {
  take_one_thread();
  Primitives::OfPieces found;
  return primitives_->takes(shape.in) && primitives_->find(shape, Grid(shape, threads), found);
}
bool Gemm::multiplies_bf16_by_tiles() const { return primitives_->bf16 == Bf16::tiles; }

bool run_tile(const Tile& t) {
  take_one_thread();
  return dnnl::sgemm(t.trans_a ? 'T' : 'N', t.trans_b ? 'T' : 'N', t.m, t.n, t.k, t.alpha, t.a, t.lda, t.b, t.ldb,
                     t.acc ? 1.0f : 0.0f, t.c, t.ldc) == dnnl::status::success;
}

}  // namespace qeng
