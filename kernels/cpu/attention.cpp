// Attention and AttentionGrad: the division into tiles, and who works on them. The arithmetic is in
// isa/attention.cpp and isa/attention_grad.cpp. Tiles depend on shapes only, so results do not depend on the threads.
#include "kernels/cpu/isa/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/documents.h"

namespace qeng {
namespace {

struct Shapes {
  int64_t tq, tk, heads, kv_heads, group, dim, value_dim, documents;
};

template <class AnyOp>
Shapes shapes_of(const AnyOp& op) {
  const int64_t heads = op.q.shape[1], kv_heads = op.k.shape[1];
  const Shapes shapes{op.q.shape[0],    op.k.shape[0], heads,         kv_heads,
                      heads / kv_heads, op.q.shape[2], op.v.shape[2], op.cu_q.elements() - 1};
  check_boundaries(op.name, "cu_q", op.cu_q, shapes.tq);
  check_boundaries(op.name, "cu_k", op.cu_k, shapes.tk);
  return shapes;
}

struct Span {
  int64_t q_begin, q_end, k_begin, k_end;
};
template <class AnyOp>
Span document(const AnyOp& op, int64_t s) {
  const int32_t *cu_q = op.cu_q.template as<int32_t>(), *cu_k = op.cu_k.template as<int32_t>();
  return {cu_q[s], cu_q[s + 1], cu_k[s], cu_k[s + 1]};
}

}  // namespace

void run(const Attention& op, CpuContext& context) {
  const Shapes shapes = shapes_of(op);
  const auto [tq, tk, heads, kv_heads, group, dim, value_dim, documents] = shapes;
  struct Piece {
    int64_t first, queries, begin, end, first_end;
  };
  std::vector<Piece> pieces;
  const int64_t step = isa::tile_queries(group);
  for (int64_t s = 0; s < documents; ++s) {
    const Span span = document(op, s);
    const int64_t queries = span.q_end - span.q_begin, tiles = (queries + step - 1) / step;
    for (int64_t i = tiles - 1; i >= 0;
         --i) {  // from the tile with the most keys, so that the last to be handed out is small
      const int64_t first = span.q_begin + i * step, count = std::min(step, span.q_end - first);
      const int64_t first_end = span.k_end - (span.q_end - 1 - first);
      int64_t begin = span.k_begin;
      if (op.window > 0) begin = std::max(begin, first_end - op.window);
      pieces.push_back({first, count, begin, std::min(span.k_end, first_end + count - 1), first_end});
    }
  }
  const int64_t scratch_size = isa::attention_scratch(group, dim, value_dim);
  float* scratch = context.scratch.take<float>(context.threads * scratch_size);
  parallel_each(context.threads, static_cast<int64_t>(pieces.size()) * kv_heads, [&](int64_t item) {
    const Piece& piece = pieces[static_cast<size_t>(item / kv_heads)];
    const int64_t kv = item % kv_heads;
    context.isa->attention({float_type(op.q),
                            at(op.q, kv * group * dim),
                            at(op.k, kv * dim),
                            at(op.v, kv * value_dim),
                            at(op.o, kv * group * value_dim),
                            op.lse.as<float>() + kv * group * tq,
                            heads * dim,
                            kv_heads * dim,
                            kv_heads * value_dim,
                            heads * value_dim,
                            tq,
                            group,
                            dim,
                            value_dim,
                            piece.first,
                            piece.queries,
                            piece.begin,
                            piece.end,
                            piece.first_end,
                            op.window,
                            op.scale,
                            op.softcap,
                            op.sinks ? op.sinks.as<float>() + kv * group : nullptr,
                            scratch + team_rank() * scratch_size});
  });
  const int64_t end = op.cu_q.as<int32_t>()[documents];
  clear_rows(op.o, end);
  for (int64_t h = 0; h < heads; ++h)
    std::fill(op.lse.as<float>() + h * tq + end, op.lse.as<float>() + (h + 1) * tq, 0.0f);
}

namespace {

// A document's keys are divided into at most this many pieces, which threads work on at once, each with a sum of dq of
// its own. More would balance more threads and cost more memory.
constexpr int64_t kMostPieces = 4;
constexpr int64_t kPieceKeys = 512;  // below this, the product with dq's partial sums is not worth dividing

// dsinks: each head's sum over the queries, in their order.
void sum_sinks(const AttentionGrad& op, CpuContext& context) {
  const int64_t heads = op.lse.shape[0], tq = op.lse.shape[1];
  parallel_for(context.threads, heads, grain_rows(tq), [&](int64_t begin, int64_t end) {
    for (int64_t h = begin; h < end; ++h) {
      const float sink = op.sinks.as<float>()[h];
      const float *lse = op.lse.as<float>() + h * tq, *delta = op.delta.as<float>() + h * tq;
      double sum = 0;
      for (int64_t t = 0; t < tq; ++t) sum += static_cast<double>(std::exp(sink - lse[t]) * delta[t]);
      float& to = op.dsinks.as<float>()[h];
      to = (op.acc_sinks ? to : 0.0f) - static_cast<float>(sum);
    }
  });
}

struct GradPiece {
  Span span;
  int64_t begin, end, first, first_end;  // keys, and the first query that sees them
  int64_t part;                          // rows before this piece's in the dq sums, for one kv head
};

}  // namespace

void run(const AttentionGrad& op, CpuContext& context) {
  const Shapes shapes = shapes_of(op);
  const auto [tq, tk, heads, kv_heads, group, dim, value_dim, documents] = shapes;

  std::vector<GradPiece> pieces;
  int64_t rows = 0;
  for (int64_t s = 0; s < documents; ++s) {
    const Span span = document(op, s);
    const int64_t keys = span.k_end - span.k_begin, shared = (keys + kMostPieces - 1) / kMostPieces;
    const int64_t step = std::max(kPieceKeys, (shared + isa::kTileKeys - 1) / isa::kTileKeys * isa::kTileKeys);
    for (int64_t begin = span.k_begin; begin < span.k_end; begin += step) {
      const int64_t first_end = span.k_end - (span.q_end - 1 - span.q_begin);
      const int64_t first = std::clamp(span.q_begin + begin + 1 - first_end, span.q_begin, span.q_end);
      pieces.push_back(
          {span, begin, std::min(span.k_end, begin + step), first, first_end + first - span.q_begin, rows});
      rows += span.q_end - first;
    }
  }
  const int64_t row = group * isa::padded(dim), scratch_size = isa::attention_grad_scratch(group, dim, value_dim);
  float* dq = context.scratch.take<float>(rows * row * kv_heads);
  float* scratch = context.scratch.take<float>(context.threads * scratch_size);

  parallel_for(context.threads, tq, grain_rows(heads * value_dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      context.isa->attention_delta(float_type(op.o), at(op.dout, t * heads * value_dim),
                                   at(op.o, t * heads * value_dim), heads, value_dim, op.delta.as<float>() + t, tq);
  });
  if (op.dsinks) sum_sinks(op, context);
  parallel_each(context.threads, static_cast<int64_t>(pieces.size()) * kv_heads, [&](int64_t item) {
    const GradPiece& piece = pieces[static_cast<size_t>(item / kv_heads)];
    const int64_t kv = item % kv_heads, queries = piece.span.q_end - piece.first;
    float* sums = dq + (kv * rows + piece.part) * row;
    std::memset(sums, 0, static_cast<size_t>(queries * row) * sizeof(float));
    context.isa->attention_grad({float_type(op.q),
                                 at(op.q, kv * group * dim),
                                 at(op.k, kv * dim),
                                 at(op.v, kv * value_dim),
                                 at(op.dout, kv * group * value_dim),
                                 op.lse.as<float>() + kv * group * tq,
                                 op.delta.as<float>() + kv * group * tq,
                                 at(op.dk, kv * dim),
                                 at(op.dv, kv * value_dim),
                                 sums,
                                 heads * dim,
                                 kv_heads * dim,
                                 kv_heads * value_dim,
                                 heads * value_dim,
                                 tq,
                                 group,
                                 dim,
                                 value_dim,
                                 piece.first,
                                 queries,
                                 piece.begin,
                                 piece.end,
                                 piece.first_end,
                                 op.window,
                                 piece.first,
                                 op.scale,
                                 op.softcap,
                                 scratch + team_rank() * scratch_size});
  });

  // dq = the sum over the pieces of the document that the query saw, in the order of the keys.
  std::vector<int64_t> first_piece(static_cast<size_t>(tq), 0), past_piece(static_cast<size_t>(tq), 0);
  for (size_t i = 0; i < pieces.size(); ++i)
    for (int64_t t = pieces[i].first; t < pieces[i].span.q_end; ++t) {
      int64_t& past = past_piece[static_cast<size_t>(t)];
      if (past == 0) first_piece[static_cast<size_t>(t)] = static_cast<int64_t>(i);
      past = static_cast<int64_t>(i) + 1;
    }
  parallel_for(context.threads, tq, grain_rows(heads * dim), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const float* parts[kMostPieces];
        int64_t count = 0;
        for (int64_t i = first_piece[static_cast<size_t>(t)]; i < past_piece[static_cast<size_t>(t)]; ++i) {
          const GradPiece& piece = pieces[static_cast<size_t>(i)];
          parts[count++] = dq + (h / group * rows + piece.part + t - piece.first) * row + h % group * isa::padded(dim);
        }
        context.isa->sum_parts(parts, count, op.scale, float_type(op.dq), at(op.dq, (t * heads + h) * dim), dim);
      }
  });
  clear_rows(op.dk, op.cu_k.as<int32_t>()[documents]);
  clear_rows(op.dv, op.cu_k.as<int32_t>()[documents]);
}

}  // namespace qeng
