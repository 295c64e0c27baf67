// CausalConv and its gradient. A thread goes down the rows of one channel with a window of them in registers, so that
// each row is read once for all of its taps.
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/vector.h"

namespace qeng {
namespace {

constexpr int kThreads = 128;  // channels of a block
constexpr int kRows = 32;      // of a thread: its window costs the reads of up to seven more
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

// The weights of a channel at the end of kTaps, f32 or T; those in front count nothing.
template <class T, int kTaps>
struct Taps {
  float w[kTaps];
  __device__ Taps(const void* weights, bool full, int64_t channel, int width) {
    for (int k = 0; k < kTaps; ++k) {
      const int j = k - (kTaps - width);
      const int64_t at = channel * width + j;
      w[k] = j < 0 ? 0 : full ? static_cast<const float*>(weights)[at] : to_f32(static_cast<const T*>(weights)[at]);
    }
  }
};

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

// full: weights and bias are f32, else T.
template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads) causal_conv(const Conv conv, const T* __restrict__ x, const void* w,
                                                        const void* bias, bool full, const Kept kept, T* y) {
  check_boundaries(conv);
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = int64_t{blockIdx.y} * kRows;
  if (channel >= conv.channels) return;
  const int64_t end = min(first + kRows, conv.rows);
  const Taps<T, kTaps> taps(w, full, channel, conv.width);
  const float added = !bias  ? 0
                      : full ? static_cast<const float*>(bias)[channel]
                             : to_f32(static_cast<const T*>(bias)[channel]);
  Document document(conv, first);
  float window[kTaps] = {};  // the rows up to this one
  for (int64_t row = first; row < end; ++row) {
    if (document.follow(conv, row) || row == first) {
      const bool keeps = kept.state && document.s < conv.documents;
      const int64_t begun = keeps ? kept.lengths[document.s] - (document.end - document.begin) : 0;
      for (int k = 1; k < kTaps; ++k) {  // those before the row; the loop below shifts them into place
        const int64_t from = row - kTaps + k, before = from - document.begin;
        window[k] = 0;
        if (kTaps - k >= conv.width) continue;
        if (before >= 0)
          window[k] = to_f32(x[from * conv.channels + channel]);
        else if (keeps && begun + before >= 0)
          if (const float* old = kept_row(conv, kept, document.s, begun + before)) window[k] = old[channel];
      }
    }
    for (int k = 0; k + 1 < kTaps; ++k) window[k] = window[k + 1];
    for (int k = 0; k + 1 < kTaps; ++k)
      if (k < kTaps - conv.width) window[k] = 0;
    window[kTaps - 1] = to_f32(x[row * conv.channels + channel]);
    float sum = added;
    for (int k = 0; k < kTaps; ++k) sum = fmaf(taps.w[k], window[k], sum);
    put(y + row * conv.channels + channel, document.s < conv.documents ? sum : 0.0f);
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

// The same backwards: the window is of the rows from this one on.
template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads)
    causal_conv_dx(const Conv conv, const void* w, bool full, const T* __restrict__ dy, T* dx) {
  check_boundaries(conv);
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = int64_t{blockIdx.y} * kRows;
  if (channel >= conv.channels) return;
  const int64_t end = min(first + kRows, conv.rows);
  const Taps<T, kTaps> taps(w, full, channel, conv.width);
  Document document(conv, first);
  for (int64_t row = first; row < end; ++row) {
    document.follow(conv, row);
    float sum = 0;
    for (int k = 0; k < kTaps; ++k) {
      const int64_t to = row + kTaps - 1 - k;
      if (k >= kTaps - conv.width && document.s < conv.documents && to < document.end)
        sum = fmaf(taps.w[k], to_f32(dy[to * conv.channels + channel]), sum);
    }
    put(dx + row * conv.channels + channel, sum);
  }
}

// partial: [blocks of kSumRows rows, channels, width], and of the bias behind it [blocks, channels].
template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads)
    causal_conv_dw(const Conv conv, const T* __restrict__ x, const T* __restrict__ dy, float* partial) {
  check_boundaries(conv);
  const int64_t channel = int64_t{blockIdx.x} * kThreads + threadIdx.x, first = int64_t{blockIdx.y} * kSumRows;
  if (channel >= conv.channels) return;
  const int64_t end = min(first + kSumRows, conv.rows);
  Document document(conv, first);
  float sums[kTaps] = {}, sum = 0;
  for (int64_t row = first; row < end; ++row) {
    document.follow(conv, row);
    if (document.s == conv.documents) break;
    const float gradient = to_f32(dy[row * conv.channels + channel]);
    sum += gradient;
    for (int k = 0; k < kTaps; ++k) {
      const int64_t from = row - (kTaps - 1) + k;
      if (k >= kTaps - conv.width && from >= document.begin)
        sums[k] = fmaf(gradient, to_f32(x[from * conv.channels + channel]), sums[k]);
    }
  }
  float* mine = partial + (int64_t{blockIdx.y} * conv.channels + channel) * conv.width;
  for (int k = 0; k < kTaps; ++k)
    if (k >= kTaps - conv.width) mine[k - (kTaps - conv.width)] = sums[k];
  partial[(int64_t{gridDim.y} * conv.width + blockIdx.y) * conv.channels + channel] = sum;
}

// ---------------------------------------------------------------- launchers

Conv conv_of(const char* name, const View& x, const View& w, const View& cu, CudaContext& context) {
  if (ceil_div(x.rows(), kRows) > 65535 || cu.elements() > 65536)
    fail("unsupported", name, ": x is ", shape_text(x), ", cu ", shape_text(cu), ", more than one launch takes");
  return {cu.as<int32_t>(), x.rows(), x.columns(), static_cast<int>(cu.elements()) - 1, static_cast<int>(w.columns()),
          context.fault};
}

dim3 grid_of(const Conv& conv, int64_t rows) {
  return dim3(static_cast<unsigned>(ceil_div(conv.channels, kThreads)), static_cast<unsigned>(rows));
}

// Calls f with x's type and the taps of a thread, which are as many or a few more.
template <class F>
void with_taps(const View& x, const Conv& conv, F f) {
  for_float(x, [&](auto* type) {
    if (conv.width <= 4) return f(type, std::integral_constant<int, 4>());
    f(type, std::integral_constant<int, 8>());
  });
}

}  // namespace

