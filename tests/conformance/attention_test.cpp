// What random draws of attention do not meet: many heads, thousands of documents, boundaries that change or are wrong.
#include "kernels/error.h"
#include "tests/catch.h"
#include "tests/conformance/runner.h"

using namespace qeng;
using namespace qeng::conformance;

namespace {

Documents documents_of(Draw& draw, const std::vector<int>& lengths, int64_t rows) {
  std::vector<double> cu{0};
  for (int length : lengths) cu.push_back(cu.back() + length);
  return {draw.values(DType::i32, cu), draw.values(DType::i32, cu), rows, rows};
}

std::string code_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.code;
  }
  return "none";
}

}  // namespace

// On a GPU a block sums dk and dv over as many of a group's query heads as leave enough blocks: here 1, 2 and 4 of 4.
TEST_CASE("attention's gradients sum the query heads of a group, however many kv heads share the work") {
  for (int64_t kv_heads : {1, 32, 64}) {
    Draw draw(base_seed());
    const Documents documents = documents_of(draw, {5, 9}, 512);
    check_everywhere(attention_grad_of(draw, attention_of(draw, documents, DType::bf16, kv_heads, 4, 64)), draw);
  }
}

// There, dS stay in memory between the gradient's two passes, by squares of 128: where a window ends is not written.
TEST_CASE("attention's gradient where documents attend to themselves, and what lies past them is no number") {
  for (int64_t head_dim : {80, 128})
    for (int window : {0, 70, 200}) {
      Draw draw(base_seed() + static_cast<uint64_t>(window));
      Documents documents = documents_of(draw, {130, 0, 300, 1, 64, 129}, 640);
      documents.cu_k = documents.cu_q;
      Attention op = attention_of(draw, documents, DType::bf16, 1, 2, head_dim);
      op.window = window;
      if (window == 70) op.sinks = draw.tensor(DType::f32, {2});
      AttentionGrad gradient = attention_grad_of(draw, op);
      for (const View& view : {op.q, op.k, op.v, gradient.dout})
        for (int64_t i = 624 * view.elements() / 640; i < view.elements(); ++i) encode(view, i, NAN);
      check_everywhere(op, draw);
      check_everywhere(gradient, draw);
    }
}

// Room for dS is counted by the documents that there may be: 250 make it too little for all heads at a time.
TEST_CASE("attention's gradient of more heads than keep their dS at a time") {
  Draw draw(base_seed());
  std::vector<int> lengths(250);
  lengths[3] = 131, lengths[200] = 2;
  Documents documents = documents_of(draw, lengths, 133);
  documents.cu_k = documents.cu_q;
  check_everywhere(attention_grad_of(draw, attention_of(draw, documents, DType::bf16, 130, 1, 72)), draw);
}

TEST_CASE("attention takes thousands of documents, most of them empty") {
  for (DType dtype : {DType::bf16, DType::f32}) {
    Draw draw(base_seed());
    std::vector<int> lengths(3000);
    int64_t rows = 3;
    for (int i = 0; i < 40; ++i) {
      int& length = lengths[static_cast<size_t>(draw.integer(0, 2999))];
      rows -= length, length = static_cast<int>(draw.integer(1, 9)), rows += length;
    }
    const Attention op = attention_of(draw, documents_of(draw, lengths, rows), dtype, 1, 2, 64);
    check_everywhere(op, draw);
    check_everywhere(attention_grad_of(draw, op), draw);
  }
}

TEST_CASE("attention of a long head where tensor cores do not fit") {
  for (DType dtype : {DType::bf16, DType::f32})
    for (int64_t head_dim : {161, 256}) {
      Draw draw(base_seed());
      draw.misalign();
      const Attention op = attention_of(draw, documents_of(draw, {17, 30}, 47), dtype, 1, 2, head_dim);
      check_everywhere(op, draw);
      check_everywhere(attention_grad_of(draw, op), draw);
    }
}

TEST_CASE("attention of capped scores by tensor cores, in whose softmax sinks take part") {
  for (int64_t head_dim : {128, 256}) {
    Draw draw(base_seed());
    Attention op = attention_of(draw, documents_of(draw, {70, 20}, 93), DType::bf16, 1, 2, head_dim);
    op.softcap = 2, op.sinks = draw.tensor(DType::f32, {2});
    check_everywhere(op, draw);
    AttentionGrad gradient = attention_grad_of(draw, op);
    gradient.dsinks = draw.empty_like(op.sinks);
    check_everywhere(gradient, draw);
  }
}

