// SumSquares, ClipScale, AdamW.
#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

constexpr int64_t kMomentBlock = 256;

// One tensor, a few, or more than one launch of a GPU takes.
int64_t tensors(Draw& draw) { return draw.integer(0, 9) ? draw.integer(1, 4) : draw.pick<int64_t>({0, 70, 130}); }

Op sum_squares(Draw& draw) {
  SumSquares op;
  const int64_t count = tensors(draw), most = count > 4 ? 3 : 300;
  for (int64_t i = 0; i < count; ++i) op.x.push_back(draw.tensor(draw.float_dtype(), {draw.size(80), draw.size(most)}));
  if (draw.integer(0, 9) == 0)
    op.x.push_back(draw.tensor(draw.float_dtype(), {33000}));  // several blocks of partial sums
  op.out = draw.empty(DType::f32, {static_cast<int64_t>(op.x.size())});
  return op;
}

Op clip_scale(Draw& draw) {
  ClipScale op;
  op.partials = draw.empty(DType::f32, {draw.size(200)});
  for (int64_t i = 0; i < op.partials.elements(); ++i) encode(op.partials, i, draw.uniform(0, draw.pick({1e-3, 2.0})));
  if (draw.integer(0, 3) == 0)
    encode(op.partials, draw.integer(0, op.partials.elements() - 1), draw.pick({double{INFINITY}, std::nan("")}));
  op.out = draw.empty(DType::f32, {3});
  op.max_norm = draw.pick({0.0f, 1.0f, 1.0f, 1e6f});
  return op;
}

Op adamw(Draw& draw) {
  AdamW op;
  const int64_t count = tensors(draw), most = count > 4 ? 3 : 200;
  const bool models = draw.flip(), codes = draw.flip();
  for (int64_t k = 0; k < count; ++k) {
    const View w = draw.tensor(DType::f32, {draw.size(60), draw.size(most)});
    const auto moments = [&](int least) {
      const View view = codes ? draw.resized(w, DType::u8) : draw.like(w);
      for (int64_t i = 0; i < view.elements(); ++i) {
        const double number = codes ? static_cast<double>(draw.integer(least, 255)) : decode(view, i);
        encode(view, i, least ? number : std::fabs(number));
      }
      return view;
    };
    op.w.push_back(w), op.m.push_back(moments(1)), op.v.push_back(moments(0));
    op.grad.push_back(draw.integer(0, 2) ? draw.like(w) : draw.tensor(DType::bf16, {w.shape[0], w.shape[1]}));
    if (codes) {
      const int64_t blocks = (w.elements() + kMomentBlock - 1) / kMomentBlock;
      op.scales.push_back(draw.empty(DType::f32, {2, blocks}));
      for (int64_t i = 0; i < 2 * blocks; ++i) encode(op.scales.back(), i, draw.integer(0, 3) ? draw.uniform(0, 2) : 0);
    }
    if (models) op.model.push_back(draw.integer(0, 3) ? draw.resized(w, DType::bf16) : View());
  }
  op.hyper =
      draw.values(DType::f32, {draw.pick({1e-3, 0.02}), static_cast<double>(draw.pick<int64_t>({1, 2, 10, 5000}))});
  op.clip = draw.values(DType::f32, {2.0, draw.pick({1.0, 0.25}), draw.integer(0, 4) ? 0.0 : 1.0});
  op.decay = draw.pick({0.0f, 0.1f});
  op.clear = draw.flip();
  return op;
}

}  // namespace

template <class T>
void reference(const SumSquares& op, Sheet<T>& sheet) {
  Array<T>& out = sheet.out(op.out);
  for (size_t i = 0; i < op.x.size(); ++i) {
    double sum = 0;
    for (const T& x : sheet.in(op.x[i]).values) sum += value_of(x) * value_of(x);
    out[static_cast<int64_t>(i)] = T(sum);
  }
}

