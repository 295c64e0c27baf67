// CausalConv and its gradient. A thread goes down the rows of one or two channels, a few rows of a document at a time, with
// a window of them in registers, so that each row is read once for all of its taps.
#include "kernels/cuda/bounds.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/vector.h"
#include "kernels/error.h"
#include "kernels/view_text.h"

namespace qeng {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 32;      // of a thread: its window costs the reads of up to seven more
constexpr int kStep = 8;       // rows that are on their way from memory at once
constexpr int kSumRows = 128;  // rows of a partial sum of dw

struct Conv {
  const int32_t* cu;
  int64_t rows, channels;
  int documents, width;
  Fault* fault;
};

// What sequences keep (kernels/ops/layers.h); state is null without.
struct Kept {
  float* state;
  const int32_t *pages, *lengths;
  int64_t count, depth, most, page_tokens;
};

// Boundary s, brought within the rows whatever it is.
__device__ inline int64_t bound(const Conv& conv, int s) {
  const int64_t value = conv.cu[s];
  return value < 0 ? 0 : value < conv.rows ? value : conv.rows;
}

// The document that a row is in, or the number of documents.
struct Document {
  int s;
  int64_t begin, end;
  __device__ Document(const Conv& conv, int64_t row) : s(0) {
    int high = conv.documents;  // the first boundary above the row is in (s, high], or there is none
    while (s < high) {
      const int middle = (s + high) / 2;
      if (bound(conv, middle + 1) > row)
        high = middle;
      else
        s = middle + 1;
    }
    find(conv);
  }
  __device__ void find(const Conv& conv) {
    begin = bound(conv, s), end = s < conv.documents ? bound(conv, s + 1) : conv.rows;
  }
  // To the document of the row, which is not before this one's.
  __device__ bool follow(const Conv& conv, int64_t row) {
    if (s == conv.documents || row < end) return false;
    while (s < conv.documents && row >= bound(conv, s + 1)) ++s;
    find(conv);
    return true;
  }
};

// The weights of n channels at the end of kTaps, f32 or T; those in front count nothing.
template <class T, int kTaps, int n>
struct Taps {
  int unused;
  float w[kTaps][n] = {};
  __device__ Taps(const void* weights, bool full, int64_t channel, int width) : unused(kTaps - width) {
    for (int k = 0; k < kTaps; ++k)
      for (int e = 0; e < n && k >= unused; ++e) {
        const int64_t at = (channel + e) * width + k - unused;
        w[k][e] = full ? static_cast<const float*>(weights)[at] : to_f32(static_cast<const T*>(weights)[at]);
      }
  }
};

// The kTaps - 1 rows before a place in a document, the oldest first; what the document has not is 0.
template <class T, int kTaps, int n>
struct Window {
  float rows[kTaps - 1][n] = {};
  __device__ void begin(const Conv& conv, const Document& document, const T* x, int64_t row, int64_t channel) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) {
      const int64_t from = row - (kTaps - 1) + j;
      for (int e = 0; e < n; ++e) rows[j][e] = 0;
      if (from >= document.begin && kTaps - 1 - j < conv.width)
        unpack(load<n>(x + from * conv.channels + channel), rows[j]);
    }
  }
  // The row that tap k of row i after the place multiplies, where `after` are those from the place on.
  template <int m>
  __device__ const float (&at(const float (&after)[m][n], int i, int k) const)[n] {
    const int j = i + k;
    return j < kTaps - 1 ? rows[j] : after[j - (kTaps - 1)];
  }
  template <int m>
  __device__ void shift(const float (&after)[m][n]) {
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j)
      for (int e = 0; e < n; ++e) rows[j][e] = j + m < kTaps - 1 ? rows[j + m][e] : after[j + m - (kTaps - 1)][e];
  }
};

// m rows from one on, from memory.
template <int m, int n, class T>
__device__ inline void read_rows(const Conv& conv, const T* x, int64_t row, int64_t channel, float (&to)[m][n]) {
#pragma unroll
  for (int i = 0; i < m; ++i) unpack(load<n>(x + (row + i) * conv.channels + channel), to[i]);
}

