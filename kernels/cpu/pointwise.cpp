// Pointwise, by tiles whose registers stay in the cache: whole rows, as many as fit, or a part of one. A row with row
// functions is one tile, unless it is long: then its tiles are computed once for each row function, up to there.
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {
namespace {

constexpr int64_t kTile = 512;                         // elements of a register
constexpr int64_t kSummedRows = 64;                    // of a partial sum
constexpr int64_t kLongRow = 16384, kLongTile = 2048;  // a row of more is no tile; columns of its tiles

using Place = PointwisePlan::Place;

void load(const View& view, int64_t first, int64_t count, float* to, const CpuContext& context) {
  const auto from = [&](const auto* p) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(p[first + i]);
  };
  switch (view.dtype) {
    case DType::i32: return from(view.as<int32_t>());
    case DType::i64: return from(view.as<int64_t>());
    case DType::u8: return from(view.as<uint8_t>());
    default: context.isa->scale(float_type(view), at(view, first), isa::Float::f32, to, 1.0f, count);
  }
}

// spare: memory of `count`
void store(const PointwiseOutput& out, const float* from, int64_t first, int64_t count, float* spare,
           const CpuContext& context) {
  if (out.acc) {
    load(out.view, first, count, spare, context);
    context.isa->accumulate(isa::Float::f32, from, spare, count);
    from = spare;
  }
  if (out.view.dtype != DType::u8)
    return context.isa->scale(isa::Float::f32, from, float_type(out.view), at(out.view, first), 1.0f, count);
  for (int64_t i = 0; i < count; ++i) out.view.as<uint8_t>()[first + i] = from[i] != 0;
}

// A stretch of rows that follow one another, and of their columns.
struct Tile {
  int64_t row, rows, column, width;
};

class Runner {
 public:
  Runner(const Pointwise& op, const PointwisePlan& plan, CpuContext& context, int64_t width)
      : op_(op), plan_(plan), context_(context), columns_(plan.columns()), width_(width) {
    rows_ = std::max<int64_t>(1, width_ < columns_ ? 1 : kTile / std::max<int64_t>(1, columns_));
    stride_ = (width_ * rows_ + 15) / 16 * 16;
    registers_ = context.scratch.take<float>(context.threads * (plan.registers + 1) * stride_);
  }

  int64_t rows_of_tile() const { return rows_; }
  int64_t pieces_of_row() const { return (columns_ + width_ - 1) / width_; }

  // Computes a tile, writes the outputs that are no sums, and gives the others' values to sum(output, row, column,
  // width, values), row after row. Piece: which part of the rows.
  template <class Sum>
  void tile(int64_t row, int64_t rows, int64_t piece, Sum&& sum) const {
    const Tile tile = tile_of(row, rows, piece);
    float* registers = compute(tile, plan_.steps.data(), plan_.steps.size());
    finish(tile, registers, sum);
  }

  Tile tile_of(int64_t row, int64_t rows, int64_t piece) const {
    return {row, rows, piece * width_, std::min(width_, columns_ - piece * width_)};
  }
  // The calling thread's registers after so many steps.
  float* compute(const Tile& tile, const PointwiseStep* steps, size_t count) const {
    float* registers = registers_ + team_rank() * (plan_.registers + 1) * stride_;
    for (const auto [input, to] : plan_.loads) fill(input, tile, registers + to * stride_);
    context_.isa->pointwise(steps, static_cast<int64_t>(count), registers, stride_, tile.rows, tile.width);
    return registers;
  }
  int64_t stride() const { return stride_; }

  // Writes the outputs of a tile that are no sums, and gives the others' values to sum.
  template <class Sum>
  void finish(const Tile& tile, float* registers, Sum&& sum) const {
    float* spare = registers + plan_.registers * stride_;
    for (size_t i = 0; i < op_.out.size(); ++i) {
      const float* from = registers + plan_.results[i] * stride_;
      const PointwiseOutput& out = op_.out[i];
      if (plan_.is_sum[i])
        for (int64_t r = 0; r < tile.rows; ++r) sum(i, tile.row + r, tile, from + r * tile.width);
      else if (!plan_.is_row[i])
        store(out, from, tile.row * columns_ + tile.column, tile.rows * tile.width, spare, context_);
      else if (tile.column == 0)
        for (int64_t r = 0; r < tile.rows; ++r)
          store(out, from + r * tile.width, first_of(plan_.out[i], tile.row + r), 1, spare, context_);
    }
  }

  // Where a row begins.
  int64_t first_of(const Place& place, int64_t row) const {
    int64_t at = 0;
    for (int d = plan_.rank - 1; d-- > 0; row /= plan_.shape[d]) at += row % plan_.shape[d] * place.stride[d];
    return at;
  }

 private:
  void fill(size_t input, const Tile& tile, float* to) const {
    const View& view = op_.in[input];
    const Place& place = plan_.in[input];
    if (place.dense) return load(view, tile.row * columns_ + tile.column, tile.rows * tile.width, to, context_);
    const bool wide = place.stride[plan_.rank - 1] != 0;
    int64_t before = -1;
    for (int64_t r = 0; r < tile.rows; ++r, to += tile.width) {
      const int64_t first = first_of(place, tile.row + r) + (wide ? tile.column : 0);
      if (first == before) {
        std::memcpy(to, to - tile.width, static_cast<size_t>(tile.width) * sizeof(float));
        continue;
      }
      before = first;
      load(view, first, wide ? tile.width : 1, to, context_);
      if (!wide) std::fill(to + 1, to + tile.width, to[0]);
    }
  }

  const Pointwise& op_;
  const PointwisePlan& plan_;
  CpuContext& context_;
  const int64_t columns_, width_;  // of a row, of a tile
  int64_t rows_, stride_;          // of a tile; floats of a register
  float* registers_;
};

int64_t width_of(const PointwisePlan& plan) { return plan.reduces ? plan.columns() : std::min(plan.columns(), kTile); }

// Rows whose functions are of more columns than a tile should have: for each function all tiles up to there, each of
// which gives its part; what the parts make is a constant from then on.
void run_long(const Pointwise& op, const PointwisePlan& plan, CpuContext& context) {
  const Runner runner(op, plan, context, kLongTile);
  const int64_t pieces = runner.pieces_of_row();
  float* parts = context.scratch.take<float>(pieces);
  for (int64_t row = 0; row < plan.rows(); ++row) {
    std::vector<PointwiseStep> steps = plan.steps;
    for (size_t i = 0; i < steps.size(); ++i) {
      const PointwiseStep step = steps[i];
      if (!is_row_fn(step.fn)) continue;
      parallel_for(context.threads, pieces, 1, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece)
          parts[piece] = runner.compute(runner.tile_of(row, 1, piece), steps.data(), i + 1)[step.to * runner.stride()];
      });
      double all = static_cast<double>(parts[0]);
      for (int64_t piece = 1; piece < pieces; ++piece) {
        const double part = static_cast<double>(parts[piece]);
        if (step.fn == Fn::row_sum)
          all += part;
        else if (!(step.fn == Fn::row_max ? part <= all : part >= all))  // NaN stays
          all = all != all ? all : part;
      }
      steps[i] = {Fn::constant, step.to, 0, 0, 0, static_cast<float>(all)};
    }
    parallel_for(context.threads, pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t piece = begin; piece < end; ++piece) {
        const Tile tile = runner.tile_of(row, 1, piece);
        runner.finish(tile, runner.compute(tile, steps.data(), steps.size()), [](auto...) {});
      }
    });
  }
}

