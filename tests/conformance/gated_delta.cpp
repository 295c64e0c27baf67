// GatedDelta and its gradient. The reference goes row by row (section 3.1 of arXiv 2412.06464), where backends go by
// chunks, so its operations do not bound theirs. What does: an error of a column of S is not made larger by a step,
// whose matrix e^g (I - beta k k^T) has norm 1 at most. So errors add up, each as large as a sum's worst case on the
// numbers at hand.
#include <algorithm>
#include <cmath>

#include "tests/conformance/table.h"

namespace qeng::conformance {
namespace {

using Numbers = std::vector<double>;

template <class AnyOp>
void draw_operands(Draw& draw, AnyOp& op, DType dtype, int64_t rows) {
  DeltaShape& shape = op.shape;
  op.x = draw.tensor(dtype, {rows, shape.columns()}, draw.pick({1.0, 1.0, 0.05}));
  const double slowness = draw.pick({1.0, 0.1, 1e-4});  // e^-1e-4 remembers 10,000 rows
  op.g = draw.tensor(DType::f32, {rows, shape.value_heads});
  op.beta = draw.tensor(DType::f32, {rows, shape.value_heads});
  for (int64_t i = 0; i < op.g.elements(); ++i) {
    encode(op.g, i, draw.integer(0, 40) ? -slowness * std::fabs(decode(op.g, i)) : draw.pick({0.0, -80.0}));
    encode(op.beta, i, draw.integer(0, 20) ? draw.uniform(0, 1) : draw.pick({0.0, 1.0}));
  }
}

// Few heads where they are large: that they are apart small ones tell as well.
DeltaShape drawn_shape(Draw& draw, bool small) {
  DeltaShape shape;
  shape.key_dim = small ? 16 : draw.pick<int64_t>({16, 16, 32, 32, 64, 80, 128, 208, 256});
  shape.value_dim = small ? 16 : draw.pick<int64_t>({16, 16, 32, 32, 64, 112, 128, 144, 256});
  const int64_t most = small || shape.key_dim * shape.value_dim <= 32 * 64 ? 3 : 1;
  shape.key_heads = draw.integer(1, small ? 1 : most);
  shape.value_heads = shape.key_heads * draw.integer(1, small || most == 1 ? 2 : most);
  return shape;
}

// Sequences of which some rows are kept in pages of `op`, and more come.
void draw_pages(Draw& draw, GatedDelta& op, DType dtype) {
  const int64_t sequences = draw.integer(1, 3), page = kDeltaChunk * draw.integer(1, 3);
  const DeltaShape& shape = op.shape;
  Numbers cu{0}, lengths, begun;
  int64_t most = 1;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t rows = draw.integer(0, 4) == 0 ? 0 : draw.flip() ? 1 : draw.size(150);
    begun.push_back(static_cast<double>(draw.flip() ? draw.size(200) : kDeltaChunk * draw.integer(0, 3)));
    cu.push_back(cu.back() + static_cast<double>(rows)), lengths.push_back(begun.back() + static_cast<double>(rows));
    most = std::max(most, (static_cast<int64_t>(lengths.back()) + page - 1) / page);
  }
  const int64_t pages = most * sequences + draw.integer(0, 2);
  Numbers table;
  for (int64_t i = 0; i < most * sequences; ++i) table.push_back(static_cast<double>(most * sequences - 1 - i));
  op.page_tokens = page;
  op.state = draw.empty(DType::f32, {pages, shape.state()}), op.rows = draw.empty(DType::f32, {pages, shape.rows()});
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t kept = static_cast<int64_t>(begun[static_cast<size_t>(s)]);
    if (kept == 0) continue;
    const int64_t at = static_cast<int64_t>(table[static_cast<size_t>(s * most + (kept - 1) / page)]);
    for (int64_t i = 0; i < shape.state(); ++i) encode(op.state, at * shape.state() + i, 0.3 * draw.normal());
    const int64_t group = shape.group(), of_key = shape.rows() / shape.key_heads;
    for (int64_t h = 0; h < shape.key_heads; ++h)
      for (int64_t j = 0; j <= (kept - 1) % kDeltaChunk; ++j) {
        const int64_t keys = at * shape.rows() + h * of_key, deltas = keys + kDeltaChunk * shape.key_dim,
                      sums = deltas + kDeltaChunk * group * shape.value_dim;
        for (int64_t d = 0; d < shape.key_dim; ++d)
          encode(op.rows, keys + d * kDeltaChunk + j, draw.normal() / std::sqrt(static_cast<double>(shape.key_dim)));
        for (int64_t v = 0; v < group; ++v) {
          for (int64_t c = 0; c < shape.value_dim; ++c)
            encode(op.rows, deltas + (v * kDeltaChunk + j) * shape.value_dim + c, draw.normal());
          encode(op.rows, sums + v * kDeltaChunk + j, -0.02 * static_cast<double>(j + v));
        }
      }
  }
  draw_operands(draw, op, dtype, std::max<int64_t>(1, static_cast<int64_t>(cu.back()) + draw.integer(0, 2)));
  op.cu = draw.values(DType::i32, cu), op.lengths = draw.values(DType::i32, lengths);
  op.pages = draw.values(DType::i32, table);
  op.pages.rank = 2, op.pages.shape[0] = sequences, op.pages.shape[1] = most;
}

