// Gather and ScatterAdd.
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {
namespace {

// Of index [outer or 1, m, inner or 1]: elements from one index of each dimension to the next.
struct IndexPlaces {
  const int32_t* data;
  int64_t outer, m, inner;
  IndexPlaces(const View& index)
      : data(index.as<int32_t>()),
        outer(index.shape[0] == 1 ? 0 : index.shape[1] * index.shape[2]),
        m(index.shape[2]),
        inner(index.shape[2] == 1 ? 0 : 1) {}
  int64_t at(int64_t o, int64_t j, int64_t i) const { return data[o * outer + j * m + i * inner]; }
};

void check_values(const char* op, const View& index, int64_t n) {
  for (int64_t i = 0; i < index.elements(); ++i) {
    const int32_t value = index.as<int32_t>()[i];
    if (value < 0 || value >= n) fail("value", op, ": index ", value, " at position ", i, " is outside [0, ", n, ")");
  }
}

template <class T>
void gather(const Gather& op, CpuContext& context) {
  const IndexPlaces index(op.index);
  const int64_t n = op.x.shape[1], m = op.y.shape[1], inner = op.y.shape[2];
  const T* x = op.x.as<T>();
  T* y = op.y.as<T>();
  parallel_for(context.threads, op.y.shape[0] * m, grain_rows(inner), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t o = row / m, j = row % m;
      if (index.inner == 0)
        std::memcpy(y + row * inner, x + (o * n + index.at(o, j, 0)) * inner, static_cast<size_t>(inner) * sizeof(T));
      else
        for (int64_t i = 0; i < inner; ++i) y[row * inner + i] = x[(o * n + index.at(o, j, i)) * inner + i];
    }
  });
}

}  // namespace

void run(const Gather& op, CpuContext& context) {
  if (op.y.elements() == 0) return;
  check_values(op.name, op.index, op.x.shape[1]);
  switch (dtype_size(op.x.dtype)) {
    case 1: return gather<uint8_t>(op, context);
    case 2: return gather<uint16_t>(op, context);
    case 4: return gather<uint32_t>(op, context);
    default: return gather<uint64_t>(op, context);
  }
}

// A thread has columns of its own, or whole outers: each sum is in order of j.
void run(const ScatterAdd& op, CpuContext& context) {
  const int64_t n = op.y.shape[1], m = op.x.shape[1], inner = op.y.shape[2], outers = op.y.shape[0];
  if (op.x.elements() == 0) return;
  check_values(op.name, op.index, n);
  const IndexPlaces index(op.index);
  constexpr int64_t kColumns = 64;
  const int64_t bands = outers >= 4 * context.threads ? 1 : (inner + kColumns - 1) / kColumns;
  const int64_t width = bands == 1 ? inner : kColumns;
  parallel_for(context.threads, outers * bands, grain_rows(m * width), [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t o = unit / bands, first = unit % bands * width, last = std::min(inner, first + width);
      for (int64_t j = 0; j < m; ++j) {
        const int64_t from = (o * m + j) * inner;
        if (index.inner == 0) {
          float* to = op.y.as<float>() + (o * n + index.at(o, j, 0)) * inner;
          if (op.x.dtype != DType::f16) {
            context.isa->accumulate(float_type(op.x), at(op.x, from + first), to + first, last - first);
            continue;
          }
          for (int64_t i = first; i < last; ++i) to[i] += to_f32(op.x.as<f16>()[from + i]);
          continue;
        }
        for (int64_t i = first; i < last; ++i) {
          const float value = op.x.dtype == DType::f32    ? op.x.as<float>()[from + i]
                              : op.x.dtype == DType::bf16 ? to_f32(op.x.as<bf16>()[from + i])
                                                          : to_f32(op.x.as<f16>()[from + i]);
          op.y.as<float>()[(o * n + index.at(o, j, i)) * inner + i] += value;
        }
      }
    }
  });
}

}  // namespace qeng