void run(const CausalConv& op, CudaContext& context) {
  const Conv conv = conv_of(op.name, op.x, op.w, op.cu, context);
  with_taps(op.x, conv, [&](auto* type, auto taps) {
    using T = std::remove_pointer_t<decltype(type)>;
    Kept kept{};
    if (op.state)
      kept = {op.state.as<float>(), op.pages.as<int32_t>(), op.lengths.as<int32_t>(),
              op.state.shape[0],    op.state.shape[1],      op.pages.shape[1],
              op.page_tokens};
    QENG_LAUNCH(context, (causal_conv<T, taps()>), grid_of(conv, ceil_div(conv.rows, kRows)), dim3(kThreads), 0, conv,
                op.x.as<T>(), op.w.data, op.bias.data, op.w.dtype == DType::f32, kept, op.y.as<T>());
    if (op.state)
      QENG_LAUNCH(context, keep_rows<T>, grid_of(conv, conv.documents), dim3(kThreads), 0, conv, op.x.as<T>(), kept);
  });
}

void run(const CausalConvGrad& op, CudaContext& context) {
  const Conv conv = conv_of(op.name, op.x, op.w, op.cu, context);
  const int64_t blocks = ceil_div(conv.rows, kSumRows);
  float* partial = nullptr;
  with_taps(op.x, conv, [&](auto* type, auto taps) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (op.dx)
      QENG_LAUNCH(context, (causal_conv_dx<T, taps()>), grid_of(conv, ceil_div(conv.rows, kRows)), dim3(kThreads), 0,
                  conv, op.w.data, op.w.dtype == DType::f32, op.dy.as<T>(), op.dx.as<T>());
    if (!op.dw && !op.dbias) return;
    partial = context.scratch.take<float>(blocks * conv.channels * (conv.width + 1));
    QENG_LAUNCH(context, (causal_conv_dw<T, taps()>), grid_of(conv, blocks), dim3(kThreads), 0, conv, op.x.as<T>(),
                op.dy.as<T>(), partial);
  });
  const int64_t weights = conv.channels * conv.width;
  if (op.dw) launch_add_partial_sums(context, op.name, partial, blocks, weights, op.dw.as<float>(), op.acc);
  if (op.dbias)
    launch_add_partial_sums(context, op.name, partial + blocks * weights, blocks, conv.channels, op.dbias.as<float>(),
                            op.acc);
}

}  // namespace qeng
