#include "kernels/cpu/column_sums.h"

namespace qeng {

namespace {

// Calls f(row, rows, group) over the rows of tokens begin .. end that share weights: all of them, or one group's.
template <class F>
void each_group(int64_t groups, int64_t begin, int64_t end, F f) {
  if (groups == 1) return f(begin, end - begin, int64_t{0});
  for (int64_t row = begin * groups; row < end * groups; ++row) f(row, int64_t{1}, row % groups);
}

int64_t groups_of(const View& w) { return w.rank == 2 ? w.shape[0] : 1; }

}  // namespace

void run(const RmsNorm& op, CpuContext& context) {
  const int64_t dim = op.x.columns(), groups = groups_of(op.w), tokens = op.x.rows() / groups;
  parallel_for(context.threads, tokens, grain_rows(groups * dim), [&](int64_t begin, int64_t end) {
    each_group(groups, begin, end, [&](int64_t row, int64_t rows, int64_t group) {
      context.isa->rmsnorm(float_type(op.x), at(op.x, row * dim), at(op.w, group * dim), at(op.y, row * dim),
                           op.rstd.as<float>() + row, rows, dim, op.eps, op.plus_one);
    });
  });
}

void run(const AddRmsNorm& op, CpuContext& context) {
  const int64_t dim = op.a.columns(), rows = op.a.rows();
  parallel_for(context.threads, rows, grain_rows(dim), [&](int64_t begin, int64_t end) {
    const isa::Float type = float_type(op.a);
    for (int64_t r = begin; r < end; ++r) {  // row by row: the norm finds the sum in the first cache
      void* sum = at(op.sum, r * dim);
      context.isa->add(type, at(op.a, r * dim), at(op.b, r * dim), sum, dim);
      context.isa->rmsnorm(type, sum, op.w.data, at(op.y, r * dim), op.rstd.as<float>() + r, 1, dim, op.eps,
                           op.plus_one);
    }
  });
}

void run(const RmsNormGrad& op, CpuContext& context) {
  const int64_t dim = op.x.columns(), groups = groups_of(op.w), tokens = op.x.rows() / groups;
  const auto grad = [&](int64_t begin, int64_t end, float* dw) {
    each_group(groups, begin, end, [&](int64_t row, int64_t rows, int64_t group) {
      context.isa->rmsnorm_grad(float_type(op.x), at(op.x, row * dim), at(op.w, group * dim), op.rstd.as<float>() + row,
                                at(op.dy, row * dim), op.dresidual ? at(op.dresidual, row * dim) : nullptr,
                                at(op.dx, row * dim), dw ? dw + group * dim : nullptr, rows, dim, op.plus_one);
    });
  };
  if (op.dw) return column_sums(context, tokens, groups * dim, op.dw.as<float>(), op.acc_dw, grad);
  parallel_for(context.threads, tokens, grain_rows(groups * dim),
               [&](int64_t begin, int64_t end) { grad(begin, end, nullptr); });
}

}  // namespace qeng
