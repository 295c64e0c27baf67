// GatedDelta and its gradient: chunk after chunk of each document and key head, which threads share. The arithmetic is
// in isa/delta.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/documents.h"
#include "kernels/cpu/isa/delta/delta.h"

namespace qeng {
namespace {

static_assert(isa::kChunkRows == kDeltaChunk);

// The operands from a row and a key head on.
template <class AnyOp>
isa::DeltaRows rows_from(const AnyOp& op, const View& out, int64_t row, int64_t key_head) {
  const DeltaShape& shape = op.shape;
  const int64_t columns = shape.columns(), keys = shape.key_heads * shape.key_dim, group = shape.group();
  const int64_t first = row * columns + key_head * shape.key_dim, head = row * shape.value_heads + key_head * group;
  return {.type = float_type(op.x),
          .q = at(op.x, first),
          .k = at(op.x, first + keys),
          .v = at(op.x, row * columns + 2 * keys + key_head * group * shape.value_dim),
          .g = op.g.template as<float>() + head,
          .beta = op.beta.template as<float>() + head,
          .row_stride = columns,
          .out_stride = out.columns(),
          .value_heads = shape.value_heads,
          .group = group,
          .key_dim = shape.key_dim,
          .value_dim = shape.value_dim,
          .eps = op.eps};
}

// o, or its gradient, from a row and a key head on.
char* out_from(const View& out, const DeltaShape& shape, int64_t row, int64_t key_head) {
  return at(out, row * out.columns() + key_head * shape.group() * shape.value_dim);
}

// The floats of a key head in a page's state and rows, and its part of them.
int64_t state_floats(const DeltaShape& shape) { return shape.group() * shape.key_dim * shape.value_dim; }
int64_t rows_floats(const DeltaShape& shape) {
  return kDeltaChunk * (shape.key_dim + shape.group() * (shape.value_dim + 1));
}
isa::DeltaChunk chunk_of(const DeltaShape& shape, float* states, float* rows) {
  float* deltas = rows + kDeltaChunk * shape.key_dim;
  return {states, rows, deltas, deltas + kDeltaChunk * shape.group() * shape.value_dim};
}

}  // namespace

void run(const GatedDelta& op, CpuContext& context) {
  const DeltaShape& shape = op.shape;
  const int64_t documents = op.cu.elements() - 1, states = state_floats(shape), rows = rows_floats(shape);
  const int32_t* cu = op.cu.as<int32_t>();
  check_boundaries(op.name, "cu", op.cu, op.x.rows());
  const PageTable table(op);
  if (op.state) table.check(op.name, documents, op.state.shape[0], 1);
  const int64_t loop = isa::delta_scratch(shape.key_dim, shape.value_dim), own = op.state ? 0 : states + rows;
  float* scratch = context.scratch.take<float>(context.threads * (loop + own));
  parallel_each(context.threads, documents * shape.key_heads, [&](int64_t item) {
    const int64_t s = item / shape.key_heads, head = item % shape.key_heads;
    float *mine = scratch + team_rank() * (loop + own), *kept = mine + loop;
    // Position t of the sequence is row cu[s] + t - begun.
    const int64_t begun = op.state ? table.begun(s) : 0, end = begun + cu[s + 1] - cu[s];
    const auto chunk_at = [&](int64_t position) {
      if (!op.state) return chunk_of(shape, kept, kept + states);
      const int64_t page = table.page(s, position);
      return chunk_of(shape, op.state.as<float>() + page * shape.state() + head * states,
                      op.rows.as<float>() + page * shape.rows() + head * rows);
    };
    for (int64_t t = begun; t < end;) {
      const int64_t next = std::min(end, (t / kDeltaChunk + 1) * kDeltaChunk);
      const isa::DeltaChunk chunk = chunk_at(t);
      if (t == 0) {
        std::fill(chunk.states, chunk.states + states, 0.0f);
      } else if (t % kDeltaChunk == 0) {  // the last chunk's rows go into the state
        isa::DeltaChunk last = chunk_at(t - 1);
        if (last.states != chunk.states)
          std::memcpy(chunk.states, last.states, sizeof(float) * static_cast<size_t>(states));
        last.states = chunk.states;
        context.isa->delta_advance(last, shape.group(), shape.key_dim, shape.value_dim, mine);
      }
      const int64_t row = cu[s] + t - begun;
      context.isa->gated_delta({.in = rows_from(op, op.o, row, head),
                                .chunk = chunk,
                                .begun = t % kDeltaChunk,
                                .rows = next - t,
                                .o = out_from(op.o, shape, row, head),
                                .scratch = mine});
      t = next;
    }
  });
  clear_rows(op.o, cu[documents]);
}

namespace {

// Chunks whose states are kept at once. Those of a longer document are computed anew from the state before each such
// part of it, so that a document of any length takes 2 MB a head of 128 by 128, and 64 KB for each part.
constexpr int64_t kPartChunks = 32;

// The gradient of a document and key head. kept: [kPartChunks] of states and rows; parts: states before each part.
void document_grad(const GatedDeltaGrad& op, int64_t begin, int64_t end, int64_t head, float* scratch, float* kept,
                   float* parts, float* dstates, CpuContext& context) {
  const DeltaShape& shape = op.shape;
  const int64_t states = state_floats(shape), of_chunk = states + rows_floats(shape);
  const int64_t chunks = (end - begin + kDeltaChunk - 1) / kDeltaChunk;
  const int64_t part_count = (chunks + kPartChunks - 1) / kPartChunks;
  const auto slot = [&](int64_t c) {
    float* memory = kept + c % kPartChunks * of_chunk;
    return chunk_of(shape, memory, memory + states);
  };
  const auto rows_of = [&](int64_t c) { return std::min(kDeltaChunk, end - begin - c * kDeltaChunk); };
  const auto copy_states = [&](const float* from, float* to) { std::copy(from, from + states, to); };
  // Fills the chunks of a part from the states before it, and leaves those after it in `after`, which may be null.
  const auto fill = [&](int64_t part, float* after) {
    copy_states(parts + part * states, slot(part * kPartChunks).states);
    const int64_t stop = std::min(chunks, (part + 1) * kPartChunks);
    for (int64_t c = part * kPartChunks; c < stop; ++c) {
      const isa::DeltaChunk chunk = slot(c);
      context.isa->gated_delta({.in = rows_from(op, op.dout, begin + c * kDeltaChunk, head),
                                .chunk = chunk,
                                .begun = 0,
                                .rows = rows_of(c),
                                .o = nullptr,
                                .scratch = scratch});
      float* to = c + 1 < stop ? slot(c + 1).states : after;
      if (!to) continue;
      copy_states(chunk.states, to);
      context.isa->delta_advance({to, chunk.keys, chunk.deltas, chunk.sums}, shape.group(), shape.key_dim,
                                 shape.value_dim, scratch);
    }
  };
  std::fill(parts, parts + states, 0.0f);
  for (int64_t part = 0; part + 1 < part_count; ++part) fill(part, parts + (part + 1) * states);
  std::fill(dstates, dstates + states, 0.0f);
  const int64_t keys = shape.key_heads * shape.key_dim, columns = shape.columns();
  for (int64_t part = part_count - 1; part >= 0; --part) {
    fill(part, nullptr);
    for (int64_t c = std::min(chunks, (part + 1) * kPartChunks) - 1; c >= part * kPartChunks; --c) {
      const int64_t row = begin + c * kDeltaChunk, first = row * columns + head * shape.key_dim;
      const int64_t value_head = row * shape.value_heads + head * shape.group();
      context.isa->gated_delta_grad({.in = rows_from(op, op.dout, row, head),
                                     .chunk = slot(c),
                                     .rows = rows_of(c),
                                     .dout = out_from(op.dout, shape, row, head),
                                     .dstates = dstates,
                                     .dq = at(op.dx, first),
                                     .dk = at(op.dx, first + keys),
                                     .dv = at(op.dx, row * columns + 2 * keys + head * shape.group() * shape.value_dim),
                                     .dg = op.dg.as<float>() + value_head,
                                     .dbeta = op.dbeta.as<float>() + value_head,
                                     .scratch = scratch});
    }
  }
}

}  // namespace

void run(const GatedDeltaGrad& op, CpuContext& context) {
  const DeltaShape& shape = op.shape;
  const int64_t documents = op.cu.elements() - 1, states = state_floats(shape);
  const int32_t* cu = op.cu.as<int32_t>();
  check_boundaries(op.name, "cu", op.cu, op.x.rows());
  int64_t longest = 0;
  for (int64_t s = 0; s < documents; ++s) longest = std::max<int64_t>(longest, cu[s + 1] - cu[s]);
  const int64_t chunks = (longest + kDeltaChunk - 1) / kDeltaChunk,
                loop = isa::delta_grad_scratch(shape.key_dim, shape.value_dim);
  const int64_t kept = std::min(chunks, kPartChunks) * (states + rows_floats(shape));
  const int64_t parts = (chunks + kPartChunks - 1) / kPartChunks * states, own = loop + kept + parts + states;
  float* scratch = context.scratch.take<float>(context.threads * own);
  parallel_each(context.threads, documents * shape.key_heads, [&](int64_t item) {
    const int64_t s = item / shape.key_heads;
    if (cu[s] == cu[s + 1]) return;
    float* mine = scratch + team_rank() * own;
    document_grad(op, cu[s], cu[s + 1], item % shape.key_heads, mine, mine + loop, mine + loop + kept,
                  mine + loop + kept + parts, context);
  });
  for (const View& view : {op.dx, op.dg, op.dbeta}) clear_rows(view, cu[documents]);
}

}  // namespace qeng
