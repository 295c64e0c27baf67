// Rearrange. Dimensions are put in the order of y's memory and joined where both sides allow; then lines are copied, or,
// where x runs along another dimension than y, tiles of both that fit the cache.
#include "kernels/math/rearrange.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {
namespace {

constexpr int64_t kTile = 32;

using Dimension = RearrangedDimension;

// T: an unsigned type of the element's size
template <class T>
void copy(const Rearrange& op, CpuContext& context) {
  std::vector<Dimension> outer = rearranged_dimensions(op);
  const Dimension line = outer.back();  // along which y lies
  outer.pop_back();
  const Dimension across = take_across(outer, line);
  int64_t outers = 1;
  for (const Dimension& each : outer) outers *= each.size;
  const int64_t bands = (across.size + kTile - 1) / kTile, band = std::min(across.size, kTile);
  const T* x = op.x.as<T>() + op.from.first;
  T* y = op.y.as<T>() + op.to.first;
  const int64_t step = std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, line.size * band));
  const bool split = outers * bands < 4 * context.threads && line.size * band > 2 * kGrainElements;  // few, long lines
  const int64_t pieces = split ? (line.size + kGrainElements - 1) / kGrainElements : 1;
  parallel_for(context.threads, outers * bands * pieces, split ? 1 : step, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t piece = unit % pieces, first = unit / pieces % bands * kTile;
      const T* from = x + first * across.from;
      T* to = y + first * across.to;
      for (int64_t rest = unit / pieces / bands, d = static_cast<int64_t>(outer.size()); d-- > 0;) {
        const Dimension& each = outer[static_cast<size_t>(d)];
        from += rest % each.size * each.from, to += rest % each.size * each.to;
        rest /= each.size;
      }
      const int64_t lines = std::min(kTile, across.size - first);
      const int64_t line_begin = split ? piece * kGrainElements : 0,
                    line_end = split ? std::min(line.size, line_begin + kGrainElements) : line.size;
      for (int64_t tile = line_begin; tile<line_end; tile += lines> 1 ? kTile : line_end - line_begin)
        for (int64_t a = 0; a < lines; ++a) {
          const T* in = from + a * across.from;
          T* out = to + a * across.to;
          const int64_t stop = lines > 1 ? std::min(line_end, tile + kTile) : line_end;
          if (line.from == 1 && line.to == 1)
            std::memcpy(out + tile, in + tile, static_cast<size_t>(stop - tile) * sizeof(T));
          else
            for (int64_t i = tile; i < stop; ++i) out[i * line.to] = in[i * line.from];
        }
    }
  });
}

// y (+)= x, element by element.
void add(const Rearrange& op, CpuContext& context) {
  std::vector<Dimension> outer = rearranged_dimensions(op);
  const Dimension line = outer.back();
  outer.pop_back();
  int64_t outers = 1;
  for (const Dimension& each : outer) outers *= each.size;
  const size_t size = dtype_size(op.x.dtype);
  parallel_for(context.threads, outers, grain_rows(line.size), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      int64_t from = op.from.first, to = op.to.first;
      for (int64_t rest = unit, d = static_cast<int64_t>(outer.size()); d-- > 0;) {
        const Dimension& each = outer[static_cast<size_t>(d)];
        from += rest % each.size * each.from, to += rest % each.size * each.to;
        rest /= each.size;
      }
      if (line.from == 1 && line.to == 1 && op.x.dtype != DType::f16) {
        context.isa->add(float_type(op.x), at(op.y, to), at(op.x, from), at(op.y, to), line.size);
        continue;
      }
      const auto each = [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        for (int64_t i = 0; i < line.size; ++i) {
          T* y = op.y.as<T>() + to + i * line.to;
          put(y, to_f32(*y) + to_f32(op.x.as<T>()[from + i * line.from]));
        }
      };
      if (size == 4)
        each(static_cast<float*>(nullptr));
      else if (op.x.dtype == DType::bf16)
        each(static_cast<bf16*>(nullptr));
      else
        each(static_cast<f16*>(nullptr));
    }
  });
}

}  // namespace

void run(const Rearrange& op, CpuContext& context) {
  if (op.space.elements() == 0) return;
  if (op.acc) return add(op, context);
  switch (dtype_size(op.x.dtype)) {
    case 1: return copy<uint8_t>(op, context);
    case 2: return copy<uint16_t>(op, context);
    case 4: return copy<uint32_t>(op, context);
    default: return copy<uint64_t>(op, context);
  }
}

}  // namespace qeng