// With sums: rows are kept ones times summed ones. Blocks of summed rows make partial sums, which are added in order.
void run_sums(const Pointwise& op, const PointwisePlan& plan, CpuContext& context) {
  const Runner runner(op, plan, context, width_of(plan));
  int64_t inner = 1, summed = 1;  // kept rows in a summed one
  for (int d = plan.sum_begin; d < plan.sum_end; ++d) summed *= plan.shape[d];
  for (int d = plan.sum_end; d + 1 < plan.rank; ++d) inner *= plan.shape[d];
  const int64_t columns = plan.columns(), kept = summed ? plan.rows() / summed : 0;
  const int64_t blocks = (summed + kSummedRows - 1) / kSummedRows;
  std::vector<float*> partial(op.out.size());
  for (size_t i = 0; i < op.out.size(); ++i)
    if (plan.is_sum[i]) partial[i] = context.scratch.take<float>(kept * blocks * columns);
  const int64_t pieces = runner.pieces_of_row();
  parallel_for(context.threads, kept * blocks * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t piece = unit % pieces, block = unit / pieces % blocks, k = unit / pieces / blocks;
      const int64_t from = block * kSummedRows, to = std::min(summed, from + kSummedRows);
      const auto add = [&](size_t i, int64_t row, const Tile& tile, const float* values) {
        float* sum = partial[i] + (k * blocks + block) * columns + tile.column;
        const int64_t s = row / inner % summed;
        if (s == from)
          std::memcpy(sum, values, static_cast<size_t>(tile.width) * sizeof(float));
        else
          context.isa->accumulate(isa::Float::f32, values, sum, tile.width);
      };
      const int64_t first = k / inner * summed * inner + k % inner;
      if (inner > 1)
        for (int64_t s = from; s < to; ++s) runner.tile(first + s * inner, 1, piece, add);
      else
        for (int64_t s = from; s < to; s += runner.rows_of_tile())
          runner.tile(first + s, std::min(runner.rows_of_tile(), to - s), piece, add);
    }
  });
  for (size_t i = 0; i < op.out.size(); ++i) {
    if (!plan.is_sum[i]) continue;
    const int64_t outputs = op.out[i].view.elements() / columns;
    float* total = context.scratch.take<float>(2 * outputs * columns);
    std::fill(total, total + outputs * columns, 0.0f);
    for (int64_t k = 0; k < outputs && blocks > 0; ++k)
      parallel_for(context.threads, columns, 1024, [&](int64_t begin, int64_t end) {
        for (int64_t block = 0; block < blocks; ++block)
          context.isa->accumulate(isa::Float::f32, partial[i] + (k * blocks + block) * columns + begin,
                                  total + k * columns + begin, end - begin);
      });
    store(op.out[i], total, 0, outputs * columns, total + outputs * columns, context);
  }
}

}  // namespace

void run(const Pointwise& op, CpuContext& context) {
  const PointwisePlan plan = plan_of(op);
  if (plan.columns() == 0) return;
  if (plan.sum_end > plan.sum_begin) return run_sums(op, plan, context);
  if (plan.reduces && plan.columns() > kLongRow) return run_long(op, plan, context);
  const Runner runner(op, plan, context, width_of(plan));
  const int64_t tiles = (plan.rows() + runner.rows_of_tile() - 1) / runner.rows_of_tile();
  const int64_t pieces = runner.pieces_of_row();
  const int64_t grain = std::max<int64_t>(1, 2048 / std::min<int64_t>(2048, plan.columns() * runner.rows_of_tile()));
  parallel_for(context.threads, tiles * pieces, grain, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t row = unit / pieces * runner.rows_of_tile();
      runner.tile(row, std::min(runner.rows_of_tile(), plan.rows() - row), unit % pieces, [](auto...) {});
    }
  });
}

}  // namespace qeng
