// Add, Scale, Cast, Copy, Fill.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {

void run(const Add& op, CpuContext& context) {
  parallel_for(context.threads, op.a.elements(), kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->add(float_type(op.a), at(op.a, begin), at(op.b, begin), at(op.y, begin), end - begin);
  });
}

namespace {

void scale(const View& x, const View& y, float alpha, CpuContext& context) {
  parallel_for(context.threads, x.elements(), kGrainElements, [&](int64_t begin, int64_t end) {
    context.isa->scale(float_type(x), at(x, begin), float_type(y), at(y, begin), alpha, end - begin);
  });
}

void copy(const View& x, const View& y, CpuContext& context) {
  parallel_for(context.threads, static_cast<int64_t>(x.bytes()), 4 * kGrainElements, [&](int64_t begin, int64_t end) {
    std::memcpy(y.as<char>() + begin, x.as<char>() + begin, static_cast<size_t>(end - begin));
  });
}

void decode(const View& x, const View& y, CpuContext& context) {
  const int64_t columns = x.columns();
  parallel_for(context.threads, x.rows(), grain_rows(columns), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) decode_into(x, r, 0, columns, y.dtype, at(y, r * columns), context);
  });
}

template <class T>
void fill_with(const View& y, T value, CpuContext& context) {
  const T nothing = {};
  const bool zero =
      std::memcmp(&value, &nothing, sizeof(T)) == 0;  // the usual value, and memset is several times faster
  parallel_for(context.threads, y.elements(), 2 * kGrainElements, [&](int64_t begin, int64_t end) {
    T* out = y.as<T>() + begin;
    if (zero)
      std::memset(out, 0, sizeof(T) * static_cast<size_t>(end - begin));
    else
      std::fill(out, out + (end - begin), value);
  });
}

}  // namespace

void run(const Scale& op, CpuContext& context) { scale(op.x, op.y, op.alpha, context); }

void run(const Cast& op, CpuContext& context) {
  if (op.x.dtype == op.y.dtype)
    copy(op.x, op.y, context);
  else if (is_block(op.x.dtype))
    decode(op.x, op.y, context);
  else
    scale(op.x, op.y, 1.0f, context);
}

void run(const Copy& op, CpuContext& context) { copy(op.x, op.y, context); }

void run(const Fill& op, CpuContext& context) {
  switch (op.y.dtype) {
    case DType::f32: return fill_with(op.y, op.value, context);
    case DType::bf16: return fill_with(op.y, to_bf16(op.value), context);
    case DType::f16: return fill_with(op.y, to_f16(op.value), context);
    case DType::i32: return fill_with(op.y, static_cast<int32_t>(op.value), context);
    case DType::i64: return fill_with(op.y, static_cast<int64_t>(op.value), context);
    case DType::u8: return fill_with(op.y, static_cast<uint8_t>(op.value), context);
    default: {  // a block format, whose zero bytes are zeros
      const View bytes(op.y.data, DType::u8, {static_cast<int64_t>(op.y.bytes())});
      return run(Fill{bytes, 0}, context);
    }
  }
}

}  // namespace qeng
