// Pointwise: its program (pointwise_program.h), row after row. Row functions add up pieces of a row, in order, so that a
// row may be computed by one thread or by several.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pointwise_program.h"

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace qeng {
namespace {

// After this other threads see what was written past the caches, which only x86 has instructions for here.
void finish_past() {
#ifdef __SSE2__
  _mm_sfence();
#endif
}

constexpr int64_t kPiece = 4096;           // columns that row functions add up in f32, and what threads share a row by
constexpr int64_t kSummedRows = 64;        // of a partial sum
constexpr int64_t kKeptColumns = 1 << 17;  // of a longer row nothing is kept: it would leave the cache
constexpr int64_t kGroupColumns = 2048;    // of rows side by side: what a thread has of them stays in its first cache
constexpr int64_t kShortRow = 64;          // columns: such rows lie end to end in tiles of
constexpr int64_t kFolded = 512;
constexpr int64_t kLongRow = 4 * kPiece;  // columns of a row that is worth several threads

// An operation on more memory than caches hold: its results are written past them, and rows are fetched ahead, which
// the processor does by itself only within one.
constexpr size_t kLarge = size_t{32} << 20;

using Phase = PointwiseProgram::Phase;

bool is_large(const Pointwise& op) {
  size_t bytes = 0;
  for (const View& view : op.in) bytes += view.bytes();
  for (const PointwiseOutput& out : op.out) bytes += out.view.bytes();
  return bytes >= kLarge;
}

float element(const View& view, int64_t i) {
  switch (view.dtype) {
    case DType::f32: return view.as<float>()[i];
    case DType::bf16: return to_f32(view.as<bf16>()[i]);
    case DType::f16: return to_f32(view.as<f16>()[i]);
    case DType::i32: return static_cast<float>(view.as<int32_t>()[i]);
    case DType::i64: return static_cast<float>(view.as<int64_t>()[i]);
    default: return static_cast<float>(view.as<uint8_t>()[i]);
  }
}

void put_element(const PointwiseOutput& out, int64_t i, float value) {
  const View& view = out.view;
  if (out.acc) value = element(view, i) + value;
  switch (view.dtype) {
    case DType::f32: return put(view.as<float>() + i, value);
    case DType::bf16: return put(view.as<bf16>() + i, value);
    case DType::f16: return put(view.as<f16>() + i, value);
    default: view.as<uint8_t>()[i] = value != 0;
  }
}

// Whether rows are short, and lie one after the other where outputs are summed over them.
bool folds(const Pointwise& op, const PointwiseSpace& space) {
  size_t streams = 0;  // that it takes
  for (const PointwiseNode& node : op.nodes) streams += is_row_fn(node.fn) ? 2 : 0;
  const bool side_by_side = space.sum_end == 0 || space.sum_end == space.rank - 1;
  return space.columns() <= kShortRow && space.rank > 1 && side_by_side &&
         streams + 2 * op.out.size() <= kMostPointwiseInputs * 2;
}

// What the pieces of a row make of a row function.
class Total {
 public:
  explicit Total(Fn fn) : fn_(fn) {}
  void add(float part) {
    const auto value = static_cast<double>(part);
    if (first_)
      all_ = value;
    else if (fn_ == Fn::row_sum)
      all_ += value;
    else if (all_ == all_ && !(fn_ == Fn::row_max ? value <= all_ : value >= all_))  // NaN stays
      all_ = value;
    first_ = false;
  }
  float value() const { return static_cast<float>(all_); }

 private:
  Fn fn_;
  double all_ = 0;
  bool first_ = true;
};

// A program, and memory for each thread to run it in.
class Runner {
 public:
  Runner(const Pointwise& op, const PointwiseSpace& space, CpuContext& context)
      : op_(op),
        space_(space),
        isa_(*context.isa),
        columns_(space.columns()),
        rows_(space.rows()),
        large_(is_large(op)),
        folded_(folds(op, space)),
        program_(program_of(op, space, {columns_ <= kKeptColumns, large_ && !folded_, folded_}, *context.isa)) {
    for (const View& view : op.in) {
      sizes_.push_back(static_cast<int64_t>(dtype_size(view.dtype)));
      elements_.push_back(view.elements());
    }
    for (size_t i = 0; i < op.out.size(); ++i)
      sizes_.push_back(space.is_sum[i] ? 4 : static_cast<int64_t>(dtype_size(op.out[i].view.dtype)));
    const size_t streams = op.in.size() + op.out.size();
    group_ = !space.reduces || folded_ ? 1 : static_cast<size_t>(std::clamp<int64_t>(kGroupColumns / columns_, 1, 8));
    fold_ = folded_ ? kFolded / columns_ : 1;
    const int64_t whole = (fold_ * columns_ + isa::kMostBlock - 1) / isa::kMostBlock * isa::kMostBlock + isa::kCell;
    for (size_t i = 0; folded_ && i < op.in.size(); ++i)
      if (!space.in[i].dense) expanded_.push_back(i), sizes_[i] = 4, elements_[i] = INT64_MAX;
    frames_.resize(static_cast<size_t>(context.threads) * group_);
    const auto frames = static_cast<int64_t>(frames_.size()), rests = static_cast<int64_t>(streams) * kRest;
    const int64_t floats =
        program_.floats + (program_.kept + static_cast<int64_t>(expanded_.size())) * whole;  // of a frame
    float* memory = context.scratch.take<float>(frames * floats);
    char* rest = context.scratch.take<char>(frames * rests);
    std::memset(rest, 0, static_cast<size_t>(frames * rests));
    for (Own& own : frames_) {
      own.frame.memory = memory;
      own.rest = rest;
      memory += program_.floats, rest += rests;
      const auto give = [&](size_t stream) {
        own.frame.stream[stream] = reinterpret_cast<char*>(memory);
        memory += whole;
      };
      for (int k = 0; k < program_.kept; ++k) give(kept_stream(k));
      for (const size_t i : expanded_) give(i);
      for (const auto& [at, value] : program_.constants) set_cell(own.frame, at, value);
    }
  }

  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  int64_t pieces() const { return space_.reduces ? 1 : (columns_ + kPiece - 1) / kPiece; }

  // Of outputs that are summed over rows: where column 0 of the sum lies, for the calling thread.
  void sum_into(size_t out, float* sum) {
    // Of folded rows it is what each is added to.
    for (size_t i = 0; i < group_; ++i) mine()[i].frame.stream[op_.in.size() + out] = reinterpret_cast<char*>(sum);
  }

  // So many rows, each `step` after the one before; where there are no row functions, one of their pieces.
  void run(int64_t row, int64_t step, int64_t count, int64_t piece) {
    Own* own = mine();
    for (; folded_ && count > 0; count -= fold_, row += fold_) run_folded(*own, row, std::min(count, fold_));
    for (; count > 0; count -= static_cast<int64_t>(group_)) {
      Own* end = own + std::min<int64_t>(count, static_cast<int64_t>(group_));
      for (Own* each = own; each < end; ++each, row += step) go_to(*each, row);
      for (const Phase& phase : program_.phases)
        for (Own* each = own; each < end; ++each) run(*each, phase, piece);
      for (Own* each = own; piece == 0 && each < end; ++each) write_row(*each);
    }
    if (large_) finish_past();
  }

  // A row whose pieces all threads share: each phase is a region.
  void run_together(int64_t row, CpuContext& context) {
    const int64_t pieces = (columns_ + kPiece - 1) / kPiece;
    for (Own& own : frames_) {
      go_to(own, row);
      for (int k = 0; k < program_.kept; ++k)
        own.frame.stream[kept_stream(k)] = frames_[0].frame.stream[kept_stream(k)];
    }
    for (const Phase& phase : program_.phases) {
      for (Own& own : frames_) of_row(own, phase);
      const size_t count = phase.reductions.size();
      parts_.resize(count * static_cast<size_t>(pieces));
      if (!phase.of_columns.empty())
        parallel_for(context.threads, pieces, 1, [&](int64_t first, int64_t end) {
          Own& own = *mine();
          for (int64_t piece = first; piece < end; ++piece) {
            reduce(own, phase, piece * kPiece,
                   [&](size_t r, float part) { parts_[static_cast<size_t>(piece) * count + r] = part; });
          }
          if (large_) finish_past();
        });
      for (size_t r = 0; r < count; ++r) {
        Total total(phase.reductions[r].fn);
        for (int64_t piece = 0; piece < pieces; ++piece) total.add(parts_[static_cast<size_t>(piece) * count + r]);
        for (Own& own : frames_) set_cell(own.frame, phase.reductions[r].cell, total.value());
      }
    }
    write_row(frames_[0]);
  }

 private:
  static constexpr int64_t kRest = isa::kMostBlock * 8;  // bytes of a block of any dtype

  struct alignas(128) Own {  // of a thread: no two on one line of the cache, nor on neighbours, which are read together
    isa::Frame frame;
    char* rest = nullptr;                     // for each stream a block, for what there is of a last one
    int64_t row = -1;                         // whose streams the frame has
    int64_t room[kMostPointwiseInputs] = {};  // elements of each input from there on
    std::vector<Total> totals;
  };

  Own* mine() { return &frames_[static_cast<size_t>(team_rank()) * group_]; }
  size_t kept_stream(int k) const { return op_.in.size() + op_.out.size() + static_cast<size_t>(k); }

  void set_cell(isa::Frame& frame, int32_t at, float value) const { isa_.pointwise_set(frame.memory + at, value); }

  // Where a row begins.
  int64_t first_of(const PointwiseSpace::Place& place, int64_t row) const {
    int64_t at = 0;
    for (int d = space_.rank - 1; d-- > 1; row /= space_.shape[d]) at += row % space_.shape[d] * place.stride[d];
    return space_.rank > 1 ? at + row * place.stride[0] : 0;
  }

  void go_to(Own& own, int64_t row) {
    if (own.row == row) return;
    own.row = row;
    for (size_t i = 0; i < op_.in.size(); ++i) {
      const int64_t first = first_of(space_.in[i], row);
      own.frame.stream[i] = op_.in[i].as<char>() + first * sizes_[i];
      own.room[i] = elements_[i] - first;
    }
    for (size_t i = 0; i < op_.out.size(); ++i)
      if (!space_.is_sum[i])
        own.frame.stream[op_.in.size() + i] =
            op_.out[i].view.as<char>() + first_of(space_.out[i], row) * sizes_[op_.in.size() + i];
    for (const auto& [number, cell] : program_.row_inputs)
      set_cell(own.frame, cell, element(op_.in[number], first_of(space_.in[number], row)));
  }

  void run(Own& own, const Phase& phase, int64_t piece) {
    of_row(own, phase);
    if (large_) look_ahead(own, phase, piece);
    if (phase.reductions.empty()) {
      const bool all = space_.reduces;
      return of_columns(own, phase, all ? 0 : piece * kPiece,
                        all ? columns_ : std::min(columns_, (piece + 1) * kPiece));
    }
    if (columns_ <= kPiece) {
      const bool few = begin_reductions(own, phase, columns_);
      of_columns(own, phase, 0, columns_);
      for (const auto& each : phase.reductions)
        isa_.pointwise_finish(each.fn, own.frame.memory + each.parts, few, own.frame.memory + each.cell);
      return;
    }
    own.totals.clear();
    for (const auto& reduction : phase.reductions) own.totals.emplace_back(reduction.fn);
    for (int64_t begin = 0; begin < columns_; begin += kPiece)
      reduce(own, phase, begin, [&](size_t r, float part) { own.totals[r].add(part); });
    for (size_t r = 0; r < own.totals.size(); ++r) set_cell(own.frame, phase.reductions[r].cell, own.totals[r].value());
  }

  void run_folded(Own& own, int64_t row, int64_t count) const {
    for (size_t i = 0; i < op_.in.size(); ++i) {
      if (!space_.in[i].dense) continue;
      own.frame.stream[i] = op_.in[i].as<char>() + row * columns_ * sizes_[i];
      own.room[i] = elements_[i] - row * columns_;
    }
    for (const size_t i : expanded_) expand(own, i, row, count);
    for (size_t i = 0; i < op_.out.size(); ++i)
      if (!space_.is_sum[i] && !space_.is_row[i])
        own.frame.stream[op_.in.size() + i] = op_.out[i].view.as<char>() + row * columns_ * sizes_[op_.in.size() + i];
    for (const auto& [number, cell] : program_.row_inputs) set_cell(own.frame, cell, element(op_.in[number], 0));
    const auto floats = [&](int32_t stream) { return reinterpret_cast<float*>(own.frame.stream[stream]); };
    for (const Phase& phase : program_.phases) {
      of_row(own, phase);
      of_columns(own, phase, 0, count * columns_);
      for (const auto& each : phase.reductions)
        isa_.pointwise_rows(each.fn, floats(each.parts), floats(each.cell), count, columns_);
    }
    for (const auto& [number, stream] : program_.kept_outputs)
      for (int64_t r = 0; r < count; ++r) {
        const float* values = floats(stream) + r * columns_;
        if (space_.is_sum[number])
          isa_.accumulate(isa::Float::f32, values, floats(static_cast<int32_t>(op_.in.size() + number)), columns_);
        else
          put_element(op_.out[number], first_of(space_.out[number], row + r), *values);
      }
  }

  // An input that is not dense, for rows that lie end to end.
  void expand(Own& own, size_t i, int64_t row, int64_t count) const {
    const View& view = op_.in[i];
    const PointwiseSpace::Place& place = space_.in[i];
    const bool wide = place.stride[space_.rank - 1] != 0;
    auto* to = reinterpret_cast<float*>(own.frame.stream[i]);
    int64_t before = -1;
    own.room[i] = INT64_MAX;
    for (int64_t r = 0; r < count; ++r, to += columns_) {
      const int64_t first = first_of(place, row + r);
      if (first == before)
        std::memcpy(to, to - columns_, static_cast<size_t>(columns_) * sizeof(float));
      else if (!wide)
        std::fill_n(to, columns_, element(view, first));
      else
        for (int64_t j = 0; j < columns_; ++j) to[j] = element(view, first + j);
      before = first;
    }
  }

  // What comes next of the phase's streams: the next piece of the row, or where rows are short, the next row.
  void look_ahead(Own& own, const Phase& phase, int64_t piece) const {
    own.frame.aheads = 0;
    const bool in_row = columns_ > kPiece;
    if (own.row + 1 == rows_ && (!in_row || piece + 1 == pieces())) return;
    for (const uint8_t stream : phase.ahead) {
      const int64_t size = sizes_[stream], columns = in_row ? kPiece : columns_;
      const bool is_in = stream < op_.in.size();
      const PointwiseSpace::Place& place = is_in ? space_.in[stream] : space_.out[stream - op_.in.size()];
      if (!in_row && place.stride[space_.rank - 2] != columns_) continue;
      own.frame.ahead[own.frame.aheads++] = {own.frame.stream[stream] + columns * size, static_cast<int>(size)};
    }
  }

  void of_row(Own& own, const Phase& phase) const {
    if (!phase.of_row.empty()) isa_.pointwise_rest(phase.of_row.data(), own.frame, 0, 1);
  }
  // A piece of the columns: give(row function, what it makes of them).
  template <class Give>
  void reduce(Own& own, const Phase& phase, int64_t begin, Give&& give) const {
    const int64_t end = std::min(columns_, begin + kPiece);
    const bool few = begin_reductions(own, phase, end - begin);
    of_columns(own, phase, begin, end);
    for (size_t r = 0; r < phase.reductions.size(); ++r)
      give(r, isa_.pointwise_total(phase.reductions[r].fn, own.frame.memory + phase.reductions[r].parts, few));
  }
  bool begin_reductions(Own& own, const Phase& phase, int64_t columns) const {
    const bool few = columns <= isa_.pointwise_block;
    for (const auto& each : phase.reductions) isa_.pointwise_begin(each.fn, own.frame.memory + each.parts, few);
    return few;
  }

  // Whole blocks, then the rest in memory that has room for a block.
  void of_columns(Own& own, const Phase& phase, int64_t begin, int64_t end) const {
    if (phase.of_columns.empty()) return;
    isa::Frame& frame = own.frame;
    const int64_t whole = begin + (end - begin) / isa_.pointwise_block * isa_.pointwise_block;
    if (whole > begin) isa_.pointwise(phase.of_columns.data(), frame, begin, whole);
    if (whole == end) return;
    char* real[isa::kMostStreams];
    const auto move = [&](size_t stream, bool fill) {
      const int64_t size = sizes_[stream];
      real[stream] = frame.stream[stream];
      char* to = own.rest + static_cast<int64_t>(stream) * kRest;
      if (fill) std::memcpy(to, real[stream] + whole * size, static_cast<size_t>((end - whole) * size));
      frame.stream[stream] = to - whole * size;
    };
    const auto moves = [&](size_t stream) {  // or there is a block's memory, whatever it holds
      return whole + isa::kMostBlock > own.room[stream];
    };
    for (const uint8_t stream : phase.reads)
      if (moves(stream)) move(stream, true);
    for (const uint8_t stream : phase.writes) move(stream, phase.updates);
    isa_.pointwise_rest(phase.of_columns.data(), frame, whole, end);
    for (const uint8_t stream : phase.writes) {
      const int64_t size = sizes_[stream];
      std::memcpy(real[stream] + whole * size, own.rest + stream * kRest, static_cast<size_t>((end - whole) * size));
      frame.stream[stream] = real[stream];
    }
    for (const uint8_t stream : phase.reads)
      if (moves(stream)) frame.stream[stream] = real[stream];
  }
  void write_row(const Own& own) const {
    for (const auto& [number, cell] : program_.row_outputs)
      put_element(op_.out[number], first_of(space_.out[number], own.row), own.frame.memory[cell]);
  }

  const Pointwise& op_;
  const PointwiseSpace& space_;
  const isa::Table& isa_;
  const int64_t columns_, rows_;
  const bool large_, folded_;
  const PointwiseProgram program_;
  std::vector<int64_t> sizes_, elements_;  // of an element of each stream; of each input
  std::vector<size_t> expanded_;           // inputs
  int64_t fold_ = 1;                       // rows that lie end to end
  size_t group_ = 1;         // rows that a thread computes side by side, so that one waits while another goes on
  std::vector<Own> frames_;  // of each thread so many
  std::vector<float> parts_;
};

// With sums: rows are kept ones times summed ones. Blocks of summed rows make partial sums, which are added in order.
void run_sums(const Pointwise& op, const PointwiseSpace& space, CpuContext& context) {
  Runner runner(op, space, context);
  int64_t inner = 1, summed = 1;  // kept rows in a summed one
  for (int d = space.sum_begin; d < space.sum_end; ++d) summed *= space.shape[d];
  for (int d = space.sum_end; d + 1 < space.rank; ++d) inner *= space.shape[d];
  const int64_t columns = space.columns(), kept = summed ? space.rows() / summed : 0;
  const int64_t blocks = (summed + kSummedRows - 1) / kSummedRows;
  std::vector<float*> partial(op.out.size());
  for (size_t i = 0; i < op.out.size(); ++i)
    if (space.is_sum[i]) partial[i] = context.scratch.take<float>(kept * blocks * columns);
  const int64_t pieces = runner.pieces();
  parallel_for(context.threads, kept * blocks * pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t piece = unit % pieces, block = unit / pieces % blocks, k = unit / pieces / blocks;
      const int64_t from = block * kSummedRows, to = std::min(summed, from + kSummedRows);
      const int64_t first_column = pieces > 1 ? piece * kPiece : 0;
      const int64_t width = pieces > 1 ? std::min(kPiece, columns - first_column) : columns;
      for (size_t i = 0; i < op.out.size(); ++i) {
        if (!space.is_sum[i]) continue;
        float* sum = partial[i] + (k * blocks + block) * columns;
        std::fill_n(sum + first_column, width, 0.0f);
        runner.sum_into(i, sum);
      }
      const int64_t first = k / inner * summed * inner + k % inner;
      runner.run(first + from * inner, inner, to - from, piece);
    }
  });
  for (size_t i = 0; i < op.out.size(); ++i) {
    if (!space.is_sum[i]) continue;
    const View& view = op.out[i].view;
    const int64_t outputs = view.elements() / columns;
    float* total = context.scratch.take<float>(outputs * columns);
    std::fill_n(total, outputs * columns, 0.0f);
    for (int64_t k = 0; k < outputs; ++k)
      parallel_for(context.threads, columns, 1024, [&](int64_t begin, int64_t end) {
        float* sum = total + k * columns + begin;
        for (int64_t block = 0; block < blocks; ++block)
          context.isa->accumulate(isa::Float::f32, partial[i] + (k * blocks + block) * columns + begin, sum,
                                  end - begin);
        if (op.out[i].acc) context.isa->accumulate(float_type(view), at(view, k * columns + begin), sum, end - begin);
        context.isa->scale(isa::Float::f32, sum, float_type(view), at(view, k * columns + begin), 1.0f, end - begin);
      });
  }
}

}  // namespace

void run(const Pointwise& op, CpuContext& context) {
  const PointwiseSpace space = space_of(op);
  if (space.columns() == 0) return;
  if (space.sum_end > space.sum_begin) return run_sums(op, space, context);
  Runner runner(op, space, context);
  const int64_t rows = space.rows(), pieces = runner.pieces();
  if (space.reduces && space.columns() >= kLongRow && rows < 4 * context.threads && rows % context.threads != 0) {
    for (int64_t row = 0; row < rows; ++row) runner.run_together(row, context);
    return;
  }
  const int64_t grain = std::max<int64_t>(1, kPiece / std::min(kPiece, space.columns()));
  parallel_for(context.threads, rows * pieces, grain, [&](int64_t begin, int64_t end) {
    if (pieces == 1) return runner.run(begin, 1, end - begin, 0);
    for (int64_t unit = begin; unit < end; ++unit) runner.run(unit / pieces, 1, 1, unit % pieces);
  });
}

}  // namespace qeng
