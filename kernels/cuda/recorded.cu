// Which operations of a recording go together. Each is what the language above wrote, one after the other; here is seen
// that one reads what the one before wrote. All results are written, so nobody needs to know who reads them later.
//   RowLinear, AddRmsNorm           the block that makes the last of y norms it (linear/row_end.h)
//   RowLinear, SwiGlu               likewise, 256 columns at a time
//   RowLinear, RmsNorm of q and of k, Rope, KvStore     likewise, a head at a time; of many rows one kernel after the
//                                   product does what follows
//   PagedAttention                  layers with equal shapes share a plan; what merges pieces also rounds
// and where a RowLinear by a block format reads the result, whoever makes it rounds it too.
#include <algorithm>
#include <utility>

#include "kernels/cuda/attention/paged_rows.h"
#include "kernels/cuda/linear/row_end.h"
#include "kernels/cuda/recorded.h"

namespace qeng {

namespace {

bool same(const View& a, const View& b) {
  return a && a.data == b.data && a.dtype == b.dtype && a.elements() == b.elements();
}
bool vectors(const View& view) { return view.dtype == DType::bf16 && aligned(view.data, 16); }
template <class... Views>
bool all_vectors(const Views&... views) {
  return (vectors(views) && ...);
}

constexpr int64_t kMostEndRows = 65535 * 8;  // of row_end.cu: a grid is at most so high, and a block takes eight rows

bool may_end(const RowLinear& op) {
  bool may = op.x.rows() > 0 && op.x.rows() <= kMostEndRows && op.w.size() <= 3;
  for (size_t i = 0; may && i < op.w.size(); ++i) {
    const View& w = op.w[i];
    may = vectors(op.y[i]) && w.shape[0] % kEndColumns == 0 &&
          (is_block(w.dtype) || (vectors(w) && op.x.columns() % kRun == 0));
  }
  return may;
}

class Queue {
 public:
  Queue(const RecordedOps& recorded, bool reserve, CudaContext& context)
      : ops_(recorded.ops), calls_(recorded.calls), reserve_(reserve), context_(context) {
    context.plans.reset();
  }

  void run() {
    size_t called = 0;
    const auto call_before = [&](size_t i) {
      for (; called < calls_.size() && calls_[called].first <= i; ++called)
        if (!reserve_) calls_[called].second();
    };
    for (size_t i = 0; i < ops_.size();) {
      call_before(i);
      context_.scratch.reset();
      const RoundedRows given = std::exchange(next_, {});
      size_t count = 1;
      if (const auto* linear = op<RowLinear>(i)) {
        RowEnd end;
        count += end_of(*linear, i + 1, end);
        if (!reserve_ || count > 1 || given) row_linear(*linear, given, end, context_);
      } else if (const auto* attention = op<PagedAttention>(i)) {
        attend(*attention, i);
      } else if (!reserve_) {
        std::visit([this](const auto& concrete) { qeng::run(concrete, context_); }, ops_[i]);
      }
      for (size_t k = i; k < i + count; ++k) forget_plans(ops_[k]);
      i += count;
    }
    call_before(ops_.size());
  }

 private:
  template <class T>
  const T* op(size_t i) const {
    return i < ops_.size() ? std::get_if<T>(&ops_[i]) : nullptr;
  }

  // Where y is to be rounded, if operation i is a product that wants that; no codes otherwise. A product's codes are
  // needed until it ends, by when those of the next one are being made.
  RoundedRows rounded_for(const View& y, size_t i) {
    const auto* linear = op<RowLinear>(i);
    if (!linear || !same(linear->x, y) || linear->x.rows() * linear->x.columns() != y.elements() ||
        !is_block(linear->w[0].dtype))
      return {};
    CudaScratch& memory = context_.rounded[turn_ ^= 1];
    memory.reset();
    return next_ = take_rounded(memory, linear->x.rows(), linear->x.columns(),
                                rounding_of(linear->w[0].dtype, linear->x.rows()));
  }

