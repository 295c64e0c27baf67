// Sizes that the generators do not draw because each takes a while: rows longer than a GPU's shared memory, and
// matrices that give every warp and every unrolled loop something to do.
#include <cstring>

#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

TEST_CASE("one row times a transposed matrix, however many warps share a row") {
  Draw draw(base_seed());
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 9000}, {70, 4100}, {2000, 520}, {5, 4097}, {9000, 16}}) {
      Matmul op{.a = draw.tensor(dtype, {1, k}), .b = draw.tensor(dtype, {n, k}), .trans_b = true};
      op.bias = draw.tensor(DType::f32, {n}), op.c = draw.tensor(dtype, {1, n}), op.acc = true, op.alpha = 0.5f;
      check_everywhere(op, draw);
    }
}

TEST_CASE("products of an adapter's rank") {
  Draw draw(base_seed());
  constexpr int64_t kTokens = 200, kWide = 300;
  for (const int64_t rank : {4, 8, 16, 64}) {
    const View x = draw.tensor(DType::bf16, {kTokens, kWide}), u = draw.tensor(DType::bf16, {kTokens, rank}),
               a = draw.tensor(DType::bf16, {rank, kWide});
    check_everywhere(Matmul{.a = x, .b = a, .c = draw.empty_like(u), .trans_b = true}, draw);
    check_everywhere(Matmul{.a = u, .b = a, .c = draw.empty_like(x), .alpha = 2}, draw);
    check_everywhere(Matmul{.a = u, .b = x, .c = draw.tensor(DType::f32, {rank, kWide}), .trans_a = true, .acc = true},
                     draw);
  }
}

// The CPU cuts these into pieces: rows, columns beside c, tiles of operands that lie in larger ones; the last ones
// smaller.
TEST_CASE("products in pieces, the same for any number of threads") {
  Draw draw(base_seed());
  const auto one = make_cpu_backend(1), twenty = make_cpu_backend(20);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [m, n, k] :
         {std::tuple<int64_t, int64_t, int64_t>{1100, 24, 400}, {40, 530, 300}, {20, 700, 400}, {300, 150, 140}})
      for (const bool trans_a : {false, true})
        for (const bool trans_b : {false, true})
          for (const bool acc : {false, true}) {
            Matmul op{.a = draw.tensor(dtype, {trans_a ? k : m, trans_a ? m : k}),
                      .b = draw.tensor(dtype, {trans_b ? n : k, trans_b ? k : n}),
                      .c = draw.tensor(acc ? DType::f32 : dtype, {m, n}),
                      .trans_a = trans_a,
                      .trans_b = trans_b,
                      .acc = acc};
            if (acc == trans_b) op.bias = draw.tensor(DType::f32, {n});
            if (trans_a) op.alpha = 0.5f;
            if (trans_a != acc) check_everywhere(op, draw);
            const Outcome first = run_on(*one, op, draw.buffers()), second = run_on(*twenty, op, draw.buffers());
            INFO(describe(op));
            CHECK(std::memcmp(std::get<Matmul>(first.rebased).c.data, std::get<Matmul>(second.rebased).c.data,
                              op.c.bytes()) == 0);
          }
}

// Rows past a multiple of 16, depths past one of 64, and more weights than the CPU reads at a time.
TEST_CASE("products of many rows with one-bit weights") {
  Draw draw(base_seed());
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{37, 416, 160}, {18, 64, 32}, {19, 1024, 4160}})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const View x = draw.tensor(dtype, {m, k}), w = draw.tensor(DType::one_bit, {n, k}),
                 y = draw.tensor(dtype, {m, n});
      check_everywhere(Matmul{.a = x, .b = w, .bias = draw.tensor(DType::f32, {n}), .c = y, .trans_b = true}, draw);
      check_everywhere(Matmul{.a = y, .b = w, .c = draw.tensor(DType::f32, {m, k}), .acc = true, .alpha = -0.5f}, draw);
      check_everywhere(Matmul{.a = draw.tensor(dtype, {n, m}), .b = w, .c = draw.empty_like(x), .trans_a = true}, draw);
    }
}

// What the table draws rarely: words of signs as the weight, up and down, in every float.
TEST_CASE("products with packed signs") {
  Draw draw(base_seed());
  for (const DType packed : {DType::one_bit, DType::ternary})
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 33, 96},
                                    {3, 416, 160},
                                    {17, 97, 32},
                                    {130, 65, 288},
                                    {0, 40, 64}}) {
        const View x = draw.tensor(dtype, {m, k}), w = draw.tensor(packed, {n, k}), y = draw.tensor(dtype, {m, n});
        check_everywhere(Matmul{.a = x, .b = w, .bias = draw.tensor(DType::f32, {n}), .c = y, .trans_b = true}, draw);
        check_everywhere(Matmul{.a = y, .b = w, .c = draw.tensor(dtype, {m, k}), .acc = true}, draw);
      }
}

// More rows than the CPU has in a tile of gradients, and none.
TEST_CASE("pulses of tall weights") {
  Draw draw(base_seed());
  for (const DType pulses : {DType::ternary, DType::u8})
    for (const int64_t rows : {3, 0}) {
      constexpr int64_t kTall = 2200, kWide = 64;
      PulseGrad op;
      op.dy = draw.empty(DType::f32, {rows, kTall}), op.x = draw.empty(DType::f32, {rows, kWide});
      for (const View& view : {op.dy, op.x})  // whose products are exact, as the table's are
        for (int64_t i = 0; i < view.elements(); ++i) encode(view, i, static_cast<double>(draw.integer(-6, 6)));
      op.weights = draw.tensor(DType::one_bit, {kTall, kWide}), op.pulses = draw.empty(pulses, {kTall, kWide});
      op.hyper = draw.values(DType::f32, {pulses == DType::u8 ? 10.3 : 1.437, 0.1, 0, 0});
      op.rng = draw.values(DType::i64, {5, 9});
      check_everywhere(op, draw);
    }
}

// 227 KB hold 58000 logits: the gradient of a row is then written in one, two and three parts.
TEST_CASE("the head's loss of a vocabulary larger than a multiprocessor's shared memory") {
  Draw draw(base_seed());
  for (const auto& [dtype, vocab] : {std::pair<DType, int64_t>{DType::bf16, 60000},
                                     {DType::bf16, 151937},
                                     {DType::bf16, 240000},
                                     {DType::f32, 130001}}) {
    constexpr int64_t kTokens = 3, kHidden = 2;
    LmHeadLoss op;
    op.h = draw.tensor(dtype, {kTokens, kHidden}), op.w = draw.tensor(dtype, {vocab, kHidden});
    op.targets = draw.values(DType::i32, {static_cast<double>(vocab - 1), -1, 7});
    op.loss_scale = draw.values(DType::f32, {0.5});
    op.nll = draw.empty(DType::f32, {kTokens}), op.loss = draw.empty(DType::f32, {1});
    op.dh = draw.empty_like(op.h), op.dw = draw.tensor(DType::f32, {vocab, kHidden});
    op.workspace = draw.empty(DType::u8, {lm_head_workspace(kTokens, kHidden, vocab, op.chunk, dtype)});
    check_everywhere(op, draw);
  }
}