// Calls f with the number of rows, kStep at a time as long as there are as many, for all from `row` to before `end`.
template <class F>
__device__ inline void by_steps(int64_t& row, int64_t end, F f) {
  for (; row + kStep <= end; row += kStep) f(std::integral_constant<int, kStep>());
  for (; row < end; ++row) f(std::integral_constant<int, 1>());
}

__device__ inline void check_boundaries(const Conv& conv) {
  if (blockIdx.x != 0 || blockIdx.y != 0) return;
  for (int i = static_cast<int>(threadIdx.x); i <= conv.documents; i += kThreads) {
    const int value = conv.cu[i], before = i > 0 ? conv.cu[i - 1] : 0;
    if (value < before || value > conv.rows || (i == 0 && value != 0))
      report(conv.fault, FaultKind::bounds, i, value, conv.rows);
  }
}

// Where row t of sequence s is kept, or null where there is no such page.
__device__ inline float* kept_row(const Conv& conv, const Kept& kept, int s, int64_t t) {
  if (t < 0 || t >= kept.most * kept.page_tokens) {
    report(conv.fault, FaultKind::bounds, s, t, kept.most * kept.page_tokens);
    return nullptr;
  }
  const int64_t page = kept.pages[s * kept.most + t / kept.page_tokens];
  if (page >= 0 && page < kept.count) return kept.state + (page * kept.depth + t % kept.depth) * conv.channels;
  report(conv.fault, FaultKind::index, s, page, kept.count);
  return nullptr;
}

// full: weights and bias are f32, else T. n: channels of a thread.
template <class T, int kTaps, int n>
__global__ void QENG_BOUNDS(kThreads, 0, 1) causal_conv(const Conv conv, const T* __restrict__ x, const void* w,
                                                        const void* bias, bool full, const Kept kept, T* y) {
  check_boundaries(conv);
  const int64_t channel = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * n, first = int64_t{blockIdx.y} * kRows;
  if (channel >= conv.channels) return;
  const int64_t end = min(first + kRows, conv.rows);
  const Taps<T, kTaps, n> taps(w, full, channel, conv.width);
  float added[n] = {};
  for (int e = 0; e < n && bias; ++e)
    added[e] = full ? static_cast<const float*>(bias)[channel + e] : to_f32(static_cast<const T*>(bias)[channel + e]);
  Document document(conv, first);
  for (int64_t row = first; row < end;) {
    document.follow(conv, row);
    const bool real = document.s < conv.documents;
    Window<T, kTaps, n> window;
    window.begin(conv, document, x, row, channel);
    if (kept.state && real) {
      const int64_t begun = kept.lengths[document.s] - (document.end - document.begin);
#pragma unroll
      for (int j = 0; j < kTaps - 1; ++j) {
        const int64_t before = row - (kTaps - 1) + j - document.begin;
        if (j < taps.unused || before >= 0 || begun + before < 0) continue;
        if (const float* old = kept_row(conv, kept, document.s, begun + before))
          for (int e = 0; e < n; ++e) window.rows[j][e] = old[channel + e];
      }
    }
    by_steps(row, min(end, document.end), [&](auto rows) {
      constexpr int m = decltype(rows)::value;
      float after[m][n];
      read_rows(conv, x, row, channel, after);
#pragma unroll
      for (int i = 0; i < m; ++i) {
        float sum[n];
#pragma unroll
        for (int e = 0; e < n; ++e) {
          sum[e] = real ? added[e] : 0;
#pragma unroll
          for (int k = 0; k < kTaps; ++k)
            if (k >= taps.unused && real) sum[e] = fmaf(taps.w[k][e], window.at(after, i, k)[e], sum[e]);
        }
        store(y + (row + i) * conv.channels + channel, pack<T>(sum));
      }
      window.shift(after);
    });
  }
}

// Keeps those of a sequence's rows that are among the last of their pages.
template <class T>
__global__ void __launch_bounds__(kThreads) keep_rows(const Conv conv, const T* x, const Kept kept) {
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int s = static_cast<int>(blockIdx.y);
  if (channel >= conv.channels) return;
  const int64_t begin = bound(conv, s), end = bound(conv, s + 1), length = kept.lengths[s];
  const int64_t begun = length - (end - begin);
  if (end <= begin || begun < 0) return;
  for (int64_t t = begun; t < length; ++t) {
    t = max(t, min(length, (t / kept.page_tokens + 1) * kept.page_tokens) - kept.depth);
    if (float* to = kept_row(conv, kept, s, t))
      to[channel] = to_f32(x[(begin + t - begun) * conv.channels + channel]);
    else
      return;
  }
}

