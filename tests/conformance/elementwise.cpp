// Add, Scale, Cast, Copy, Fill; and UseWeights, which computes nothing.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

Op add(Draw& draw) {
  draw.sometimes_misalign();
  Add op;
  op.a = draw.tensor(draw.float_dtype(), {draw.size(60), draw.size(200)});
  op.b = draw.like(op.a);
  op.y = draw.pick({draw.empty_like(op.a), op.a, op.b});
  return op;
}

Op scale(Draw& draw) {
  draw.sometimes_misalign();
  Scale op;
  const auto dtype = [&] { return draw.pick({DType::f32, DType::bf16, DType::f16}); };
  op.x = draw.tensor(dtype(), {draw.size(60), draw.size(200)});
  op.alpha = draw.pick({1.0f, 0.0f, -3.5f, 0.7f});
  op.y = draw.flip() ? op.x : draw.resized(op.x, dtype());
  return op;
}

// Values on and beside ties, subnormals, infinities and NaN, at random places.
Op cast(Draw& draw) {
  draw.sometimes_misalign();
  Cast op;
  if (draw.integer(0, 2) == 0) {
    const DType dtype = draw.block_format();
    op.x = draw.tensor(dtype, {draw.size(30), draw.row_length(dtype, 1280)}, draw.pick({0.02, 1.0, 300.0}));
    op.y = draw.resized(op.x, draw.pick({DType::f32, DType::bf16, DType::f16}));
    return op;
  }
  op.x = draw.tensor(draw.pick({DType::f32, DType::f32, DType::bf16, DType::f16}), {draw.size(30), draw.size(90)});
  for (double special :
       {0.0, -0.0, 1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1p-11, 1 + 0x3p-11, 0x1p-24, 0x1p-25, 0x3p-25, -0x1.8p-130, 0x1p-149,
        65519.9, 65520.0, 3.39e38, -3.4028e38, double{INFINITY}, -double{INFINITY}, std::nan("")})
    if (draw.flip()) encode(op.x, draw.integer(0, op.x.elements() - 1), round_to(op.x.dtype, special));
  op.y = draw.resized(op.x, draw.pick({DType::f32, DType::bf16, DType::f16}));
  return op;
}

Op copy(Draw& draw) {
  draw.sometimes_misalign();
  Copy op;
  const DType dtype = draw.pick({DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8});
  op.x = draw.tensor(dtype, {draw.size(30), draw.size(90)}, 20, 100);
  op.y = draw.empty_like(op.x);
  return op;
}

Op fill(Draw& draw) {
  draw.sometimes_misalign();
  Fill op;
  op.y = draw.empty(draw.pick({DType::f32, DType::bf16, DType::f16, DType::i32, DType::i64, DType::u8}),
                    {draw.size(30), draw.size(90)});
  op.value = draw.pick({0.0f, 1.0f, 7.0f, 100.0f});
  return op;
}

}  // namespace

template <class T>
void reference(const Add& op, Sheet<T>& sheet) {
  const Array<T> a = sheet.in(op.a), b = sheet.in(op.b);
  Array<T>& y = sheet.out(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = a[i] + b[i];
}

template <class T>
void reference(const Scale& op, Sheet<T>& sheet) {
  const Array<T> x = sheet.in(op.x);
  Array<T>& y = sheet.out(op.y);
  for (int64_t i = 0; i < y.size(); ++i) y[i] = T(op.alpha) * x[i];
}

template <class T>
void reference(const Cast& op, Sheet<T>& sheet) {
  sheet.out(op.y, Sheet<T>::Check::exact).values = sheet.in(op.x).values;
}

template <class T>
void reference(const Copy& op, Sheet<T>& sheet) {
  sheet.out(op.y, Sheet<T>::Check::exact).values = sheet.in(op.x).values;
}

template <class T>
void reference(const Fill& op, Sheet<T>& sheet) {
  for (T& y : sheet.out(op.y, Sheet<T>::Check::exact).values) y = T(op.value);
}

template <class T>
void reference(const UseWeights&, Sheet<T>&) {}  // computes nothing

QENG_CONFORMANCE(Add, .make = add);
QENG_CONFORMANCE(Scale, .make = scale);
QENG_CONFORMANCE(Cast, .make = cast);
QENG_CONFORMANCE(Copy, .make = copy);
QENG_CONFORMANCE(Fill, .make = fill, .free_shape = {"y"}, .free_dtype = {"y"});
QENG_CONFORMANCE(
    UseWeights, .make = [](Draw&) -> Op { return UseWeights{}; });

}  // namespace qeng::conformance
