// Interleaved rows are another order of the same bytes: every operation gives the bits that it gives for plain rows.
#include <cstring>
#include <vector>

#include "kernels/error.h"
#include "kernels/interleave.h"
#include "kernels/math/bf16.h"
#include "kernels/view_text.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

constexpr DType kFormats[] = {DType::tq2_0, DType::q6_k};

// A copy of w with its rows interleaved.
View interleaved(Draw& draw, const View& w) {
  const View copy = draw.empty(w.dtype, {w.shape[0], w.shape[1]});
  std::memcpy(copy.data, w.data, w.bytes());
  return interleave(copy, 2);
}

std::vector<char> bytes_of(const View& view) { return {view.as<char>(), view.as<char>() + view.bytes()}; }
// Not a comparison in CHECK, which would print the bytes.
bool same(const View& view, const std::vector<char>& bytes) { return bytes_of(view) == bytes; }

// What run(w, y) leaves in y, for plain rows and for interleaved ones, on backends that compute in the host's memory.
template <class Run>
void check_same(const View& w, const View& other, const View& y, Run run) {
  for (Named& target : backends()) {
    if (!target.backend->host_memory()) continue;
    INFO(target.name << ", " << shape_text(w) << " to " << shape_text(y));
    std::memset(y.data, 0x55, y.bytes());
    run(*target.backend, w, y);
    const std::vector<char> expected = bytes_of(y);
    std::memset(y.data, 0xaa, y.bytes());
    run(*target.backend, other, y);
    CHECK(same(y, expected));
  }
}

}  // namespace

TEST_CASE("interleaving and restoring gives back every byte, whole or by parts") {
  for (const DType format : kFormats)
    for (const int64_t n : {32, 96}) {
      constexpr int64_t k = 1280;
      Draw draw(base_seed());
      const View w = draw.tensor(format, {n, k}), other = interleaved(draw, w);
      CHECK_FALSE(same(other, bytes_of(w)));
      CHECK(other.bytes() == w.bytes());
      std::vector<char> memory(w.bytes());
      const View back = restore(other, memory.data());
      CHECK(back.dtype == format);
      CHECK(same(w, memory));
      const size_t block = dtype_bytes(format, 256);
      std::vector<char> part(2 * block);
      restore_blocks(other, n - 3, 1, 2, part.data());
      CHECK(std::memcmp(part.data(), w.as<char>() + (static_cast<size_t>(n - 3) * 5 + 1) * block, part.size()) == 0);
    }
}

TEST_CASE("only matrices of whole groups of rows, of formats that gain, are interleaved") {
  char memory[1];
  CHECK(can_interleave(View(memory, DType::tq2_0, {64, 256})));
  CHECK(can_interleave(View(memory, DType::q6_k, {32, 512})));
  CHECK_FALSE(can_interleave(View(memory, DType::tq2_0, {33, 256})));
  CHECK_FALSE(can_interleave(View(memory, DType::tq2_0, {2, 32, 256})));
  CHECK_FALSE(can_interleave(View(memory, DType::q8_0, {32, 256})));
}

TEST_CASE("RowLinear of interleaved rows gives the bits of plain rows") {
  for (const DType format : kFormats)
    for (const int64_t k : {256, 1536, 4352}) {  // the last of so many codes that groups share them
      Draw draw(base_seed());
      const View w = draw.tensor(format, {352, k}), other = interleaved(draw, w);
      const View plain = draw.tensor(DType::q4_k, {19, k}), bias = draw.tensor(DType::f32, {352});
      for (const int64_t rows : {1, 2, 3, 5, 16, 17, 131}) {
        const View x = draw.tensor(DType::f32, {rows, k}, 2), extra = draw.empty(DType::f32, {rows, 19});
        check_same(w, other, draw.empty(DType::f32, {rows, 352}),
                   [&](Backend& backend, const View& weight, const View& y) {
                     RowLinear op;
                     op.x = x, op.w = {plain, weight}, op.y = {extra, y}, op.bias = {View(), bias}, op.alpha = 0.5f;
                     backend.run(op);
                   });
      }
    }
}

