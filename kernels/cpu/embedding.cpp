#include <cstring>

#include "kernels/cpu/cpu.h"

namespace qeng {

namespace {

void check_tokens(const char* op, const View& tokens, int64_t vocab) {
  for (int64_t t = 0; t < tokens.elements(); ++t) {
    const int32_t token = tokens.as<int32_t>()[t];
    if (token < 0 || token >= vocab)
      fail("value", op, ": token ", token, " at position ", t, " is outside the table of ", vocab, " rows");
  }
}

}  // namespace

void run(const Embedding& op, CpuContext& context) {
  const int64_t count = op.tokens.elements(), hidden = op.table.columns();
  check_tokens(op.name, op.tokens, op.table.rows());
  const size_t row_bytes = dtype_bytes(op.table.dtype, hidden);
  const bool decoded = op.y.dtype != op.table.dtype;
  parallel_for(context.threads, count, grain_rows(hidden), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t token = op.tokens.as<int32_t>()[t];
      if (decoded)
        decode_into(op.table, token, 0, hidden, op.y.dtype, at(op.y, t * hidden), context);
      else
        std::memcpy(at(op.y, t * hidden), row_at(op.table, token), row_bytes);
    }
  });
}

void run(const EmbeddingGrad& op, CpuContext& context) {
  const int64_t count = op.tokens.elements(), hidden = op.dtable.columns();
  check_tokens(op.name, op.tokens, op.dtable.rows());
  parallel_for(context.threads, hidden, 64, [&](int64_t begin, int64_t end) {  // by columns: each sums in order of t
    for (int64_t t = 0; t < count; ++t)
      context.isa->accumulate(float_type(op.dy), at(op.dy, t * hidden + begin),
                              op.dtable.as<float>() + op.tokens.as<int32_t>()[t] * hidden + begin, end - begin);
  });
}

}  // namespace qeng
