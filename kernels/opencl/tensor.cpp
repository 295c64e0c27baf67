// Rearrange, Gather, ScatterAdd, Sort, CumulativeSum, Embedding, EmbeddingGrad, DecodePackets.
#include "kernels/opencl/opencl.h"

namespace qeng::opencl {

namespace {

constexpr const char* kFile = "tensor.cl";

// An integer of the element's size.
std::string copied_as(const View& view) {
  switch (dtype_size(view.dtype)) {
    case 1: return "uchar";
    case 2: return "ushort";
    case 4: return "uint";
    default: return "ulong";
  }
}

// As in tensor.cl.
struct Places {
  int64_t size[4], from[4], to[4], first_from, first_to;
};
struct Indexed {
  int64_t outer, m, inner, n, of_outer, of_row, of_inner;
};

Indexed indexed(const View& elements, const View& index, int64_t n) {
  const int64_t row = index.shape[2], outer = index.shape[0] == 1 ? 0 : index.shape[1] * row;
  return {elements.shape[0], elements.shape[1], elements.shape[2], n, outer, row, row == 1 ? 0 : 1};
}

}  // namespace

void run(const Rearrange& op, Context& context) {
  Places places{{1, 1, 1, 1}, {}, {}, op.from.first, op.to.first};
  for (int d = 0; d < op.space.rank; ++d) {
    const int to = d + 4 - op.space.rank;
    places.size[to] = op.space.shape[d];
    places.from[to] = op.from.stride[d], places.to[to] = op.to.stride[d];
  }
  const int64_t count = op.space.elements();
  const cl_kernel kernel = op.acc ? context.programs->kernel(kFile, "rearrange_add", {{"X", type_of(op.x)}})
                                  : context.programs->kernel(kFile, "rearrange", {{"T", copied_as(op.x)}});
  launch(context, kernel, items(count), op.x, op.y, places, count);
}

void run(const Gather& op, Context& context) {
  launch(context, context.programs->kernel(kFile, "gather", {{"T", copied_as(op.x)}}), items(op.y.elements()), op.x,
         op.index, op.y, indexed(op.y, op.index, op.x.shape[1]), context.fault);
}

void run(const ScatterAdd& op, Context& context) {
  const Indexed s = indexed(op.x, op.index, op.y.shape[1]);
  launch(context, context.programs->kernel(kFile, "scatter_add", {{"X", type_of(op.x)}}), items(s.outer * s.inner),
         op.x, op.index, op.y, s, context.fault);
}

void run(const Sort& op, Context& context) {
  const bool integers = op.x.dtype == DType::i32;
  const cl_kernel kernel =
      integers ? context.programs->kernel(kFile, "sort", {{"OF_INTEGERS", ""}})
               : context.programs->kernel(kFile, "sort", {{"X", type_of(op.x)}, {"T", copied_as(op.x)}});
  launch(context, kernel, groups(op.y.columns() ? op.x.rows() : 0), op.x, op.y, op.index, op.x.columns(),
         op.y.columns(), int{op.descending});
}

void run(const CumulativeSum& op, Context& context) {
  launch(context, context.programs->kernel(kFile, "cumulative_sum", {{"X", type_of(op.x)}}), items(op.x.rows()), op.x,
         op.y, op.x.columns(), int{op.reverse}, op.x.rows());
}

void run(const Embedding& op, Context& context) {
  const int64_t count = op.y.elements();
  const cl_kernel kernel =
      context.programs->kernel(kFile, "embedding", {{"TABLE", type_of(op.table)}, {"Y", type_of(op.y)}});
  launch(context, kernel, items(count), op.tokens, op.table, op.y, op.y.columns(), op.table.shape[0], count,
         context.fault);
}

void run(const EmbeddingGrad& op, Context& context) {
  const int64_t hidden = op.dtable.columns();
  launch(context, context.programs->kernel(kFile, "embedding_grad", {{"X", type_of(op.dy)}}), items(hidden), op.tokens,
         op.dy, op.dtable, op.tokens.elements(), op.dtable.shape[0], hidden, context.fault);
}

void run(const DecodePackets& op, Context& context) {
  const int64_t slots = op.tokens.elements();
  launch(context, context.programs->kernel(kFile, "decode_packets", {}), items(slots), op.frames, op.frames.elements(),
         op.pieces, op.pieces.shape[0], op.tokens, op.targets, op.positions, slots, op.pad, context.fault);
}

}  // namespace qeng::opencl