// The same backwards: a row's taps multiply those from it on.
template <class T, int kTaps, int n>
__global__ void __launch_bounds__(kThreads)
    causal_conv_dx(const Conv conv, const void* w, bool full, const T* __restrict__ dy, T* dx) {
  check_boundaries(conv);
  const int64_t channel = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * n, first = int64_t{blockIdx.y} * kRows;
  if (channel >= conv.channels) return;
  const int64_t end = min(first + kRows, conv.rows);
  const Taps<T, kTaps, n> taps(w, full, channel, conv.width);
  Document document(conv, first);
  for (int64_t row = first; row < end;) {
    document.follow(conv, row);
    const int64_t stop = document.s < conv.documents ? document.end : row;  // past the documents no row counts
    const auto read = [&](int64_t from, float(&to)[n]) {
      for (int e = 0; e < n; ++e) to[e] = 0;
      if (from < stop) unpack(load<n>(dy + from * conv.channels + channel), to);
    };
    Window<T, kTaps, n> window;  // of the rows from this one on
#pragma unroll
    for (int j = 0; j < kTaps - 1; ++j) read(row + j, window.rows[j]);
    by_steps(row, min(end, document.end), [&](auto rows) {
      constexpr int m = decltype(rows)::value;
      float after[m][n];
#pragma unroll
      for (int i = 0; i < m; ++i) read(row + kTaps - 1 + i, after[i]);
#pragma unroll
      for (int i = 0; i < m; ++i) {
        float sum[n] = {};
#pragma unroll
        for (int e = 0; e < n; ++e)
#pragma unroll
          for (int k = 0; k < kTaps; ++k)
            if (k >= taps.unused) sum[e] = fmaf(taps.w[k][e], window.at(after, i, kTaps - 1 - k)[e], sum[e]);
        store(dx + (row + i) * conv.channels + channel, pack<T>(sum));
      }
      window.shift(after);
    });
  }
}

// partial: [blocks of kSumRows rows, channels, width], and of the bias behind it [blocks, channels].
template <class T, int kTaps, int n>
__global__ void __launch_bounds__(kThreads)
    causal_conv_dw(const Conv conv, const T* __restrict__ x, const T* __restrict__ dy, float* partial) {
  check_boundaries(conv);
  const int64_t channel = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * n, first = int64_t{blockIdx.y} * kSumRows;
  if (channel >= conv.channels) return;
  const int64_t end = min(first + kSumRows, conv.rows);
  const int unused = kTaps - conv.width;
  Document document(conv, first);
  float sums[kTaps][n] = {}, sum[n] = {};
  for (int64_t row = first; row < end;) {
    document.follow(conv, row);
    if (document.s == conv.documents) break;
    Window<T, kTaps, n> window;
    window.begin(conv, document, x, row, channel);
    by_steps(row, min(end, document.end), [&](auto rows) {
      constexpr int m = decltype(rows)::value;
      float after[m][n], gradient[m][n];
      read_rows(conv, x, row, channel, after);
      read_rows(conv, dy, row, channel, gradient);
#pragma unroll
      for (int i = 0; i < m; ++i)
#pragma unroll
        for (int e = 0; e < n; ++e) {
          sum[e] += gradient[i][e];
#pragma unroll
          for (int k = 0; k < kTaps; ++k)
            if (k >= unused) sums[k][e] = fmaf(gradient[i][e], window.at(after, i, k)[e], sums[k][e]);
        }
      window.shift(after);
    });
  }
  for (int e = 0; e < n; ++e) {
    float* mine = partial + (int64_t{blockIdx.y} * conv.channels + channel + e) * conv.width;
    for (int k = 0; k < kTaps; ++k)
      if (k >= unused) mine[k - unused] = sums[k][e];
    partial[(int64_t{gridDim.y} * conv.width + blockIdx.y) * conv.channels + channel + e] = sum[e];
  }
}