TEST_CASE("attention with a scale of zero or less") {
  for (float scale : {0.0f, -0.1f}) {
    Draw draw(base_seed());
    Attention op = attention_of(draw, documents_of(draw, {70, 20}, 90), DType::bf16, 1, 2, 64);
    op.scale = scale;
    check_everywhere(op, draw);
    check_everywhere(attention_grad_of(draw, op), draw);
  }
}

TEST_CASE("attention refuses boundaries that do not rise from 0 to the rows at most, and goes on") {
  for (Named& target : backends())
    for (const std::vector<double>& cu : {std::vector<double>{0, 30, 20, 50},
                                          {0, 20, 40, 61},
                                          {1, 20, 40, 60},
                                          {0, -5, 40, 60},
                                          {0, 60, 0, 60},
                                          {0, 2e9, -2e9, 60}}) {
      Draw draw(base_seed());
      Attention op = attention_of(draw, documents_of(draw, {20, 20, 20}, 60), DType::bf16, 1, 2, 64);
      AttentionGrad grad = attention_grad_of(draw, op);
      const View wrong = draw.values(DType::i32, cu);
      INFO(target.name << ": " << cu[0] << ", " << cu[1] << ", " << cu[2] << ", " << cu[3]);
      for (bool q : {false, true}) {
        Attention broken = op;
        AttentionGrad broken_grad = grad;
        (q ? broken.cu_q : broken.cu_k) = wrong, (q ? broken_grad.cu_q : broken_grad.cu_k) = wrong;
        CHECK(code_of([&] { run_on(*target.backend, broken, draw.buffers()); }) == "value");
        CHECK(code_of([&] { run_on(*target.backend, broken_grad, draw.buffers()); }) == "value");
      }
      CHECK(code_of([&] { run_on(*target.backend, op, draw.buffers()); }) == "none");
    }
}

TEST_CASE("a recording of attention follows boundaries that change") {
  for (Named& target : backends()) {
    Draw draw(base_seed());
    const Attention forward = attention_of(draw, documents_of(draw, {100, 0, 7, 30}, 140), DType::bf16, 1, 2, 64);
    const Documents later = documents_of(draw, {0, 65, 1, 74}, 140);
    Attention then = forward;
    then.cu_q = later.cu_q, then.cu_k = later.cu_k;
    const AttentionGrad gradients = attention_grad_of(draw, then);
    for (Op op : {Op(forward), Op([&] {
                    AttentionGrad now = gradients;
                    return now.cu_q = forward.cu_q, now.cu_k = forward.cu_k, now;
                  }())}) {
      // The tensors that hold the first boundaries are given the later ones between recording and replay.
      const auto run = [&](const Op& moved) {
        Backend& backend = *target.backend;
        backend.run(moved);
        const auto recording = backend.record([&] { backend.run(moved); });
        std::visit(
            [&](auto o) {
              if constexpr (requires { o.cu_q, o.cu_k; }) {
                backend.upload(o.cu_q.data, later.cu_q.data, later.cu_q.bytes());
                backend.upload(o.cu_k.data, later.cu_k.data, later.cu_k.bytes());
              }
            },
            moved);
        recording ? recording->replay() : backend.run(moved);
      };
      std::deque<Buffer> before = draw.buffers();
      const Outcome outcome = run_on(*target.backend, op, draw.buffers(), run);
      std::memcpy(forward.cu_q.data, later.cu_q.data, later.cu_q.bytes());
      std::memcpy(forward.cu_k.data, later.cu_k.data, later.cu_k.bytes());
      Sheet<Real> expected;
      run_reference(op, expected);
      INFO(target.name << ": " << op_name(op));
      CHECK(disagreement(op, expected, outcome, draw.buffers()) == "");
      for (size_t i = 0; i < before.size(); ++i)
        std::memcpy(draw.buffers()[i].bytes.data(), before[i].bytes.data(), before[i].bytes.size());
    }
  }
}

TEST_CASE("attention on a GPU says which head_dim it takes") {
  for (Named& target : backends()) {
    Draw draw(base_seed());
    const Attention op = attention_of(draw, documents_of(draw, {9}, 9), DType::f32, 1, 1, 257);
    CHECK(code_of([&] { run_on(*target.backend, op, draw.buffers()); }) ==
          (target.name == "cuda" ? "unsupported" : "none"));
  }
}