TEST_CASE("RowLinear of interleaved rows takes the largest codes and activations") {
  for (const DType format : kFormats) {
    Draw draw(base_seed());
    const View w = draw.tensor(format, {32, 512}), x = draw.empty(DType::f32, {3, 512});
    const size_t block = dtype_bytes(format, 256);
    for (size_t at = 0; at < w.bytes(); at += block) {  // all bits of codes and scales set, or (q6_k) the least scale
      std::memset(w.as<char>() + at, 0xff, block - 2);
      if (format == DType::q6_k && at / block % 2) std::memset(w.as<char>() + at + 192, 0x80, 16);
    }
    for (int64_t i = 0; i < x.elements(); ++i) x.as<float>()[i] = i / 512 == 1 && i % 2 ? -3.0f : 3.0f;
    check_same(w, interleaved(draw, w), draw.empty(DType::f32, {3, 32}),
               [&](Backend& backend, const View& weight, const View& y) {
                 RowLinear op;
                 op.x = x, op.w = {weight}, op.y = {y};
                 backend.run(op);
               });
    std::memset(w.data, 0, w.bytes());  // least codes
    for (size_t at = block; at <= w.bytes(); at += block) {
      const f16 one = to_f16(1);
      std::memcpy(w.as<char>() + at - 2, &one, 2);
      if (format == DType::q6_k) std::memset(w.as<char>() + at - 18, 0x80, 16);
    }
    check_same(w, interleaved(draw, w), draw.empty(DType::f32, {3, 32}),
               [&](Backend& backend, const View& weight, const View& y) {
                 RowLinear op;
                 op.x = x, op.w = {weight}, op.y = {y};
                 backend.run(op);
               });
  }
}

TEST_CASE("operations that read rows of a matrix take interleaved ones") {
  for (const DType format : kFormats) {
    constexpr int64_t n = 64, k = 768;
    Draw draw(base_seed());
    const View w = draw.tensor(format, {n, k}), other = interleaved(draw, w);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      check_same(w, other, draw.empty(dtype, {n, k}), [&](Backend& backend, const View& weight, const View& y) {
        backend.run(Cast{weight, y});
      });
      const View tokens = draw.empty(DType::i32, {5});
      for (int i = 0; i < 5; ++i) tokens.as<int32_t>()[i] = 13 * i;
      check_same(w, other, draw.empty(dtype, {5, k}), [&](Backend& backend, const View& weight, const View& y) {
        Embedding op;
        op.tokens = tokens, op.table = weight, op.y = y;
        backend.run(op);
      });
      for (const int64_t rows : {1, 40})
        for (const bool transposed : {true, false}) {
          const View a = draw.tensor(dtype, {rows, transposed ? k : n});
          check_same(w, other, draw.empty(dtype, {rows, transposed ? n : k}),
                     [&](Backend& backend, const View& weight, const View& y) {
                       Matmul op;
                       op.a = a, op.b = weight, op.c = y, op.trans_b = transposed;
                       backend.run(op);
                     });
        }
      LmHeadLoss loss;
      loss.h = draw.tensor(dtype, {5, k}), loss.targets = tokens;
      loss.loss_scale = draw.values(DType::f32, {1}), loss.loss = draw.empty(DType::f32, {1});
      loss.nll = draw.empty(DType::f32, {5});
      loss.workspace = draw.empty(DType::u8, {lm_head_workspace(5, k, n, loss.chunk, dtype)});
      check_same(w, other, draw.empty(dtype, {5, k}), [&](Backend& backend, const View& weight, const View& y) {
        loss.w = weight, loss.dh = y;
        backend.run(loss);
      });
    }
  }
}

TEST_CASE("interleaved rows are refused by a copy and by backends with memory of their own") {
  Draw draw(base_seed());
  const View w = draw.tensor(DType::q6_k, {32, 256}), other = interleaved(draw, w);
  const View x = draw.tensor(DType::f32, {2, 256}), y = draw.empty(DType::f32, {2, 32});
  RowLinear linear;
  linear.x = x, linear.w = {other}, linear.y = {y};
  Embedding embedding;
  embedding.tokens = draw.tokens(2, 32), embedding.table = other, embedding.y = draw.empty(DType::f32, {2, 256});
  const Matmul product{.a = x, .b = other, .c = y, .trans_b = true};
  const Cast cast{other, draw.empty(DType::f32, {32, 256})};
  const auto refuses = [](Backend& backend, const Op& op) {
    try {
      backend.run(op);
    } catch (const Error& error) {
      return error.code == "dtype" && std::strstr(error.what(), "whose rows are interleaved") != nullptr;
    }
    return false;
  };
  for (Named& target : backends()) {
    INFO(target.name);
    CHECK(refuses(*target.backend, Copy{other, w}));
    CHECK(refuses(*target.backend, Copy{w, other}));
    if (target.backend->host_memory()) continue;
    for (const Op& op : {Op(linear), Op(embedding), Op(product), Op(cast)}) CHECK(refuses(*target.backend, op));
  }
}
