// Embedding and its gradient.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op embedding(Draw& draw) {
  draw.sometimes_misalign();
  Embedding op;
  const bool stored = draw.integer(0, 2) == 0;
  const DType dtype = stored ? draw.stored_dtype(DType::f32) : draw.float_dtype();
  op.table = draw.tensor(dtype, {draw.size(90), is_block(dtype) ? draw.row_length(dtype, 1280) : draw.columns(300)});
  op.tokens = draw.tokens(draw.size(80), op.table.shape[0]);
  op.y = draw.empty(stored ? draw.float_dtype() : dtype, {op.tokens.elements(), op.table.columns()});
  return op;
}

Op embedding_grad(Draw& draw) {
  draw.sometimes_misalign();
  EmbeddingGrad op;
  const bool many = draw.integer(0, 3) == 0;  // tokens, of which a share are all the same one
  op.dtable = draw.tensor(
      DType::f32, {many ? draw.integer(500, 1500) : draw.size(40), many ? draw.integer(1, 12) : draw.columns(130)});
  op.tokens = draw.tokens(many ? draw.integer(600, 2500) : draw.size(120), op.dtable.shape[0]);
  const double padding = draw.pick({0.0, 0.1, 0.9});
  for (int64_t t = 1; t < op.tokens.elements(); ++t)
    if (draw.uniform(0, 1) < padding) encode(op.tokens, t, decode(op.tokens, 0));
  op.dy = draw.tensor(draw.float_dtype(), {op.tokens.elements(), op.dtable.columns()});
  return op;
}

Chain embedding_chain(Draw& draw) {
  Embedding forward;
  forward.table = draw.tensor(DType::f32, {draw.size(9), draw.size(5)});
  forward.tokens = draw.tokens(draw.size(20), forward.table.shape[0]);
  forward.y = draw.empty(DType::f32, {forward.tokens.elements(), forward.table.columns()});
  const View dout = draw.like(forward.y);
  EmbeddingGrad gradient{forward.tokens, dout,
                         draw.tensor(DType::f32, {forward.table.shape[0], forward.table.shape[1]}, 0)};
  return {forward, {gradient}, forward.y, dout, {{forward.table, gradient.dtable}}};
}

}  // namespace

template <class T>
void reference(const Embedding& op, Sheet<T>& sheet) {
  const auto tokens = sheet.integers(op.tokens);
  const Array<T> table = sheet.in(op.table);
  Array<T>& y = sheet.out(op.y, Sheet<T>::Check::exact);
  for (size_t t = 0; t < tokens.size(); ++t)
    for (int64_t j = 0; j < op.table.columns(); ++j) y(static_cast<int64_t>(t), j) = table(tokens[t], j);
}

template <class T>
void reference(const EmbeddingGrad& op, Sheet<T>& sheet) {
  const auto tokens = sheet.integers(op.tokens);
  const Array<T> dy = sheet.in(op.dy);
  Array<T>& dtable = sheet.update(op.dtable);
  for (size_t t = 0; t < tokens.size(); ++t)
    for (int64_t j = 0; j < op.dy.columns(); ++j) dtable(tokens[t], j) += dy(static_cast<int64_t>(t), j);
}

QENG_CONFORMANCE(Embedding, .make = embedding);
QENG_CONFORMANCE(EmbeddingGrad, .make = embedding_grad, .derivatives = {{"embedding_grad", embedding_chain}});

}  // namespace qeng::conformance
