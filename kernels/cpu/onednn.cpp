// Gemm by oneDNN, versions 2.6 and 3: the one file that includes dnnl.hpp.
#include <dnnl.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

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
          static_cast<uint64_t>(s.n) ^ static_cast<uint64_t>(s.ldc) << 32, static_cast<uint64_t>(s.k),
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
  const auto plain = memory::format_tag::ab, transposed = memory::format_tag::ba;
  const int64_t lda = s.lda ? s.lda : s.trans_a ? s.m : s.k;
  const memory::desc a({s.m, s.k}, type_of(s.in), s.trans_a ? memory::dims{1, lda} : memory::dims{lda, 1});
  const memory::desc b({s.k, s.n}, type_of(s.in), s.trans_b ? transposed : plain);
  const memory::desc bias({1, s.n}, type_of(s.bias), plain);
  const memory::desc c({s.m, s.n}, type_of(s.out), memory::dims{s.ldc ? s.ldc : s.n, 1});
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

// A primitive with its memory objects, whose pointers are set at each run.
struct Primitive {
  dnnl::matmul primitive;
  memory a, b, bias, c, scratchpad;
  size_t scratchpad_bytes = 0;
  std::unordered_map<int, memory> arguments;

  Primitive(const dnnl::engine& engine, const GemmShape& shape, const dnnl::matmul::primitive_desc& description) {
    primitive = dnnl::matmul(description);
    scratchpad_bytes = description.scratchpad_desc().get_size();
    a = memory(description.src_desc(), engine, nullptr);
    b = memory(description.weights_desc(), engine, nullptr);
    c = memory(description.dst_desc(), engine, nullptr);
    scratchpad = memory(description.scratchpad_desc(), engine, nullptr);
    arguments = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, scratchpad}};
    if (!shape.has_bias) return;
    bias = memory({{1, shape.n}, type_of(shape.bias), memory::format_tag::ab}, engine, nullptr);
    arguments[shape.alpha == 1 ? DNNL_ARG_BIAS : (DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1)] = bias;
  }
};

// How oneDNN multiplies bf16. Version 2.6 does not at all without AVX-512 (ONEDNN_MAX_CPU_ISA=AVX2 makes any machine
// such a one), and makes floats of each again and again where the processor has no instructions for them, a quarter of
// f32's speed.
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
    return (found & wanted) == wanted ? Bf16::vectors : Bf16::emulated;
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented) throw;
    return Bf16::no;
  }
}

}  // namespace

struct Gemm::Primitives {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  // Without it f32 goes by multiply_tiles too: the f32 kernel there is the one that computes a tile, but its own way to
  // divide the work among threads makes the order of sums depend on how many there are.
  Bf16 bf16 = bf16_of(engine);
  bool takes(DType in) const { return bf16 != Bf16::no && (bf16 != Bf16::emulated || in == DType::f32); }
  std::unordered_map<GemmShape, std::optional<Primitive>, Hash> of_shape;

  std::optional<Primitive>& find(const GemmShape& shape) {
    const auto found = of_shape.find(shape);
    if (found != of_shape.end()) return found->second;
    if (of_shape.size() >= kMaxPrimitives) of_shape.clear();
    std::optional<Primitive> primitive;
    const auto description = describe(engine, shape);
    if (!is_reference(description)) primitive.emplace(engine, shape, description);
    return of_shape.try_emplace(shape, std::move(primitive)).first->second;
  }
};

Gemm::Gemm() : primitives_(std::make_unique<Primitives>()) {}
Gemm::~Gemm() = default;

bool Gemm::run(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, Scratch& scratch) {
  if (!primitives_->takes(shape.in)) return false;
  try {
    std::optional<Primitive>& p = primitives_->find(shape);
    if (!p) return false;
    const ScratchFrame frame(scratch);
    p->a.set_data_handle(const_cast<void*>(a));
    p->b.set_data_handle(const_cast<void*>(b));
    p->c.set_data_handle(c);
    if (shape.has_bias) p->bias.set_data_handle(const_cast<void*>(bias));
    if (p->scratchpad_bytes) p->scratchpad.set_data_handle(scratch.take(p->scratchpad_bytes));
    p->primitive.execute(primitives_->stream, p->arguments);
    return true;
  } catch (const dnnl::error& error) {
    fail("internal", "matmul: oneDNN: ", error.what(), " (m ", shape.m, ", n ", shape.n, ", k ", shape.k, ", ",
         dtype_name(shape.in), ")");
  }
}

bool Gemm::has(const GemmShape& shape) { return primitives_->takes(shape.in) && primitives_->find(shape).has_value(); }
bool Gemm::multiplies_bf16_by_tiles() const { return primitives_->bf16 == Bf16::tiles; }

bool run_tile(const Tile& t) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);  // outside of a parallel region oneDNN would divide the tile
  const auto status = dnnl::sgemm(t.trans_a ? 'T' : 'N', t.trans_b ? 'T' : 'N', t.m, t.n, t.k, t.alpha, t.a, t.lda, t.b,
                                  t.ldb, t.acc ? 1.0f : 0.0f, t.c, t.ldc);
  omp_set_num_threads(threads);
  return status == dnnl::status::success;
}

}  // namespace qeng
