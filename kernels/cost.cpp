// What each operation must move and compute at least; the profiler sets measured times against it.
#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/backend.h"
#include "kernels/kv_pools.h"
#include "kernels/op.h"

namespace qeng {

namespace {

double count(const View& view) { return static_cast<double>(view.elements()); }

// Each view once, an updated one twice.
template <class AnyOp>
double bytes_of(AnyOp op) {
  double bytes = 0;
  op.views([&](const char*, View& view, Access access) {
    if (view) bytes += static_cast<double>(view.bytes()) * (access == Access::update ? 2 : 1);
  });
  return bytes;
}

// Pairs of a query and a key it sees, over all documents, for one head.
double visible_pairs(const View& cu_q, const View& cu_k, int window) {
  double pairs = 0;
  const int32_t *starts_q = cu_q.as<int32_t>(), *starts_k = cu_k.as<int32_t>();
  for (int64_t s = 0; s + 1 < std::min(cu_q.elements(), cu_k.elements()); ++s) {
    const int64_t queries = starts_q[s + 1] - starts_q[s], keys = starts_k[s + 1] - starts_k[s];
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t seen = std::max<int64_t>(0, keys - (queries - 1 - i));
      pairs += static_cast<double>(window > 0 ? std::min<int64_t>(seen, window) : seen);
    }
  }
  return pairs;
}

// The products that run over head_dim, and those over value_dim.
template <class AnyAttention>
double attention_flops(const AnyAttention& op, int64_t over_keys, int64_t over_values) {
  if (!op.cu_q || !op.cu_k || op.q.rank != 3 || op.v.rank != 3) return 0;
  return 2.0 * visible_pairs(op.cu_q, op.cu_k, op.window) *
         static_cast<double>(op.q.shape[1] * (over_keys * op.q.shape[2] + over_values * op.v.shape[2]));
}

// Without an overload below: each view once, and the flops that the operation says of itself.
template <class AnyOp>
Cost of(const AnyOp& op) {
  if constexpr (requires { op.flops(); })
    return {bytes_of(op), static_cast<double>(op.flops())};
  else
    return {bytes_of(op), 0};
}

Cost of(const Matmul& op) {
  const double k = static_cast<double>(op.trans_a ? op.a.rows() : op.a.columns());
  return {bytes_of(op), 2 * count(op.c) * k + (op.bias ? count(op.c) : 0)};
}
Cost of(const MatmulSum& op) {  // what several products read, once
  MatmulSum moved = op;
  std::set<const void*> seen;
  moved.views([&](const char*, View& view, Access access) {
    if (access == Access::read && !seen.insert(view.data).second) view = {};
  });
  return {bytes_of(moved), static_cast<double>(op.flops())};
}
Cost of(const RowLinear& op) {
  double flops = 0;
  for (const View& w : op.w) flops += 2 * static_cast<double>(op.x.rows()) * count(w);
  return {bytes_of(op), flops};
}
// Of the weights, those of experts that have rows; in a rehearsal, where nobody has, as many as there may be.
Cost of(const GroupedMatmul& op) {
  const int32_t* first = op.first.as<int32_t>();
  const int64_t experts = op.w.shape[0];
  int64_t used = 0;
  for (int64_t e = 0; e < experts; ++e) used += first[e + 1] > first[e];
  if (used == 0) used = std::min(experts, op.x.rows());
  const double unused = count(op.w) ? static_cast<double>(experts - used) / static_cast<double>(experts) : 0;
  return {bytes_of(op) - unused * static_cast<double>(op.w.bytes()), static_cast<double>(op.flops())};
}
Cost of(const Hadamard& op) { return {bytes_of(op), count(op.x) * (std::log2(op.block) + 2)}; }
// Of one slot, in the pool of keys or of values.
double slot_bytes(const View& pool, const View& levels) {
  return static_cast<double>(pool.bytes()) / static_cast<double>(std::max<int64_t>(1, pool_slots(pool, levels)));
}
Cost of(const KvStore& op) {  // of the pools, the rows it writes
  double rows =
      static_cast<double>(op.k.bytes()) + static_cast<double>(op.k.shape[0]) * slot_bytes(op.k_pool, op.k_levels);
  if (op.v)
    rows += static_cast<double>(op.v.bytes()) + static_cast<double>(op.v.shape[0]) * slot_bytes(op.v_pool, op.v_levels);
  return {static_cast<double>(op.slots.bytes()) + rows, 0};
}
Cost of(const CopyPages& op) {
  const double page = static_cast<double>(op.pool.bytes()) / static_cast<double>(op.pool.shape[0]) * op.page_tokens;
  return {static_cast<double>(op.pairs.bytes()) + 2 * page * static_cast<double>(op.pairs.shape[0]), 0};
}
// Of the pools, the keys that are seen: each by all queries of its sequence at once.
Cost of(const PagedAttention& op) {
  double keys = 0, pairs = 0;
  const int32_t *starts = op.cu_q.as<int32_t>(), *lengths = op.lengths.as<int32_t>();
  for (int64_t s = 0; s + 1 < op.cu_q.elements(); ++s) {
    const int64_t queries = starts[s + 1] - starts[s], length = lengths[s];
    const int64_t reach = op.window > 0 ? std::min<int64_t>(length, op.window + queries - 1) : length;
    keys += queries > 0 ? static_cast<double>(reach) : 0;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t seen = std::max<int64_t>(0, length - (queries - 1 - i));
      pairs += static_cast<double>(op.window > 0 ? std::min<int64_t>(seen, op.window) : seen);
    }
  }
  const int64_t dims = op.q.shape[2] + op.o.shape[2];
  const double rows = slot_bytes(op.k_pool, op.k_levels) + slot_bytes(op.v_pool, op.v_levels);
  return {static_cast<double>(op.q.bytes() + op.o.bytes()) + keys * rows,
          2 * pairs * static_cast<double>(op.q.shape[1] * dims)};
}
Cost of(const Embedding& op) {  // of the table, the rows it reads
  return {static_cast<double>(op.tokens.bytes()) + 2.0 * static_cast<double>(op.y.bytes()), 0};
}
Cost of(const EmbeddingGrad& op) {
  return {static_cast<double>(op.tokens.bytes() + op.dy.bytes()) + 2 * 4 * count(op.dy), count(op.dy)};
}
Cost of(const Attention& op) { return {bytes_of(op), attention_flops(op, 1, 1)}; }      // q k^T, P v
Cost of(const AttentionGrad& op) { return {bytes_of(op), attention_flops(op, 3, 2)}; }  // q k^T, dq, dk; dout v^T, dv
Cost of(const LmHeadLoss& op) {
  if (!op.targets) return {};
  const int32_t* targets = op.targets.as<int32_t>();
  const double trained =
      static_cast<double>(std::count_if(targets, targets + op.targets.elements(), [](int32_t t) { return t >= 0; }));
  const double products = 1 + (op.dh ? 1 : 0) + (op.dw ? 1 : 0);
  LmHeadLoss moved = op;  // of h, the rows that are trained
  moved.workspace = moved.h = {};
  const double h = trained * static_cast<double>(dtype_bytes(op.h.dtype, op.h.columns()));
  const double logits = trained * static_cast<double>(op.w.rows());
  return {bytes_of(moved) + h, logits * (2.0 * products * static_cast<double>(op.h.columns()) + (op.dh ? 5 : 3))};
}
double count(const std::vector<View>& views) {
  double elements = 0;
  for (const View& view : views) elements += count(view);
  return elements;
}
Cost of(const CausalConv& op) {  // of the state, as many rows as a convolution looks back, and those that it keeps
  CausalConv moved = op;
  moved.state = {};
  const double rows = 2 * count(op.lengths) * static_cast<double>(op.w.columns() - 1);
  const double kept = op.state ? 4 * rows * static_cast<double>(op.x.columns()) : 0;
  return {bytes_of(moved) + kept, static_cast<double>(op.flops())};
}
Cost of(const GatedDelta& op) {  // of the pages, each sequence's state, and half a chunk of rows
  GatedDelta moved = op;
  moved.state = moved.rows = {};
  const double kept =
      op.state ? 4 * count(op.lengths) * static_cast<double>(op.shape.state() + op.shape.rows() / 2) : 0;
  return {bytes_of(moved) + kept, static_cast<double>(op.flops())};
}
Cost of(const SumSquares& op) { return {bytes_of(op), 2 * count(op.x)}; }
Cost of(const AdamW& op) { return {bytes_of(op), 14 * count(op.w)}; }
Cost of(const PulseGrad& op) {  // the product, its squares, friction and a comparison; of dy the columns that count
  const double rows = static_cast<double>(op.x.rows()), n = static_cast<double>(op.pulses.shape[0]);
  const double dy = rows * n * static_cast<double>(dtype_size(op.dy.dtype));
  return {dy + static_cast<double>(op.x.bytes() + op.weights.bytes() + op.pulses.bytes()),
          (2 * rows + 4) * count(op.pulses)};
}

}  // namespace

Cost cost(const Op& op) {
  return std::visit([](const auto& concrete) { return of(concrete); }, op);
}

Cost cost(const Op& op, Backend& backend) {
  if (backend.host_memory()) return cost(op);
  std::vector<std::vector<int32_t>> copies;  // the index lists on the host; nothing else is read
  Op on_host = op;
  for_each_view(on_host, [&](const char*, View& view, Access) {
    if (view.dtype != DType::i32) return;
    copies.emplace_back(static_cast<size_t>(view.elements()));
    if (view.bytes()) backend.download(copies.back().data(), view.data, view.bytes());
    view.data = copies.back().data();
  });
  return cost(on_host);
}

}  // namespace qeng