// ---------------------------------------------------------------- launchers

Conv conv_of(const char* name, const View& x, const View& w, const View& cu, CudaContext& context) {
  if (ceil_div(x.rows(), kRows) > 65535 || cu.elements() > 65536)
    fail("unsupported", name, ": x is ", shape_text(x), ", cu ", shape_text(cu), ", more than one launch takes");
  return {cu.as<int32_t>(), x.rows(), x.columns(), static_cast<int>(cu.elements()) - 1, static_cast<int>(w.columns()),
          context.fault};
}

dim3 grid_of(const Conv& conv, int n, int64_t rows) {
  return dim3(static_cast<unsigned>(ceil_div(conv.channels, n * kThreads)), static_cast<unsigned>(rows));
}

// Calls f with x's type, the taps of a thread, which are as many or a few more, and its channels: two, if that is how the
// rows of all views lie.
template <class F, class... Views>
void with_taps(const Conv& conv, F f, const View& x, const Views&... more) {
  for_float(x, [&](auto* type) {
    const auto with_channels = [&](auto taps) {
      if (conv.channels % 2 == 0 && aligned_for(2, x, more...))
        f(type, taps, std::integral_constant<int, 2>());
      else
        f(type, taps, std::integral_constant<int, 1>());
    };
    if (conv.width <= 4)
      with_channels(std::integral_constant<int, 4>());
    else
      with_channels(std::integral_constant<int, 8>());
  });
}

}  // namespace

void run(const CausalConv& op, CudaContext& context) {
  const Conv conv = conv_of(op.name, op.x, op.w, op.cu, context);
  Kept kept{};
  if (op.state)
    kept = {op.state.as<float>(), op.pages.as<int32_t>(), op.lengths.as<int32_t>(),
            op.state.shape[0],    op.state.shape[1],      op.pages.shape[1],
            op.page_tokens};
  with_taps(
      conv,
      [&](auto* type, auto taps, auto n) {
        using T = std::remove_pointer_t<decltype(type)>;
        QENG_LAUNCH(context, (causal_conv<T, taps(), n()>), grid_of(conv, n(), ceil_div(conv.rows, kRows)),
                    dim3(kThreads), 0, conv, op.x.as<T>(), op.w.data, op.bias.data, op.w.dtype == DType::f32, kept,
                    op.y.as<T>());
        if (op.state)
          QENG_LAUNCH(context, keep_rows<T>, grid_of(conv, 1, conv.documents), dim3(kThreads), 0, conv, op.x.as<T>(),
                      kept);
      },
      op.x, op.y);
}

void run(const CausalConvGrad& op, CudaContext& context) {
  const Conv conv = conv_of(op.name, op.x, op.w, op.cu, context);
  const int64_t blocks = ceil_div(conv.rows, kSumRows);
  float* partial = nullptr;
  with_taps(
      conv,
      [&](auto* type, auto taps, auto n) {
        using T = std::remove_pointer_t<decltype(type)>;
        if (op.dx)
          QENG_LAUNCH(context, (causal_conv_dx<T, taps(), n()>), grid_of(conv, n(), ceil_div(conv.rows, kRows)),
                      dim3(kThreads), 0, conv, op.w.data, op.w.dtype == DType::f32, op.dy.as<T>(), op.dx.as<T>());
        if (!op.dw && !op.dbias) return;
        partial = context.scratch.take<float>(blocks * conv.channels * (conv.width + 1));
        QENG_LAUNCH(context, (causal_conv_dw<T, taps(), n()>), grid_of(conv, n(), blocks), dim3(kThreads), 0, conv,
                    op.x.as<T>(), op.dy.as<T>(), partial);
      },
      op.x, op.dy, op.dx);
  const int64_t weights = conv.channels * conv.width;
  if (op.dw) launch_add_partial_sums(context, op.name, partial, blocks, weights, op.dw.as<float>(), op.acc);
  if (op.dbias)
    launch_add_partial_sums(context, op.name, partial + blocks * weights, blocks, conv.channels, op.dbias.as<float>(),
                            op.acc);
}

}  // namespace qeng
