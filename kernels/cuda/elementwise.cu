// Add, Scale, Cast, Copy, Fill. Inputs are read once here, and what is written is what the next operation reads.
#include "kernels/cuda/linear/stored.h"
#include "kernels/cuda/vector.h"

namespace qeng {

namespace {

template <class T>
struct Sum {
  static constexpr int kWidth = kVector<T>, kInputs = 2;
  const T *a, *b;
  T* y;
  template <int n>
  struct Packs {
    Pack<T, n> a, b;
  };
  template <int n>
  __device__ Packs<n> read(int64_t i) const {
    return {load_once<n>(a + i), load_once<n>(b + i)};
  }
  template <int n>
  __device__ void write(int64_t i, const Packs<n>& packs) const {
    float left[n], right[n];
    unpack(packs.a, left), unpack(packs.b, right);
    for (int k = 0; k < n; ++k) left[k] += right[k];
    store(y + i, pack<T>(left));
  }
};

// Between a type of 2 bytes and one of 4, an access has 4 elements.
template <class From, class To>
struct Product {
  static constexpr int kWidth = kVector<From, To>, kInputs = 1;
  const From* x;
  To* y;
  float alpha;
  template <int n>
  __device__ Pack<From, n> read(int64_t i) const {
    return load_once<n>(x + i);
  }
  template <int n>
  __device__ void write(int64_t i, const Pack<From, n>& packed) const {
    float value[n];
    unpack(packed, value);
    for (int k = 0; k < n; ++k) value[k] *= alpha;
    store(y + i, pack<To>(value));
  }
};

// T: any type of the right size. The pattern is the element, repeated to 8 bytes.
template <class T>
struct Constant {
  static constexpr int kWidth = kVector<T>, kInputs = 0;
  struct Nothing {};
  T* y;
  uint32_t pattern[2];
  template <int n>
  __device__ Nothing read(int64_t) const {
    return {};
  }
  template <int n>
  __device__ void write(int64_t i, Nothing) const {
    Pack<T, n> packed;
    for (int k = 0; k < packed.kWords; ++k) packed.word[k] = pattern[k % 2];
    store(y + i, packed);
  }
};

template <class F>
void for_storage(const View& view, F f) {
  if (view.dtype == DType::f16)
    f(static_cast<f16*>(nullptr));
  else
    for_float(view, f);
}

void scale(const char* name, const View& x, const View& y, float alpha, CudaContext& context) {
  for_storage(x, [&](auto* from) {
    for_storage(y, [&](auto* to) {
      using F = Product<std::remove_pointer_t<decltype(from)>, std::remove_pointer_t<decltype(to)>>;
      const F product{static_cast<decltype(from)>(x.data), static_cast<decltype(to)>(y.data), alpha};
      launch_elementwise(context, name, product, x.elements(), aligned_for(F::kWidth, x, y));
    });
  });
}

void copy(const char* name, const View& x, const View& y, CudaContext& context) {
  if (x.bytes() == 0) return;
  finish_launch(context, name, cudaMemcpyAsync(y.data, x.data, x.bytes(), cudaMemcpyDefault, context.stream));
}

template <class T>
void fill_with(const Fill& op, T value, CudaContext& context) {
  Constant<T> constant{op.y.as<T>(), {}};
  for (size_t i = 0; i < sizeof(constant.pattern); i += sizeof(T))
    std::memcpy(reinterpret_cast<char*>(constant.pattern) + i, &value, sizeof(T));
  launch_elementwise(context, op.name, constant, op.y.elements(), aligned_for(Constant<T>::kWidth, op.y));
}

}  // namespace

void run(const Add& op, CudaContext& context) {
  for_float(op.a, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch_elementwise(context, op.name, Sum<T>{op.a.as<T>(), op.b.as<T>(), op.y.as<T>()}, op.a.elements(),
                       aligned_for(Sum<T>::kWidth, op.a, op.b, op.y));
  });
}

void run(const Scale& op, CudaContext& context) { scale(op.name, op.x, op.y, op.alpha, context); }

void run(const Cast& op, CudaContext& context) {
  if (is_block(op.x.dtype))
    decode_rows(op.name, {op.x, 0, op.x.rows(), 0, op.x.columns(), nullptr, op.y.data, op.y.dtype}, context);
  else if (op.x.dtype == op.y.dtype)
    copy(op.name, op.x, op.y, context);
  else
    scale(op.name, op.x, op.y, 1.0f, context);
}

void run(const Copy& op, CudaContext& context) { copy(op.name, op.x, op.y, context); }

void run(const Fill& op, CudaContext& context) {
  switch (op.y.dtype) {
    case DType::f32: return fill_with(op, op.value, context);
    case DType::bf16: return fill_with(op, to_bf16(op.value), context);
    case DType::f16: return fill_with(op, to_f16(op.value), context);
    case DType::i32: return fill_with(op, static_cast<int32_t>(op.value), context);
    case DType::i64: return fill_with(op, static_cast<int64_t>(op.value), context);
    case DType::u8: return fill_with(op, static_cast<uint8_t>(op.value), context);
    default: {  // a block format, whose zero bytes are zeros
      const View bytes(op.y.data, DType::u8, {static_cast<int64_t>(op.y.bytes())});
      return run(Fill{bytes, 0}, context);
    }
  }
}

}  // namespace qeng