  // What follows `linear` from operation i on, and how many operations that is.
  size_t end_of(const RowLinear& linear, size_t i, RowEnd& end) {
    if (!may_end(linear)) return 0;
    const size_t count = norm_of(linear, i, end) + gate_of(linear, i, end) + heads_of(linear, i, end);
    if (!count || !apart(i, count)) return end = {}, next_ = {}, 0;
    end.arrived = context_.arrived, end.rows = linear.x.rows(), end.fault = context_.fault;
    for (size_t k = 0; k < linear.w.size(); ++k)
      end.made[k] = linear.y[k].as<bf16>(), end.columns[k] = linear.w[k].shape[0];
    return count;
  }

  // Whether the `count` operations from i on may write while the product before them still reads, and each other's results
  // are what they read: memory of temporaries is used again. And whether nothing else is to be queued between them.
  bool apart(size_t i, size_t count) const {
    const auto meet = [](const View& a, const View& b) {
      const char *first = static_cast<const char*>(a.data), *second = static_cast<const char*>(b.data);
      return first < second + b.bytes() && second < first + a.bytes();
    };
    bool apart = std::none_of(calls_.begin(), calls_.end(),
                              [&](const auto& call) { return call.first >= i && call.first < i + count; });
    for (size_t writer = i; writer < i + count; ++writer)
      for_each_view(ops_[writer], [&](const char*, const View& to, Access how) {
        if (how == Access::read) return;
        for (size_t other = i - 1; other < i + count; ++other)
          for_each_view(ops_[other], [&](const char*, const View& view, Access access) {
            const bool itself = view.data == to.data && view.bytes() == to.bytes();
            const bool read_by_product = other == i - 1 && access == Access::read;
            if (meet(to, view) && (!itself || read_by_product)) apart = false;
          });
      });
    return apart;
  }

  size_t norm_of(const RowLinear& linear, size_t i, RowEnd& end) {
    const auto* norm = op<AddRmsNorm>(i);
    const View& y = linear.y[0];
    if (!norm || linear.w.size() != 1 || norm->w.rank != 1 || y.columns() % kRun != 0 || y.columns() <= 128 ||
        y.columns() > 1024 * kRun || !(same(norm->a, y) || same(norm->b, y)) ||
        !all_vectors(norm->a, norm->b, norm->w, norm->sum, norm->y))
      return 0;
    end.kind = EndKind::norm, end.group = static_cast<int>(y.columns());
    end.norm = {norm->a.as<bf16>(),          norm->b.as<bf16>(),     norm->w.as<bf16>(), norm->sum.as<bf16>(),
                norm->y.as<bf16>(),          norm->rstd.as<float>(), end.group,          norm->eps,
                norm->plus_one ? 1.0f : 0.0f};
    end.rounded = rounded_for(norm->y, i + 1);
    return 1;
  }

  size_t gate_of(const RowLinear& linear, size_t i, RowEnd& end) {
    const auto* gate = op<SwiGlu>(i);
    if (!gate || linear.w.size() != 2 || !same(gate->gate, linear.y[0]) || !same(gate->up, linear.y[1]) ||
        !vectors(gate->y) || ceil_div(gate->y.columns(), kWarpRun) > kMostArrived)
      return 0;
    end.kind = EndKind::gate, end.group = kWarpRun, end.y = gate->y.as<bf16>(), end.gelu = gate->gelu;
    end.rounded = rounded_for(gate->y, i + 1);
    return 1;
  }