Op gated_delta(Draw& draw) {
  draw.sometimes_misalign();
  GatedDelta op;
  op.shape = drawn_shape(draw, false);
  const DType dtype = draw.float_dtype();
  if (draw.flip()) {
    draw_pages(draw, op, dtype);
  } else {
    const Documents documents = draw.documents(4, 200);
    op.cu = documents.cu_q;
    draw_operands(draw, op, dtype, documents.queries);
  }
  op.o = draw.empty(dtype, {op.x.shape[0], op.shape.value_heads * op.shape.value_dim});
  return op;
}

GatedDeltaGrad gradient_of(Draw& draw, const DeltaShape& shape, DType dtype, const Documents& documents) {
  GatedDeltaGrad op;
  op.shape = shape, op.cu = documents.cu_q;
  draw_operands(draw, op, dtype, documents.queries);
  op.dout = draw.tensor(dtype, {op.x.shape[0], shape.value_heads * shape.value_dim});
  op.dx = draw.empty_like(op.x), op.dg = draw.empty_like(op.g), op.dbeta = draw.empty_like(op.beta);
  return op;
}

Op gated_delta_grad(Draw& draw) {
  draw.sometimes_misalign();
  const DeltaShape shape = drawn_shape(draw, false);
  const DType dtype = draw.float_dtype();
  return gradient_of(draw, shape, dtype, draw.documents(3, 200));
}

Chain gated_delta_chain(Draw& draw) {
  const GatedDeltaGrad gradient = gradient_of(draw, drawn_shape(draw, true), DType::f32, draw.documents(3, 9));
  GatedDelta forward;
  forward.x = gradient.x, forward.g = gradient.g, forward.beta = gradient.beta, forward.cu = gradient.cu;
  forward.shape = gradient.shape, forward.o = draw.empty_like(gradient.dout);
  const Pairs pairs = {{gradient.x, gradient.dx}, {gradient.g, gradient.dg}, {gradient.beta, gradient.dbeta}};
  return {forward, {gradient}, forward.o, gradient.dout, pairs};
}

double norm(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  return std::sqrt(sum);
}

template <class T>
Numbers numbers(const Array<T>& array) {
  Numbers list;
  for (int64_t i = 0; i < array.size(); ++i) list.push_back(value_of(array[i]));
  return list;
}

// x / sqrt(|x|^2 + eps)
Numbers normalised(const double* x, int64_t n, double eps, double& inverse) {
  Numbers y(x, x + n);
  inverse = 1 / std::sqrt(norm(x, n) * norm(x, n) + eps);
  for (double& each : y) each *= inverse;
  return y;
}

// What a step of a value head does, and the state [key_dim, value_dim] before and after it.
struct Step {
  Numbers q, k, v, old, read, delta;  // old: decayed; read: old^T k
  double decay, beta, q_inverse, k_inverse;
};