template <class T>
void reference(const ClipScale& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> partials = sheet.in(op.partials);
  Array<T>& out = sheet.out(op.out);
  T total = 0;
  for (const T& partial : partials.values) total += partial;
  const T norm = sqrt(total);
  const bool finite = std::isfinite(value_of(norm));
  out[0] = finite ? norm : T(value_of(norm));
  out[1] = T(1);
  if (op.max_norm > 0 && value_of(norm) + 1e-6 > op.max_norm) out[1] = T(op.max_norm) / (norm + T(1e-6));
  if (!finite) out[1] = T(0);
  out[2] = T(finite ? 0 : 1);
}

// The codes of a block of moments: between two of them, a backend may take either. root: of how many times the share.
template <class T>
void encode_block(const Array<T>& moments, int64_t begin, int64_t end, int root, Array<T>& codes, T& largest) {
  largest = 0;
  for (int64_t i = begin; i < end; ++i)
    if (std::fabs(value_of(moments[i])) > value_of(largest))
      largest = value_of(moments[i]) < 0 ? -moments[i] : moments[i];
  for (int64_t i = begin; i < end; ++i) {
    const double m = value_of(moments[i]), share = m == 0 ? 0 : std::fabs(m) / value_of(largest);
    const double t = std::pow(share, 1.0 / root);
    const double code = root == 2 ? 128 + std::copysign(127 * t, m) : m == 0 ? 0 : std::max(1.0, 255 * t);
    codes[i] = within(T(code), 0.26);  // the check takes twice that
  }
}

template <class T>
void reference(const AdamW& op, Sheet<T>& sheet) {
  using std::sqrt;
  const Array<T> hyper = sheet.in(op.hyper), clip = sheet.in(op.clip);
  const double t = value_of(hyper[1]);
  const double correct1 = 1 - std::pow(static_cast<double>(op.beta1), t),
               correct2 = 1 - std::pow(static_cast<double>(op.beta2), t);
  for (size_t k = 0; k < op.w.size(); ++k) {
    const Array<T> grad = sheet.in(op.grad[k]);
    Array<T>&w = sheet.update(op.w[k]), &of_m = sheet.update(op.m[k]), &of_v = sheet.update(op.v[k]);
    Array<T>* model = !op.model.empty() && op.model[k] ? &sheet.update(op.model[k]) : nullptr;
    Array<T>* scales = op.scales.empty() ? nullptr : &sheet.update(op.scales[k]);
    if (op.clear) sheet.out(op.grad[k], Sheet<T>::Check::exact);
    if (value_of(clip[2]) != 0) continue;
    const int64_t blocks = (w.size() + kMomentBlock - 1) / kMomentBlock;
    Array<T> m = of_m, v = of_v;
    for (int64_t i = 0; i < w.size() && scales; ++i) {
      const T share_m = (of_m[i] - T(128)) / T(127), share_v = of_v[i] / T(255);
      m[i] = (*scales)[i / kMomentBlock] * share_m * (value_of(share_m) < 0 ? -share_m : share_m);
      v[i] = (*scales)[blocks + i / kMomentBlock] * share_v * share_v * share_v * share_v;
    }
    for (int64_t i = 0; i < w.size(); ++i) {
      const T g = clip[1] * grad[i];
      m[i] = T(op.beta1) * m[i] + (T(1) - T(op.beta1)) * g;
      v[i] = T(op.beta2) * v[i] + (T(1) - T(op.beta2)) * g * g;
      w[i] = w[i] * (T(1) - hyper[0] * T(op.decay)) -
             hyper[0] * (m[i] / T(correct1)) / (sqrt(v[i] / T(correct2)) + T(op.eps));
      if (model) (*model)[i] = w[i];
    }
    if (!scales) of_m = m, of_v = v;
    for (int64_t block = 0; block < blocks && scales; ++block) {
      const int64_t begin = block * kMomentBlock, end = std::min<int64_t>(begin + kMomentBlock, w.size());
      encode_block(m, begin, end, 2, of_m, (*scales)[block]);
      encode_block(v, begin, end, 4, of_v, (*scales)[blocks + block]);
    }
  }
}

QENG_CONFORMANCE(SumSquares, .make = sum_squares, .free_shape = {"x"});
QENG_CONFORMANCE(ClipScale, .make = clip_scale, .free_shape = {"partials"});
QENG_CONFORMANCE(AdamW, .make = adamw);

}  // namespace qeng::conformance