  size_t heads_of(const RowLinear& linear, size_t i, RowEnd& end) {
    if (linear.w.size() != 3) return 0;
    size_t count = 0;
    View in[2] = {linear.y[0], linear.y[1]};
    RowEnd found;
    for (int which = 0; which < 2; ++which) {
      const auto* norm = op<RmsNorm>(i + count);
      if (!norm || !same(norm->x, in[which])) continue;
      if (norm->w.rank != 1 || !all_vectors(norm->w, norm->y)) return 0;
      HeadEnd& head = found.head[which];
      head.w = norm->w.as<bf16>(), head.normed = norm->y.as<bf16>(), head.rstd = norm->rstd.as<float>();
      found.eps = norm->eps, found.shift = norm->plus_one ? 1.0f : 0.0f;
      in[which] = norm->y;
      ++count;
    }
    const auto* rope = op<Rope>(i + count);
    const auto* store = op<KvStore>(i + count + 1);
    if (!rope || !store || count == 1) return 0;
    if (count == 2) {
      const auto &q = std::get<RmsNorm>(ops_[i]), &k = std::get<RmsNorm>(ops_[i + 1]);
      if (q.eps != k.eps || q.plus_one != k.plus_one || q.w.elements() != rope->x.shape[2] ||
          k.w.elements() != rope->x.shape[2])
        return 0;
    }
    const int64_t dim = rope->x.shape[2], half = rope->inv_freq.elements();
    if (!same(rope->x, in[0]) || !rope->x2 || !same(rope->x2, in[1]) || rope->interleaved || rope->inverse ||
        half % kRun != 0 || (dim != 64 && dim != 128 && dim != 256) || !all_vectors(rope->y, rope->y2))
      return 0;
    const DType pool = store->k_pool.dtype;
    if (!same(store->k, rope->y2) || !store->v || !same(store->v, linear.y[2]) || store->v.shape[2] != dim ||
        store->k_levels || store->v_levels || store->v_pool.dtype != pool ||
        !(pool == DType::f32 || pool == DType::bf16 || pool == DType::f16) || !aligned(store->k_pool.data, 16) ||
        !aligned(store->v_pool.data, 16))
      return 0;
    found.kind = EndKind::heads, found.group = static_cast<int>(dim);
    int64_t groups = 0;
    for (int which = 0; which < 3; ++which) {
      const int64_t heads = linear.w[static_cast<size_t>(which)].shape[0] / dim;
      if (heads * dim != linear.w[static_cast<size_t>(which)].shape[0]) return 0;
      found.head[which].count = static_cast<int>(heads), groups += heads;
    }
    if (groups > kMostArrived) return 0;
    found.head[0].turned = rope->y.as<bf16>(), found.head[1].turned = rope->y2.as<bf16>();
    found.head[1].pool = store->k_pool.data, found.head[2].pool = store->v_pool.data;
    found.positions = rope->positions.as<int32_t>(), found.inv_freq = rope->inv_freq.as<float>();
    found.half = static_cast<int>(half), found.turn_scale = rope->scale;
    found.slots = store->slots.as<int32_t>(), found.pool_dtype = pool, found.pool_slots = store->k_pool.shape[0];
    end = found;
    return count + 2;
  }

  void attend(const PagedAttention& attention, size_t i) {
    if (attention.q.elements() == 0) return;
    const PagedShape shape = paged_shape(attention, context_);
    PagedPlan* plan = nullptr;
    for (const Plan& known : plans_)
      if (known.shape == shape && known.cu_q == attention.cu_q.data && known.lengths == attention.lengths.data)
        plan = known.plan;
    if (!plan) {
      plan = plan_pages(shape, attention.cu_q, attention.lengths, context_.plans, context_);
      plans_.push_back({shape, attention.cu_q.data, attention.lengths.data, plan});
    }
    RoundedRows rounded{};
    if (rounds_merged(shape) && vectors(attention.o)) {
      rounded = rounded_for(attention.o, i + 1);
      if (rounded && shape.group * shape.value_dim % rounded.how.group != 0) rounded = next_ = {};
    }
    qeng::attend(attention, shape, plan, rounded, context_);
  }

  // Lengths or boundaries may be written between attentions.
  void forget_plans(const Op& op) {
    if (plans_.empty()) return;
    for_each_view(op, [&](const char*, const View& view, Access access) {
      if (access == Access::read) return;
      const auto* begin = static_cast<const char*>(view.data);
      const auto holds = [&](const void* data) { return data >= begin && data < begin + view.bytes(); };
      std::erase_if(plans_, [&](const Plan& plan) { return holds(plan.cu_q) || holds(plan.lengths); });
    });
  }

  struct Plan {
    PagedShape shape;
    const void *cu_q, *lengths;
    PagedPlan* plan;
  };
  const std::vector<Op>& ops_;
  const std::vector<std::pair<size_t, std::function<void()>>>& calls_;
  bool reserve_;
  CudaContext& context_;
  RoundedRows next_{};  // x of the next operation, if the last one rounded it
  int turn_ = 0;
  std::vector<Plan> plans_;
};

}  // namespace

void queue_recorded(const RecordedOps& recorded, bool reserve, CudaContext& context) {
  context.reserving = reserve;
  try {
    Queue(recorded, reserve, context).run();
  } catch (...) {
    context.reserving = false;
    throw;
  }
  context.reserving = false;
}

}  // namespace qeng
