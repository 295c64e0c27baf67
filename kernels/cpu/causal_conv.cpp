// CausalConv and its gradient, row by row: the channels of a row are a loop of isa/.
#include <algorithm>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/documents.h"

namespace qeng {

namespace {

constexpr int kMostTaps = 8;

// Document s: its rows begin .. end.
struct Document {
  int64_t s, begin, end;
};

// Calls f(row, document) for rows begin .. end; those past the last document have none.
template <class F>
void each_row(const View& cu, int64_t begin, int64_t end, F f) {
  const int32_t *bounds = cu.as<int32_t>(), *last = bounds + cu.elements() - 1;
  int64_t s = std::upper_bound(bounds, last + 1, begin) - bounds - 1;
  for (int64_t row = begin; row < end; ++row) {
    while (bounds + s < last && row >= bounds[s + 1]) ++s;
    if (bounds + s >= last) {
      f(row, static_cast<const Document*>(nullptr));
      continue;
    }
    const Document document{s, bounds[s], bounds[s + 1]};
    f(row, &document);
  }
}

// w as [width, channels] f32, and the bias behind it.
float* taps_of(CpuContext& context, const View& w, const View& bias) {
  const int64_t channels = w.shape[0], width = w.shape[1];
  float* given = context.scratch.take<float>((width + 1) * channels);
  float* taps = context.scratch.take<float>((width + 1) * channels);
  context.isa->scale(float_type(w), w.data, isa::Float::f32, given, 1.0f, width * channels);
  for (int64_t c = 0; c < channels; ++c)
    for (int64_t j = 0; j < width; ++j) taps[j * channels + c] = given[c * width + j];
  if (bias) context.isa->scale(float_type(bias), bias.data, isa::Float::f32, taps + width * channels, 1.0f, channels);
  return taps;
}

// Where row t of sequence s is kept.
float* kept_row(const CausalConv& op, const PageTable& table, int64_t s, int64_t t) {
  const int64_t depth = op.state.shape[1];
  return op.state.as<float>() + (table.page(s, t) * depth + t % depth) * op.x.columns();
}

// Keeps those of the step's rows that are among the last of their pages.
void keep_rows(const CausalConv& op, const PageTable& table, int64_t s, CpuContext& context) {
  const int64_t begun = table.begun(s), length = table.lengths[s];
  for (int64_t t = begun; t < length; ++t) {
    const int64_t page_end = std::min(length, (t / op.page_tokens + 1) * op.page_tokens);
    t = std::max(t, page_end - op.state.shape[1]);
    context.isa->scale(float_type(op.x), at(op.x, (table.cu[s] + t - begun) * op.x.columns()), isa::Float::f32,
                       kept_row(op, table, s, t), 1.0f, op.x.columns());
  }
}

}  // namespace

void run(const CausalConv& op, CpuContext& context) {
  const int64_t rows = op.x.rows(), channels = op.x.columns(), width = op.w.columns();
  check_boundaries(op.name, "cu", op.cu, rows);
  const PageTable table(op);
  if (op.state) table.check(op.name, op.cu.elements() - 1, op.state.shape[0], width - 1);
  const float* weights = taps_of(context, op.w, op.bias);
  const float* bias = op.bias ? weights + width * channels : nullptr;
  const isa::Float type = float_type(op.x);
  parallel_for(context.threads, rows, grain_rows(width * channels), [&](int64_t begin, int64_t end) {
    each_row(op.cu, begin, end, [&](int64_t row, const Document* document) {
      isa::ConvTap taps[kMostTaps];
      int64_t count = 0;
      if (!document) return context.isa->conv_row(type, taps, 0, nullptr, at(op.y, row * channels), channels);
      for (int64_t j = 0; j < width; ++j) {
        const int64_t from = row - (width - 1) + j, before = from - document->begin;
        const float* w = weights + j * channels;
        if (before >= 0)
          taps[count++] = {type, at(op.x, from * channels), w};
        else if (op.state && table.begun(document->s) + before >= 0)
          taps[count++] = {isa::Float::f32, kept_row(op, table, document->s, table.begun(document->s) + before), w};
      }
      context.isa->conv_row(type, taps, count, bias, at(op.y, row * channels), channels);
    });
  });
  if (!op.state) return;
  parallel_for(context.threads, op.lengths.elements(), grain_rows(width * channels), [&](int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) keep_rows(op, table, s, context);
  });
}

void run(const CausalConvGrad& op, CpuContext& context) {
  const int64_t rows = op.x.rows(), channels = op.x.columns(), width = op.w.columns();
  check_boundaries(op.name, "cu", op.cu, rows);
  const isa::Float type = float_type(op.x);
  if (op.dx) {
    const float* weights = taps_of(context, op.w, {});
    parallel_for(context.threads, rows, grain_rows(width * channels), [&](int64_t begin, int64_t end) {
      each_row(op.cu, begin, end, [&](int64_t row, const Document* document) {
        isa::ConvTap taps[kMostTaps];
        int64_t count = 0;
        for (int64_t j = 0; document && j < width; ++j)
          if (const int64_t to = row + (width - 1) - j; to < document->end)
            taps[count++] = {type, at(op.dy, to * channels), weights + j * channels};
        context.isa->conv_row(type, taps, count, nullptr, at(op.dx, row * channels), channels);
      });
    });
  }
  if (!op.dw && !op.dbias) return;
  float* sums = context.scratch.take<float>((width + 1) * channels);  // [width, channels] of dw, then dbias
  column_sums(context, rows, (width + 1) * channels, sums, false, [&](int64_t begin, int64_t end, float* sum) {
    each_row(op.cu, begin, end, [&](int64_t row, const Document* document) {
      if (!document) return;
      for (int64_t j = 0; j < width; ++j)
        if (const int64_t from = row - (width - 1) + j; from >= document->begin)
          context.isa->multiply_add(type, at(op.dy, row * channels), at(op.x, from * channels), sum + j * channels,
                                    channels);
      context.isa->accumulate(type, at(op.dy, row * channels), sum + width * channels, channels);
    });
  });
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; op.dw && j < width; ++j) {
      float& dw = op.dw.as<float>()[c * width + j];
      dw = (op.acc ? dw : 0.0f) + sums[j * channels + c];
    }
    if (!op.dbias) continue;
    float& dbias = op.dbias.as<float>()[c];
    dbias = (op.acc ? dbias : 0.0f) + sums[width * channels + c];
  }
}

}  // namespace qeng
