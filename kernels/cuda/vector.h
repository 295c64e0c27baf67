// Reading and writing memory 16 bytes at a time as floats in registers, and the shape of elementwise kernels.
//
//   float x[8], y[8];
//   unpack(load_once<8>(in + i), x);      // in, out: const bf16*, bf16*; in + i aligned to 16 bytes
//   store(out + i, pack<bf16>(y));
//
// The same code with 1 in place of 8 is the path for tails and for memory that is aligned to its elements only.
#pragma once
#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx/ptx.h"

namespace qeng {

// Elements to an access where types mix: 16 bytes of the widest. The narrower types then move 8 bytes a lane, and each
// access still covers contiguous memory over the lanes of a warp.
template <class... T>
constexpr int kVector = static_cast<int>(16 / std::max({sizeof(T)...}));

// Whether memory is aligned so that n elements of each view can be moved at once from any multiple of n on. Rows of a
// matrix start at such a multiple where n divides its columns.
template <class... Views>
bool aligned_for(int n, const Views&... views) {
  return (aligned(views.data, static_cast<size_t>(n) * dtype_size(views.dtype)) && ...);
}

// n neighbouring elements as they lie in memory, which for bf16 is half the registers of their values: 1, 2, 4 or 8
// bytes, or a multiple of 16.
template <class T, int n>
struct Pack {
  static constexpr int kBytes = n * static_cast<int>(sizeof(T)), kWords = (kBytes + 3) / 4;
  static_assert(kBytes % 16 == 0 || kBytes == 8 || kBytes == 4 || kBytes == 2 || kBytes == 1);
  uint32_t word[kWords];
};

namespace detail {

struct Plain {
  template <class T>
  static __device__ T get(const T* p) {
    return *p;
  }
  template <class T>
  static __device__ void put(T* p, T value) {
    *p = value;
  }
};
struct Streaming {  // evicted first from L1 and L2
  template <class T>
  static __device__ T get(const T* p) {
    return __ldcs(p);
  }
  template <class T>
  static __device__ void put(T* p, T value) {
    __stcs(p, value);
  }
};

template <class Hint, int n, class T>
__device__ Pack<T, n> load(const T* p) {
  Pack<T, n> pack;
  if constexpr (pack.kBytes >= 16) {
    for (int i = 0; i < pack.kWords; i += 4) {
      const uint4 four = Hint::get(reinterpret_cast<const uint4*>(p) + i / 4);
      pack.word[i] = four.x, pack.word[i + 1] = four.y, pack.word[i + 2] = four.z, pack.word[i + 3] = four.w;
    }
  } else if constexpr (pack.kBytes == 8) {
    const uint2 two = Hint::get(reinterpret_cast<const uint2*>(p));
    pack.word[0] = two.x, pack.word[1] = two.y;
  } else if constexpr (pack.kBytes == 4) {
    pack.word[0] = Hint::get(reinterpret_cast<const unsigned int*>(p));
  } else if constexpr (pack.kBytes == 2) {
    pack.word[0] = Hint::get(reinterpret_cast<const unsigned short*>(p));
  } else {
    pack.word[0] = Hint::get(reinterpret_cast<const unsigned char*>(p));
  }
  return pack;
}

template <class Hint, class T, int n>
__device__ void store(T* p, const Pack<T, n>& pack) {
  if constexpr (pack.kBytes >= 16) {
    for (int i = 0; i < pack.kWords; i += 4)
      Hint::put(reinterpret_cast<uint4*>(p) + i / 4,
                make_uint4(pack.word[i], pack.word[i + 1], pack.word[i + 2], pack.word[i + 3]));
  } else if constexpr (pack.kBytes == 8) {
    Hint::put(reinterpret_cast<uint2*>(p), make_uint2(pack.word[0], pack.word[1]));
  } else if constexpr (pack.kBytes == 4) {
    Hint::put(reinterpret_cast<unsigned int*>(p), pack.word[0]);
  } else if constexpr (pack.kBytes == 2) {
    Hint::put(reinterpret_cast<unsigned short*>(p), static_cast<unsigned short>(pack.word[0]));
  } else {
    Hint::put(reinterpret_cast<unsigned char*>(p), static_cast<unsigned char>(pack.word[0]));
  }
}

}  // namespace detail

// p is aligned to the pack's bytes, or to 16 where it has more. load_once and store_once are for what nobody reads
// again before the L2 cache has turned over; load and store for what this kernel or the next one comes back to.
template <int n, class T>
__device__ Pack<T, n> load(const T* p) {
  return detail::load<detail::Plain, n>(p);
}
template <int n, class T>
__device__ Pack<T, n> load_once(const T* p) {
  return detail::load<detail::Streaming, n>(p);
}
template <class T, int n>
__device__ void store(T* p, const Pack<T, n>& pack) {
  detail::store<detail::Plain>(p, pack);
}
template <class T, int n>
__device__ void store_once(T* p, const Pack<T, n>& pack) {
  detail::store<detail::Streaming>(p, pack);
}

// The values of a pack of float, bf16 or f16, exactly.
template <class T, int n>
__device__ void unpack(const Pack<T, n>& pack, float (&x)[n]) {
  if constexpr (std::is_same_v<T, float>) {
    for (int i = 0; i < n; ++i) x[i] = float_of(pack.word[i]);
  } else if constexpr (n == 1) {
    x[0] = to_f32(T{static_cast<uint16_t>(pack.word[0])});
  } else {
    for (int i = 0; i < n; i += 2) {
      const uint32_t pair = pack.word[i / 2];
      if constexpr (std::is_same_v<T, bf16>)
        x[i] = float_of(pair << 16), x[i + 1] = float_of(pair & 0xffff0000u);
      else
        ptx::unpack_f16(pair, x[i], x[i + 1]);
    }
  }
}

// Values rounded to T (nearest, ties to even; a NaN stays one).
template <class T, int n>
__device__ Pack<T, n> pack(const float (&x)[n]) {
  Pack<T, n> result;
  if constexpr (std::is_same_v<T, float>) {
    for (int i = 0; i < n; ++i) result.word[i] = bits_of(x[i]);
  } else if constexpr (n == 1) {
    T rounded;
    put(&rounded, x[0]);
    result.word[0] = rounded.bits;
  } else {
    for (int i = 0; i < n; i += 2)
      result.word[i / 2] = std::is_same_v<T, bf16> ? ptx::pack_bf16(x[i], x[i + 1]) : ptx::pack_f16(x[i], x[i + 1]);
  }
  return result;
}

// The shape of an elementwise kernel. F is a struct of pointers and scalars with
//   static constexpr int kWidth, kInputs;             elements to an access, tensors read
//   template <int n> __device__ auto read(int64_t i) const;                       the packs of elements i .. i + n
//   template <int n, class Packs> __device__ void write(int64_t i, const Packs&) const;   computes and stores them
//   [__device__ void begin();]                        once in each thread, to fetch scalars that lie in device memory
// A block takes a tile of kUnroll accesses a thread and reads all of it before it writes, so F may work in place. About
// 1000 ns of latency at the 33 GB/s a multiprocessor of an H200 gets to move are 32 KB that have to be under way in it;
// 1024 threads with four 16-byte loads each are twice that, so occupancy may be low.
constexpr int kElementwiseThreads = 256;
template <class F>
constexpr int kUnroll = 4 / std::clamp(F::kInputs, 1, 4);

template <int n, class F>
__global__ void __launch_bounds__(kElementwiseThreads) elementwise(F f, int64_t count) {
  constexpr int unroll = kUnroll<F>, tile = unroll * kElementwiseThreads;
  const int64_t whole = count / n, begin = int64_t{blockIdx.x} * tile, mine = begin + threadIdx.x;
  if constexpr (requires { f.begin(); }) f.begin();
  if (begin + tile <= whole) {
    decltype(f.template read<n>(0)) packs[unroll];
    for (int u = 0; u < unroll; ++u) packs[u] = f.template read<n>((mine + u * kElementwiseThreads) * n);
    for (int u = 0; u < unroll; ++u) f.template write<n>((mine + u * kElementwiseThreads) * n, packs[u]);
    return;
  }
  for (int64_t i = mine; i < whole; i += kElementwiseThreads) f.template write<n>(i * n, f.template read<n>(i * n));
  if (const int64_t i = whole * n + threadIdx.x; i < count) f.template write<1>(i, f.template read<1>(i));
}

// vectors: whether all memory of f is aligned for its width.
template <class F>
void launch_elementwise(CudaContext& context, const char* name, const F& f, int64_t count, bool vectors) {
  const int64_t tile = int64_t{kUnroll<F>} * kElementwiseThreads * (vectors ? F::kWidth : 1);
  launch(context, name, vectors ? elementwise<F::kWidth, F> : elementwise<1, F>,
         dim3(static_cast<unsigned>(ceil_div(count, tile))), dim3(kElementwiseThreads), 0, f, count);
}

}  // namespace qeng
