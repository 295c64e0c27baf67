// The differentiable functions that models are made of. Each runs ops of kernels/ops.h (the equations are there) and
// records its gradient. To add one: a declaration here, a definition in a file of its own or beside its kin.
#pragma once
#include "engine/autograd/tape.h"

namespace qeng {

struct Lora {
  TensorPtr a;  // [rank, in]
  TensorPtr b;  // [out, rank]
  float scale = 1;
  float dropout = 0;
  explicit operator bool() const { return a != nullptr; }
};

// y = x w^T + bias + lora.scale * (dropout(x) a^T) b^T of each layer.  x: [..., in]  w: [out, in]  y: [..., out] of dtype
// out. What their adapters read of x is read once, and its gradient, their sum, is written once; their outputs are one
// operation, and the gradients of their weights another. The rank is contracted first, forward and backward, so no
// [out, in] product of an adapter ever exists. w may be frozen; it has x's dtype, or a stored one (f16, bf16 under f32, a
// block format), whose decoded values count. Its learner, if it has one, takes its gradient last.
// fp8: w is of f32 or bf16, and products with it are of E4M3, one after another: x, w and the gradient of y are each
// rounded by one scale (Fp8Round in kernels/ops.h). What an adapter adds is not.
struct LinearLayer {
  TensorPtr w, bias;
  Lora lora;
  bool fp8 = false;
};
std::vector<TensorPtr> linears(Tape& tape, const TensorPtr& x, const std::vector<LinearLayer>& layers, DType out);

// The linear layers of experts: rows first[e] .. first[e + 1] of x meet matrix e of w, of the bias, and of the adapter;
// rows past first[experts] give 0.  x: [rows, in]  w: [experts, out, in], of a dtype as in linear  first: [experts + 1]
// i32  bias: [experts, out]  lora: a [experts, rank, in], b [experts, out, rank]  y: [rows, out] of dtype `out`.
// apart: the bits of a row of y depend on that row of x alone (RowLinear in kernels/ops.h); not differentiable.
struct Grouped {
  TensorPtr bias;
  Lora lora;
  DType out = DType::f32;
  bool apart = false;
};
TensorPtr grouped_linear(Tape& tape, const TensorPtr& x, const TensorPtr& w, const TensorPtr& first,
                         const Grouped& options);

// Which experts a token goes to: see Route in kernels/ops.h. scores: [tokens, experts] f32  bias: [experts] f32 or null
struct Routed {
  TensorPtr choice, order, first, place;  // i32 [tokens, k], [tokens * k], [experts + 1], [tokens, k]
};
Routed route(Device& device, const TensorPtr& scores, int64_t k, const TensorPtr& bias);
// x: [tokens, n] to the rows of experts [tokens * k, n], and back, summed with weight [tokens, k] f32, or without where
// it is null; place: of route. See Dispatch and Combine in kernels/ops.h.
TensorPtr dispatch(Tape& tape, const TensorPtr& x, const TensorPtr& place);
TensorPtr combine(Tape& tape, const TensorPtr& rows, const TensorPtr& place, const TensorPtr& weight);

// w + scale * b a, computed in f32 and rounded once to w's dtype; f32 where that is a stored one (in which a sum would
// have to be rounded or quantized anew). Not differentiable.
TensorPtr merge_lora(const TensorPtr& w, const Lora& lora);

// DoRA (Liu et al. 2024, arXiv 2402.09353): y = scale * (x w^T + lora.scale (x a^T) b^T) + bias with scale[i] =
// magnitude[i] / |row i of w + lora.scale b a|. dora_scale gives scale [out] f32, through which the magnitude [out] f32
// has its gradient; the length counts as a constant, as in the paper's section 4.3. squares: [out] f32, the squared
// lengths of w's rows, of row_squares.
TensorPtr dora_scale(Tape& tape, const TensorPtr& w, const Lora& lora, const TensorPtr& magnitude,
                     const TensorPtr& squares);
TensorPtr row_squares(const TensorPtr& w);  // [out] f32 of w [out, in] of any dtype, summed on the host in f64
// The merged weight: row i of w + lora.scale b a times magnitude[i] / its length; its dtype as of merge_lora.
TensorPtr merge_dora(const TensorPtr& w, const Lora& lora, const TensorPtr& magnitude);

// Noise on embedded tokens while training (NEFTune; see EmbeddingNoise in kernels/ops.h); else x itself. cu: boundaries
// of documents.
TensorPtr embedding_noise(Tape& tape, const TensorPtr& x, const TensorPtr& cu, float strength);

// Rows of the table by token, of dtype out, which is the table's where that is float; a table may also be f16 or of a
// block format, and is then frozen.
TensorPtr embedding(Tape& tape, const TensorPtr& table, const TensorPtr& tokens, DType out);

// Blockwise Walsh-Hadamard transform with signs ([dim] f32, or null); see Hadamard in kernels/ops.h.
TensorPtr hadamard(Tape& tape, const TensorPtr& x, const TensorPtr& signs, int block, bool inverse);

// y[r, i] = x[r, i] * scale[i] + [bias[i]]: after a linear layer of unscaled weights, what its rows are scaled by.
TensorPtr scale_columns(Tape& tape, const TensorPtr& x, const TensorPtr& scale, const TensorPtr& bias);
// In a backward pass: adds the sum of dy's rows to the gradient of a bias, which may be null.
void bias_back(Tape& tape, const View& dy, const TensorPtr& bias);

// w: [dim], or [groups, dim] for x [.., groups, dim].
TensorPtr rmsnorm(Tape& tape, const TensorPtr& x, const TensorPtr& w, float eps, bool plus_one);
// b may be null.
TensorPtr layer_norm(Tape& tape, const TensorPtr& x, const TensorPtr& w, const TensorPtr& b, float eps);

// What sequences keep in pages between steps of inference (kernels/ops/layers.h and delta.h), or nothing. With it nothing
// may require a gradient.
struct ConvPages {
  TensorPtr state, pages, lengths;
  int64_t page_tokens = 0;
};
struct DeltaPages {
  TensorPtr state, rows, pages, lengths;
  int64_t page_tokens = 0;
};

// The causal convolution of each channel of packed documents; see CausalConv in kernels/ops.h. bias may be null.
TensorPtr causal_conv(Tape& tape, const TensorPtr& x, const TensorPtr& w, const TensorPtr& bias, const TensorPtr& cu,
                      const ConvPages& kept);

// The gated delta rule over packed documents; see GatedDelta in kernels/ops/delta.h. x: [tokens, shape.columns()], g and
// beta: [tokens, value_heads] f32.
TensorPtr gated_delta(Tape& tape, const TensorPtr& x, const TensorPtr& g, const TensorPtr& beta, const TensorPtr& cu,
                      const DeltaShape& shape, const DeltaPages& kept);

struct NormedSum {
  TensorPtr sum;  // a + b
  TensorPtr y;    // its norm
};
NormedSum add_rmsnorm(Tape& tape, const TensorPtr& a, const TensorPtr& b, const TensorPtr& w, float eps, bool plus_one);

TensorPtr swiglu(Tape& tape, const TensorPtr& gate, const TensorPtr& up, bool gelu = false);
TensorPtr add(Tape& tape, const TensorPtr& a, const TensorPtr& b);
// y = a + b, y = alpha x, into a tensor of their shape and dtype.
void add_into(Tape& tape, const TensorPtr& a, const TensorPtr& b, const TensorPtr& y);
void scale_into(Tape& tape, const TensorPtr& x, float alpha, const TensorPtr& y);
TensorPtr cast(Tape& tape, const TensorPtr& x, DType dtype);
TensorPtr reshape(Tape& tape, const TensorPtr& x, const Shape& shape);

// Tensors in another order; dimensions from 0. What is contiguous already shares x's memory, the rest is a copy.
TensorPtr permute(Tape& tape, const TensorPtr& x, const std::vector<int>& dims);  // dimension d is x's dims[d]
// Indices first, first + step, .. of one dimension, `count` of them; all have to exist.
TensorPtr slice(Tape& tape, const TensorPtr& x, int dim, int64_t first, int64_t step, int64_t count);
// x repeated where it has 1, aligned at the last dimension.
TensorPtr expand(Tape& tape, const TensorPtr& x, const Shape& shape);
TensorPtr concat(Tape& tape, const std::vector<TensorPtr>& parts, int dim);
// y[.., j, ..] = x[.., index, ..] along dim. index: i32, [m], or as many dimensions as x, of which those before dim may
// all be 1, and those behind it: the same for all.
TensorPtr gather(Tape& tape, const TensorPtr& x, const TensorPtr& index, int dim);
// x with source's elements added at the places that gather would have read them from; summed in f32.
TensorPtr scatter_add(Tape& tape, const TensorPtr& x, int dim, const TensorPtr& index, const TensorPtr& source);

// Along the last dimension: the first k in order, with their columns (i32).
struct Sorted {
  TensorPtr values, index;
};
Sorted sort(Tape& tape, const TensorPtr& x, int64_t k, bool descending);
TensorPtr cumulative_sum(Tape& tape, const TensorPtr& x, bool reverse);

// op(a) op(b) of the last two dimensions; those before are broadcast.  a: [.., m, k], or [.., k, m] with trans_a
// b: [.., k, n], or [.., n, k] with trans_b
TensorPtr matmul(Tape& tape, const TensorPtr& a, const TensorPtr& b, bool trans_a, bool trans_b);

TensorPtr dropout(Tape& tape, const TensorPtr& x, float p);  // the identity outside of training

// Documents of a packed batch; cu_k is cu_q in training.
struct Documents {
  TensorPtr cu_q, cu_k;
};
// Query and key, rotated by the same angles; the key may be null.
struct Rotated {
  TensorPtr query, key;
};
Rotated rope(Tape& tape, const TensorPtr& query, const TensorPtr& key, const TensorPtr& positions,
             const TensorPtr& inv_freq, float scale, bool interleaved);
// Of the operation, without its views. sinks: [heads] f32, or null.
struct AttentionOptions {
  float scale = 1, softcap = 0;
  int window = 0;
  TensorPtr sinks;
};
TensorPtr attention(Tape& tape, const TensorPtr& q, const TensorPtr& k, const TensorPtr& v, const Documents& documents,
                    const AttentionOptions& options);

// trained: at most so many targets are not -1, where the host knows; -1: any number. A capture does not keep it, since
// another run has other targets: Program::run says it.
struct HeadOptions {
  float softcap = 0;
  int64_t trained = -1;
};
// The gradient of h, and of w, is computed together with the loss, while the logits of a chunk exist; so the loss has
// to be the scalar that backward() starts from (weights belong into loss_scale), and w's gradient is added when this
// runs.
struct HeadLoss {
  TensorPtr loss;  // [1] f32
  TensorPtr nll;   // [tokens] f32
};
HeadLoss lm_head_loss(Tape& tape, const TensorPtr& h, const TensorPtr& w, const TensorPtr& targets,
                      const TensorPtr& loss_scale, const HeadOptions& options);
// The nll [tokens] f32 of each target (0 where that is -1), through which gradients flow to h alone: w is frozen.
TensorPtr token_nll(Tape& tape, const TensorPtr& h, const TensorPtr& w, const TensorPtr& targets,
                    const HeadOptions& options);

}  // namespace qeng
