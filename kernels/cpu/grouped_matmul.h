// What GroupedMatmul and GroupedMatmulGrad share.
#pragma once
#include "kernels/cpu/matmul.h"

namespace qeng {

// The rows of an expert: `rows` of them from row `first` on.
struct Segment {
  int64_t expert, first, rows;
};

// One for each expert. Error("value") where `first` does not ascend from 0 to at most `rows`.
std::vector<Segment> segments_of(const char* op, const View& first, int64_t rows);

// Rows of an expert from which on bf16 products are oneDNN's, where it has them: they share its threads, and are twice as
// fast as those of rows in f32.
constexpr int64_t kRowsOfLibrary = 16;

// The products of rows apart (grouped_rows.cpp).
void multiply_apart(const GroupedMatmul& op, const std::vector<Segment>& segments, CpuContext& context);

// x itself, or a copy in scratch memory where it is not f32.
const float* wide_rows(const View& x, CpuContext& context);

}  // namespace qeng