// Step by step from the state S, which becomes what it is after this row. sources: x, g and beta as numbers.
template <class AnyOp>
Step step_of(const AnyOp& op, const Numbers& x, const Numbers& g, const Numbers& beta, int64_t row, int64_t head,
             Numbers& s) {
  const DeltaShape& shape = op.shape;
  const int64_t dim = shape.key_dim, wide = shape.value_dim, key = head / shape.group();
  const double* at = x.data() + row * shape.columns();
  Step step;
  step.q = normalised(at + key * dim, dim, op.eps, step.q_inverse);
  for (double& each : step.q) each /= std::sqrt(static_cast<double>(dim));
  step.k = normalised(at + (shape.key_heads + key) * dim, dim, op.eps, step.k_inverse);
  const double* v = at + 2 * shape.key_heads * dim + head * wide;
  step.v.assign(v, v + wide);
  step.decay = std::exp(g[static_cast<size_t>(row * shape.value_heads + head)]);
  step.beta = beta[static_cast<size_t>(row * shape.value_heads + head)];
  step.read.assign(static_cast<size_t>(wide), 0), step.delta = step.read;
  for (double& each : s) each *= step.decay;
  step.old = s;
  for (size_t d = 0; d < step.k.size(); ++d)
    for (size_t c = 0; c < step.v.size(); ++c) step.read[c] += s[d * step.v.size() + c] * step.k[d];
  for (size_t c = 0; c < step.v.size(); ++c) step.delta[c] = step.beta * (step.v[c] - step.read[c]);
  for (size_t d = 0; d < step.k.size(); ++d)
    for (size_t c = 0; c < step.v.size(); ++c) s[d * step.v.size() + c] += step.k[d] * step.delta[c];
  return step;
}

}  // namespace

template <class T>
void reference(const GatedDelta& op, Sheet<T>& sheet) {
  const DeltaShape& shape = op.shape;
  const int64_t dim = shape.key_dim, wide = shape.value_dim, group = shape.group(), page_rows = op.page_tokens;
  const Numbers x = numbers(sheet.in(op.x)), g = numbers(sheet.in(op.g)), beta = numbers(sheet.in(op.beta));
  const auto cu = sheet.integers(op.cu);
  Array<T>& o = sheet.out(op.o);
  Array<T>* state = op.state ? &sheet.update(op.state) : nullptr;
  Array<T>* rows = op.state ? &sheet.update(op.rows) : nullptr;
  const Array<T> old_state = state ? *state : Array<T>(), old_rows = rows ? *rows : Array<T>();
  const auto lengths = op.state ? sheet.integers(op.lengths) : cu, pages = op.state ? sheet.integers(op.pages) : cu;
  const double unit = 0x1p-24 * static_cast<double>(dim + kDeltaChunk + 16);
  for (int64_t s = 0; s + 1 < static_cast<int64_t>(cu.size()); ++s)
    for (int64_t head = 0; head < shape.value_heads && cu[static_cast<size_t>(s)] < cu[static_cast<size_t>(s) + 1];
         ++head) {
      const int64_t first = cu[static_cast<size_t>(s)], last = cu[static_cast<size_t>(s) + 1];
      const int64_t begun = op.state ? lengths[static_cast<size_t>(s)] - (last - first) : 0;
      Numbers S(static_cast<size_t>(dim * wide), 0), size(static_cast<size_t>(wide), 0), error = size;
      const auto page = [&](int64_t t) { return pages[static_cast<size_t>(s * op.pages.shape[1] + t / page_rows)]; };
      const int64_t keys = head / group * (shape.rows() / shape.key_heads),
                    deltas = keys + kDeltaChunk * (dim + head % group * wide),
                    sums = keys + kDeltaChunk * (dim + group * wide + head % group);
      double sum = 0;
      if (begun > 0) {  // what the rows kept so far make of the state
        const int64_t at = page(begun - 1), count = (begun - 1) % kDeltaChunk + 1;
        const auto kept = [&](int64_t place) { return value_of(old_rows[at * shape.rows() + place]); };
        sum = kept(sums + count - 1);
        for (int64_t i = 0; i < dim * wide; ++i)
          S[static_cast<size_t>(i)] = std::exp(sum) * value_of(old_state[at * shape.state() + head * dim * wide + i]);
        for (int64_t j = 0; j < count; ++j)
          for (int64_t c = 0; c < wide; ++c) {
            const double weight = std::exp(sum - kept(sums + j)) * kept(deltas + j * wide + c);
            size[static_cast<size_t>(c)] += 2 * std::fabs(weight);
            for (int64_t d = 0; d < dim; ++d)
              S[static_cast<size_t>(d * wide + c)] += weight * kept(keys + d * kDeltaChunk + j);
          }
        for (int64_t c = 0; c < wide; ++c) size[static_cast<size_t>(c)] += 2 * std::sqrt(static_cast<double>(dim));
      }
      for (int64_t t = begun; t < begun + last - first; ++t) {
        const int64_t row = first + t - begun;
        if (t % kDeltaChunk == 0) sum = 0;
        for (int64_t i = 0; state && t % kDeltaChunk == 0 && i < dim * wide; ++i)
          (*state)[page(t) * shape.state() + head * dim * wide + i] =
              within(T(S[static_cast<size_t>(i)]),
                     error[static_cast<size_t>(i % wide)] + unit * size[static_cast<size_t>(i % wide)]);
        const Step step = step_of(op, x, g, beta, row, head, S);
        sum += std::log(step.decay);
        for (int64_t c = 0; c < wide; ++c) {
          const size_t i = static_cast<size_t>(c);
          error[i] = step.decay * error[i] + unit * (size[i] + std::fabs(step.v[i]) + 1e-30);
          size[i] = step.decay * size[i] + std::fabs(step.delta[i]);
          double out = 0;
          for (int64_t d = 0; d < dim; ++d)
            out += S[static_cast<size_t>(d * wide + c)] * step.q[static_cast<size_t>(d)];
          const double of_o = error[i] + unit * size[i];
          o[row * op.o.columns() + head * wide + c] = within(T(out), of_o * norm(step.q.data(), dim));
          if (rows)
            (*rows)[page(t) * shape.rows() + deltas + t % kDeltaChunk * wide + c] = within(T(step.delta[i]), of_o);
        }
        if (!rows) continue;
        (*rows)[page(t) * shape.rows() + sums + t % kDeltaChunk] =
            within(T(sum), 0x1p-24 * static_cast<double>(kDeltaChunk) * (std::fabs(sum) + 1e-30));
        for (int64_t d = 0; d < dim; ++d)
          (*rows)[page(t) * shape.rows() + keys + d * kDeltaChunk + t % kDeltaChunk] =
              within(T(step.k[static_cast<size_t>(d)]), unit * std::fabs(step.k[static_cast<size_t>(d)]));
      }
    }
}

template <class T>
void reference(const GatedDeltaGrad& op, Sheet<T>& sheet) {
  const DeltaShape& shape = op.shape;
  const int64_t dim = shape.key_dim, wide = shape.value_dim, group = shape.group(), columns = shape.columns();
  const Numbers x = numbers(sheet.in(op.x)), g = numbers(sheet.in(op.g)), beta = numbers(sheet.in(op.beta)),
                dout = numbers(sheet.in(op.dout));
  const auto cu = sheet.integers(op.cu);
  Array<T>&dx = sheet.out(op.dx), &dg = sheet.out(op.dg), &dbeta = sheet.out(op.dbeta);
  for (size_t document = 0; document + 1 < cu.size(); ++document) {
    const int64_t first = cu[document], last = cu[document + 1];
    // The gradients of normalised q and k, over the value heads that read them, and their bounds.
    Numbers dq(static_cast<size_t>((last - first) * shape.key_heads * dim), 0), dk = dq;
    Numbers bound(static_cast<size_t>((last - first) * shape.key_heads), 0), q_inverse = bound, k_inverse = bound;
    std::vector<Numbers> of_q(bound.size()), of_k(bound.size());
    for (int64_t head = 0; head < shape.value_heads; ++head) {
      Numbers S(static_cast<size_t>(dim * wide), 0), dS = S;
      std::vector<Step> steps;
      std::vector<Numbers> after;
      double largest = 0, largest_d = 0, largest_v = 0;  // lengths: of the state, of its gradient and dout, of v
      for (int64_t row = first; row < last; ++row) {
        steps.push_back(step_of(op, x, g, beta, row, head, S));
        after.push_back(S);
        largest = std::max(largest, norm(S.data(), dim * wide));
        largest_v = std::max(largest_v, norm(steps.back().v.data(), wide));
      }
      largest += largest_v;
      const double unit = 0x1p-24 * static_cast<double>((dim + wide + kDeltaChunk) * (last - first));
      for (int pass = 0; pass < 2; ++pass) {  // the first for the bounds
        std::fill(dS.begin(), dS.end(), 0.0);
        for (int64_t row = last - 1; row >= first; --row) {
          const Step& step = steps[static_cast<size_t>(row - first)];
          const Numbers& now = after[static_cast<size_t>(row - first)];
          const double* out = dout.data() + row * shape.value_heads * wide + head * wide;
          const int64_t key = (row - first) * shape.key_heads + head / group;
          Numbers ddelta(static_cast<size_t>(wide), 0);
          double of_beta = 0, of_g = 0;
          for (int64_t d = 0; d < dim; ++d)
            for (int64_t c = 0; c < wide; ++c) {
              const size_t i = static_cast<size_t>(d * wide + c);
              dS[i] += step.q[static_cast<size_t>(d)] * out[c];
              if (pass) dq[static_cast<size_t>(key * dim + d)] += now[i] * out[c];
              ddelta[static_cast<size_t>(c)] += dS[i] * step.k[static_cast<size_t>(d)];
            }
          largest_d = std::max(largest_d, norm(dS.data(), dim * wide) + norm(out, wide));
          for (int64_t c = 0; c < wide; ++c) {
            const size_t i = static_cast<size_t>(c);
            of_beta += ddelta[i] * (step.v[i] - step.read[i]);
            if (pass)
              dx[row * columns + 2 * shape.key_heads * dim + head * wide + c] =
                  within(T(step.beta * ddelta[i]), unit * largest_d);
          }
          for (int64_t d = 0; d < dim; ++d)
            for (int64_t c = 0; c < wide; ++c) {
              const size_t i = static_cast<size_t>(d * wide + c), column = static_cast<size_t>(c);
              const double dread = -step.beta * ddelta[column];
              if (pass) dk[static_cast<size_t>(key * dim + d)] += dS[i] * step.delta[column] + step.old[i] * dread;
              dS[i] += step.k[static_cast<size_t>(d)] * dread;
              of_g += dS[i] * step.old[i];
              dS[i] *= step.decay;
            }
          if (!pass) continue;
          bound[static_cast<size_t>(key)] += 2 * unit * largest * largest_d;
          q_inverse[static_cast<size_t>(key)] = step.q_inverse, k_inverse[static_cast<size_t>(key)] = step.k_inverse;
          of_q[static_cast<size_t>(key)] = step.q, of_k[static_cast<size_t>(key)] = step.k;
          dbeta[row * shape.value_heads + head] = within(T(of_beta), 2 * unit * largest * largest_d);
          dg[row * shape.value_heads + head] = within(T(of_g), 2 * unit * largest * largest_d);
        }
      }
    }
    for (int64_t row = first; row < last; ++row)
      for (int64_t key = 0; key < shape.key_heads; ++key) {
        const size_t at = static_cast<size_t>((row - first) * shape.key_heads + key);
        const double factor = 1 / std::sqrt(static_cast<double>(dim));
        // y = factor x inverse:  dx = inverse (factor dy - y <y, dy> / factor)
        const auto pass_norm = [&](const Numbers& y, const Numbers& all, double inverse, double scale, int64_t to) {
          double along = 0;
          for (int64_t d = 0; d < dim; ++d)
            along += y[static_cast<size_t>(d)] * all[at * static_cast<size_t>(dim) + static_cast<size_t>(d)] / scale;
          for (int64_t d = 0; d < dim; ++d) {
            const double dy = all[at * static_cast<size_t>(dim) + static_cast<size_t>(d)];
            dx[row * columns + to + d] =
                within(T(inverse * (scale * dy - y[static_cast<size_t>(d)] * along)), 2 * inverse * scale * bound[at]);
          }
        };
        pass_norm(of_q[at], dq, q_inverse[at], factor, key * dim);
        pass_norm(of_k[at], dk, k_inverse[at], 1, (shape.key_heads + key) * dim);
      }
  }
}

QENG_CONFORMANCE(GatedDelta, .make = gated_delta, .free_shape = {"cu", "pages", "lengths", "state", "rows"});
QENG_CONFORMANCE(GatedDeltaGrad, .make = gated_delta_grad, .free_shape = {"cu"},
                 .derivatives = {{"gated_delta", gated_delta_chain}});

}  // namespace qeng::conformance
