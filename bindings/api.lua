---@meta qeng
-- The reference of `require "qeng"`. Editors read it for completion, and help(x) prints it. A test asserts that its
-- names are exactly those that exist. Part 1 is bound in C++ (bindings/*.cpp), part 2 is the Lua library
-- (scripts/qeng). Options with many fields are classes (---@class SamplerOptions); help prints their fields where they
-- are used. q.adapters, q.quant, q.pages, q.logits, q.stream, q.rehearsal, q.ranks, q.host and part 1 of q.onebit are
-- what the library is made of; a recipe seldom needs them.
-- Every function raises {code=, message=} on failure (see q.try). Rows and ids count from 0, as in the model files.

local q = {}

---@alias plain_dtype "f32"|"bf16"|"f16"|"i32"|"i64"|"u8"
---@alias quant_dtype "q4_0"|"q4_1"|"q5_0"|"q5_1"|"q8_0"|"q2_k"|"q3_k"|"q4_k"|"q5_k"|"q6_k"|"mxfp4"
---@alias codebook_dtype "iq4_nl"|"iq4_xs"|"iq2_xxs"|"iq2_xs"|"iq2_s"|"iq3_xxs"|"iq3_s"|"iq1_s"|"iq1_m"
---@alias ternary_dtype "tq1_0"|"tq2_0"|"q1_0"|"q2_0"|"pq2_0"|"ptq1_0"
---@alias bpe_pattern "qwen2"|"qwen3.5"|"llama3"|"cl100k"|"o200k"|"tekken"|"gpt2"
---@alias dtype plain_dtype|quant_dtype|codebook_dtype|ternary_dtype|"int4"|"one_bit"|"ternary"

-- ================================================================ Part 1: the engine

-- ---------------------------------------------------------------- device

---Chooses the device and its threads; before the first tensor.
---By default it is the CPU with the cores this process may use (affinity, and quotas of control groups).
---budget: the most bytes that tensors may take there; an allocation over it is an error that says which and what to
---change.
---@param opt {device?: string, threads?: integer, isa?: string, budget?: integer}
function q.device(opt) end

---The devices present: name, description, memory, one_memory (it is the host's), streams (weights may be), in_use, and
---of one in use free, the memory that is. The first is the one that "auto" takes.
---Those that auto never takes are listed where they are in use, or by the name of their backend: q.devices "opencl".
---@param backend? string
---@return table[]
function q.devices(backend) end

---A runtime of its own: a device with its threads, tape, accounts and budget, beside the default one.
---q.device describes the default. Operations run on the runtime of their tensors, which has to be one. Tensors are
---made on the runtime in use. q.load(dir, { runtime = rt }) loads a model there, and the model works there wherever it
---is called from. Without options: the runtime in use. It lives as long as its handle, models and tensors do.
---rt:use(q.memory) shows its accounts.
---@param opt? {device?: string, threads?: integer, isa?: string, budget?: integer}
---@return Runtime
function q.runtime(opt) end

---@class Runtime
local Runtime = {}

---Calls fn(...) with it as the runtime in use: for tensors that fn makes, programs it captures and files it loads.
---@param fn fun(...): ...
---@return ...
function Runtime:use(fn, ...) end

---Lets go of this handle; what models and tensors still use stays.
function Runtime:free() end

---Bytes by name of allocation, with current and peak; prints as a table.
---Names: weights, adapters, gradients, optimizer, activations, batch, workspace.
---@return table
function q.memory() end

---Measured limits of the device: {bandwidth=, flops_f32=, flops_bf16=} in bytes/s and FLOP/s.
---The first use takes about a second, and 200 MB of the budget, on a GPU 1 GB. With if_room the result is nil if not so
---much is left. only: that one is measured, and no other.
---@param opt? {if_room?: boolean, only?: "bandwidth"|"flops_f32"|"flops_bf16"}
---@return table?
function q.limits(opt) end

---Seeds dropout and initial values drawn without a seed of their own.
---@param seed integer
function q.seed(seed) end

---Sets the step that dropout's counter-based generator is keyed by.
---@param step integer
function q.rng_step(step) end

-- ---------------------------------------------------------------- tensors

---@class Description
---@field shape integer[]
---@field dtype dtype
---@field elements integer
---@field min number  this and the next four: of the finite values as f32; NaN if there are none
---@field max number
---@field mean number
---@field std number  divided by their number
---@field quantiles table<number, number>  by share (0.01, 0.25, 0.5, 0.75, 0.99), between two values linearly
---@field zeros integer
---@field nan integer
---@field inf integer

---tostring(t), and the prompt, show dtype, shape and label, and the values as NumPy does: of more than 1000 the first
---and last three of each dimension, and only those are read.
---@class Tensor
---@operator unm: Tensor
---@operator add(Tensor|number): Tensor
---@operator sub(Tensor|number): Tensor
---@operator mul(Tensor|number): Tensor
---@operator div(Tensor|number): Tensor
---@operator pow(Tensor|number): Tensor
local Tensor = {}

---The methods of tensors, to which a recipe may add its own.
q.Tensor = Tensor

---A tensor of the numbers in a nested table. One that a dtype of integers does not hold (256 or 0.5 in u8) is
---Error("value"), here and where values are set.
---@param values number|table
---@param dtype? dtype  f32
---@return Tensor
function q.tensor(values, dtype) end

---@param shape integer[]
---@param dtype? dtype  f32
---@param label? string  name in q.memory()
---@return Tensor
function q.zeros(shape, dtype, label) end
---Uninitialised.
---@param shape integer[]
---@param dtype? dtype  f32
---@param label? string
---@return Tensor
function q.empty(shape, dtype, label) end

---@param shape integer[]
---Normally distributed values (Philox): the same seed and subsequence give the same values.
---@param opt? {std?: number, seed?: integer, subsequence?: integer, dtype?: dtype, label?: string}
---@return Tensor
function q.randn(shape, opt) end

---@param shape integer[]
---@param opt? {low?: number, high?: number, seed?: integer, subsequence?: integer, dtype?: dtype, label?: string}
---@return Tensor
function q.uniform(shape, opt) end

---@return integer[]
function Tensor:shape() end
---@return dtype
function Tensor:dtype() end
---@return integer
function Tensor:elements() end
---@return integer  of its memory, as stored
function Tensor:bytes() end
---XXH3-64 of its memory, as stored: equal tensors have the same.
---@param rows? integer  of so many of its rows alone, evenly spaced, in the layout of a file
---@return string  16 hex digits
function Tensor:hash(rows) end
---The value of a tensor of one element.
---@return number
function Tensor:item() end
---All values as a nested Lua table.
---@return table
function Tensor:table() end
---What its values are like; prints as a table. Read in pieces, so that a large tensor needs no room.
---@return Description
function Tensor:describe() end
---The same memory with another shape (same number of elements); one size may be -1: what is left.
---@param shape integer[]
---@return Tensor
function Tensor:reshape(shape) end
---Rows first .. first+count-1 of the leading dimension; shares memory; not differentiable.
---@param first integer
---@param count integer
---@return Tensor
function Tensor:rows(first, count) end
---A new tensor of another dtype (differentiable). Decodes a block format, of f32, bf16 or f16. To integers fractions
---are cut off, and what is out of their range is Error("value").
---@param dtype dtype
---@return Tensor
function Tensor:to(dtype) end
---Copies src's values in (converting the dtype); outside autograd.
---@param src Tensor
---@return Tensor self
function Tensor:copy(src) end
---@param value number  of i32 and i64 an integer of 24 bits
---@return Tensor self
function Tensor:fill(value) end
---The first #values elements from a list; or all, from a number or a tensor that broadcasts to this shape, rounded to
---this dtype. An expression of this shape and dtype is computed into it, without memory beside. No gradient flows
---through it: where one would be lost, Error("state"); an optimizer's step is in a function given to q.no_grad.
---@param values Tensor|number|number[]
---@return Tensor self
function Tensor:set(values) end
---A copy with memory of its own; outside autograd.
---@return Tensor
function Tensor:clone() end
---A bounds-checked view of the values of an f32 or i32 tensor in host memory: view[i] from 0, view[i] = x, #view.
---@return table
function Tensor:view() end
---Frees the memory now (or when the last sharer lets go); a later use is an error.
function Tensor:free() end
---@return Runtime  where it lies
function Tensor:runtime() end
---Of what was computed from a tensor that requires one: Error("state") before backward.
---@param on? boolean  sets whether gradients are kept, of a tensor of floats; without it, asks
---@param gradient? "f32"|"bf16"  its dtype, f32 if it is new; bf16: of a bf16 matrix that q.linear alone reads
---@return boolean
function Tensor:requires_grad(on, gradient) end
---The accumulated gradient, or nil.
---@return Tensor?
function Tensor:grad() end
---Backpropagates from this scalar, or from the sum of several: gradients are added to every tensor that requires them;
---the tape is emptied. Where a gradient needs values that set, fill, copy, view or a step of AdamW have overwritten
---since: Error("state"); of a tensor of which rows were read, all rows count. Where one reaches a tensor that was
---computed before an earlier backward: Error("state"); a :clone() of it counts as a constant.
---@param ... Tensor?  further losses of the same tape
function Tensor:backward(...) end
---@param label? string  sets or asks the name that traces and errors show
---@return string
function Tensor:label(label) end

-- ---------------------------------------------------------------- arithmetic

---Functions and reductions are expressions: what reads one has the whole of it computed, in one pass where that can be,
---in f32, and rounded once to its dtype. Shapes are broadcast as NumPy does. Numbers stand for tensors, and take their
---dtype; f32 beside bf16 gives f32; integers count as f32. Comparisons give u8, 1 or 0. All have gradients; where
---several are the largest they share. Dimensions count from 1, or from -1 backwards; with keep the reduced ones stay
---as 1.
---
---An expression has the values that its operands had when it was made. Only one that was a step of another, and whose
---operand has been written to since, is Error("state") when it is read or made part of a third: :compute() it before.
---@return Tensor  itself
function Tensor:compute() end
---Whether nothing has read it yet.
---@return boolean
function Tensor:is_pending() end

---@return Tensor
function Tensor:abs() end
---@return Tensor
function Tensor:sign() end
---@return Tensor
function Tensor:exp() end
---@return Tensor  e^x - 1
function Tensor:expm1() end
---@return Tensor
function Tensor:log() end
---@return Tensor  log(1 + x)
function Tensor:log1p() end
---@return Tensor
function Tensor:sqrt() end
---@return Tensor  1 / sqrt(x)
function Tensor:rsqrt() end
---Of angles below 2^31 in size (a GPU gives NaN beyond), as cos.
---@return Tensor
function Tensor:sin() end
---@return Tensor
function Tensor:cos() end
---@return Tensor
function Tensor:tanh() end
---@return Tensor
function Tensor:erf() end
---@return Tensor
function Tensor:sigmoid() end
---@return Tensor
function Tensor:square() end
---@return Tensor
function Tensor:reciprocal() end
---@return Tensor
function Tensor:relu() end
---@return Tensor
function Tensor:silu() end
---@param approximate? boolean  the form with tanh
---@return Tensor
function Tensor:gelu(approximate) end
---@return Tensor  log(1 + e^x)
function Tensor:softplus() end
---@param low? number|Tensor
---@param high? number|Tensor
---@return Tensor
function Tensor:clamp(low, high) end
---@param other Tensor|number
---@return Tensor
function Tensor:minimum(other) end
---@param other Tensor|number
---@return Tensor
function Tensor:maximum(other) end
---@param other Tensor|number
---@return Tensor  u8
function Tensor:lt(other) end
---@param other Tensor|number
---@return Tensor  u8
function Tensor:le(other) end
---@param other Tensor|number
---@return Tensor  u8
function Tensor:gt(other) end
---@param other Tensor|number
---@return Tensor  u8
function Tensor:ge(other) end
---@param other Tensor|number
---@return Tensor  u8
function Tensor:eq(other) end
---@param other Tensor|number
---@return Tensor  u8
function Tensor:ne(other) end
---a where the condition is not 0, else b.
---@param condition Tensor
---@param a Tensor|number
---@param b Tensor|number
---@return Tensor
function q.where(condition, a, b) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@return Tensor
function Tensor:sum(dims, keep) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@return Tensor
function Tensor:mean(dims, keep) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@return Tensor
function Tensor:max(dims, keep) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@return Tensor
function Tensor:min(dims, keep) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@param corrected? boolean  divided by n - 1
---@return Tensor
function Tensor:var(dims, keep, corrected) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@return Tensor  the root of the sum of squares; its gradient is 0 where it is 0
function Tensor:norm(dims, keep) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@return Tensor  u8
function Tensor:any(dims, keep) end
---@param dims? integer|integer[]  all of them by default
---@param keep? boolean
---@return Tensor  u8
function Tensor:all(dims, keep) end
---@param keep? boolean
---@return Tensor  over the last dimension, as the next two
function Tensor:logsumexp(keep) end
---@return Tensor
function Tensor:softmax() end
---@return Tensor
function Tensor:log_softmax() end

---These methods as functions.
q.abs = Tensor.abs
q.sign = Tensor.sign
q.exp = Tensor.exp
q.expm1 = Tensor.expm1
q.log = Tensor.log
q.log1p = Tensor.log1p
q.sqrt = Tensor.sqrt
q.rsqrt = Tensor.rsqrt
q.sin = Tensor.sin
q.cos = Tensor.cos
q.tanh = Tensor.tanh
q.erf = Tensor.erf
q.sigmoid = Tensor.sigmoid
q.square = Tensor.square
q.reciprocal = Tensor.reciprocal
q.relu = Tensor.relu
q.silu = Tensor.silu
q.gelu = Tensor.gelu
q.softplus = Tensor.softplus
q.clamp = Tensor.clamp
q.minimum = Tensor.minimum
q.maximum = Tensor.maximum
q.softmax = Tensor.softmax
q.log_softmax = Tensor.log_softmax
q.logsumexp = Tensor.logsumexp

-- ---------------------------------------------------------------- shapes, indices, orders, products

---Dimensions count from 1, or from -1 backwards. Positions along one count from 0, as token ids do, or from -1
---backwards; a range ends before its end. All of these have gradients, except for positions. What lies in order already
---shares memory with the tensor it is of (slices and positions of the first dimension do): what is written to it is
---written there. The rest are copies.
---
---x[i] is position i of the first dimension, without that dimension; x[i] = values is x[i]:set(values).

---@param dim integer
---@param from? integer  the first, or the last with a negative step
---@param to? integer  before which it ends
---@param step? integer
---@return Tensor
function Tensor:slice(dim, from, to, step) end
---The number at these positions, one for each dimension.
---@param ... integer
---@return number
function Tensor:at(...) end
---@param dims integer[]  dimension d of the result is dimension dims[d]
---@return Tensor
function Tensor:permute(dims) end
---@param a? integer  the last two by default
---@param b? integer
---@return Tensor
function Tensor:transpose(a, b) end
---@param dim? integer  of 1; all that are 1 by default
---@return Tensor
function Tensor:squeeze(dim) end
---@param dim integer  where a dimension of 1 comes to stand
---@return Tensor
function Tensor:unsqueeze(dim) end
---@param shape integer[]  larger where the tensor has 1, with dimensions in front; -1 keeps a size
---@return Tensor
function Tensor:expand(shape) end
---@param parts Tensor[]  of one dtype, and but for dim of one shape
---@param dim? integer
---@return Tensor
function q.concat(parts, dim) end
---@param parts Tensor[]  of one dtype and shape
---@param dim? integer  a new one
---@return Tensor
function q.stack(parts, dim) end
---@param sizes integer|integer[]  of each part, or of all but the last
---@param dim? integer
---@return Tensor ...
function Tensor:split(sizes, dim) end
---@param dim integer
---@param before integer
---@param after? integer
---@param value? number
---@return Tensor
function Tensor:pad(dim, before, after, value) end
---Position i goes to i + shift, around the end.
---@param shift integer
---@param dim? integer
---@return Tensor
function Tensor:roll(shift, dim) end
---@param dim? integer
---@return Tensor
function Tensor:flip(dim) end
---Of the last two dimensions what lies on or below the k-th diagonal; the rest is 0. Integers become f32.
---@param k? integer
---@return Tensor
function Tensor:tril(k) end
---@param k? integer
---@return Tensor  on or above it
function Tensor:triu(k) end
---@param from number  or, alone, where it ends
---@param to? number
---@param step? number
---@param dtype? dtype  by default i32, or f32 where from or step is a fraction
---@return Tensor
function q.arange(from, to, step, dtype) end

---Along dim the element that each place of the index says. An index outside is Error("value").
---@param dim integer
---@param index Tensor  i32, of the tensor's shape but for dim; all dimensions before dim may be 1, and all behind it
---@return Tensor
function Tensor:gather(dim, index) end
---@param dim integer
---@param index Tensor|integer[]  i32 of one dimension
---@return Tensor
function Tensor:index_select(dim, index) end
---The tensor with the values added where gather or index_select would read; in f32, equal places in order.
---@param dim integer
---@param index Tensor|integer[]
---@param values Tensor  of the shape that gather or index_select would give
---@return Tensor
function Tensor:scatter_add(dim, index, values) end
---1 at the index along a new last dimension.
---@param index Tensor
---@param n integer
---@param dtype? dtype  u8 by default
---@return Tensor
function q.one_hot(index, n, dtype) end

---The k largest in order, and their positions; equal ones keep their order, and a NaN is larger than all numbers.
---@param k integer
---@param dim? integer  the last by default, as in the next ones
---@param largest? boolean  false: the least
---@return Tensor values
---@return Tensor positions  i32
function Tensor:topk(k, dim, largest) end
---@param dim? integer
---@param descending? boolean
---@return Tensor values
---@return Tensor positions
function Tensor:sort(dim, descending) end
---@param dim? integer
---@param descending? boolean
---@return Tensor positions
function Tensor:argsort(dim, descending) end
---@param dim? integer
---@param keep? boolean
---@return Tensor  the position of the largest, the first of equals
function Tensor:argmax(dim, keep) end
---@param dim? integer
---@param keep? boolean
---@return Tensor
function Tensor:argmin(dim, keep) end
---@param dim? integer
---@param reverse? boolean  from there to the end
---@return Tensor
function Tensor:cumsum(dim, reverse) end

---Matrices in the last two dimensions; those before are broadcast. A vector is a row on the left, a column on the
---right.
---@param b Tensor  of the same dtype
---@param opt? {transpose_a?: boolean, transpose_b?: boolean}
---@return Tensor
function Tensor:matmul(b, opt) end
---@param a Tensor  [m]
---@param b Tensor  [n]
---@return Tensor  [m, n]
function q.outer(a, b) end
---@param a Tensor
---@param b Tensor
---@return Tensor  the sum of products over the last dimension
function q.inner(a, b) end

---These methods as functions.
q.matmul = Tensor.matmul
q.gather = Tensor.gather
q.index_select = Tensor.index_select
q.scatter_add = Tensor.scatter_add
q.topk = Tensor.topk
q.sort = Tensor.sort
q.argsort = Tensor.argsort
q.argmax = Tensor.argmax
q.argmin = Tensor.argmin
q.cumsum = Tensor.cumsum
q.tril = Tensor.tril
q.triu = Tensor.triu
q.roll = Tensor.roll
q.flip = Tensor.flip
q.pad = Tensor.pad
q.split = Tensor.split

-- ---------------------------------------------------------------- differentiable functions (equations: kernels/ops.h)

---Rows of a table by token.  table [vocab, hidden], tokens [t] i32 -> [t, hidden]
---@param table Tensor  also f16 or of a block format
---@param tokens Tensor
---@param out? dtype  the table's own, f32 where that is a stored one
---@return Tensor
function q.embedding(table, tokens, out) end

---Blockwise Walsh-Hadamard transform: for each run of `block` columns H (signs * x) / sqrt(block).
---With inverse: signs * (H x) / sqrt(block). signs: [dim] f32 of 1 and -1. block: a power of two that divides dim
---(dim).
---@param x Tensor  [..., dim]
---@param opt? {signs?: Tensor, block?: integer, inverse?: boolean}
---@return Tensor
function q.hadamard(x, opt) end

---Packs weights into a block format, rows as whole blocks, by least squares. Tensor:to decodes.
---@param tensor Tensor  f32, bf16 or f16
---@param type dtype  "q4_k", "q8_0", "tq2_0", ...
---@param opt? {importance?: Tensor}  [columns] f32: what the squared error of each column weighs
---@return Tensor
function q.quantize(tensor, type, opt) end

---y[r, i] = x[r, i] * scale[i] + bias[i].
---Follows a linear layer whose weights have no scale (one_bit, ternary); scale is that of its rows.
---@param x Tensor  [..., n]
---@param scale Tensor  [n] f32
---@param bias? Tensor  [n]
---@return Tensor
function q.scale_columns(x, scale, bias) end

---x / sqrt(mean(x^2) + eps) * w of each row. A gate is arithmetic before it, which costs one more pass:
---q.rmsnorm(x * z:silu(), w, eps).
---@param x Tensor  [..., dim]
---@param w Tensor  [dim], or [groups, dim] for x [..., groups, dim]
---@param eps number
---@param plus_one? boolean  multiply by 1 + w
---@return Tensor
function q.rmsnorm(x, w, eps, plus_one) end

---(x - mean) / sqrt(variance + eps) * w + b of each row.
---@param x Tensor  [..., dim]
---@param w Tensor  [dim], f32 or of x's dtype
---@param b? Tensor  [dim], of w's dtype
---@param eps number
---@return Tensor
function q.layer_norm(x, w, b, eps) end

---The convolution of each channel with its last `width` rows, within each document of a packed batch:
---y[t, c] = bias[c] + sum_j w[c, j] x[t - (width - 1) + j, c]
---What lies before a document is 0, or for inference its rows of earlier steps: with `lengths` [documents] i32 rows so
---far, row t is kept in row t % depth of page pages[s, t / page_tokens] of `state` [n, depth, channels] f32. Rows past
---the last document give 0.
---@param x Tensor  [rows, channels]
---@param w Tensor  [channels, width], f32 or of x's dtype, width 2 to 8
---@param bias? Tensor  [channels], of w's dtype
---@param cu Tensor  [documents + 1] i32: where documents begin
---@param opt? {state?: Tensor, pages?: Tensor, lengths?: Tensor, page_tokens?: integer}
---@return Tensor
function q.causal_conv(x, w, bias, cu, opt) end

---The gated delta rule of packed documents (arXiv 2412.06464): each value head's S <- exp(g) S,
---S <- S + k (beta (v - S^T k))^T, o = S^T q, from 0 at a document's start.
---q and k are divided by their lengths, q also by sqrt(key_dim). Value head h reads key head
---floor(h * key_heads / value_heads). For inference state, rows, pages, lengths and page_tokens (model/delta_pages.lua)
---keep what a sequence needs between steps; that has no gradient.
---@param x Tensor  [tokens, q of each key head | k of each | v of each value head]
---@param g Tensor  [tokens, value_heads] f32, at most 0
---@param beta Tensor  [tokens, value_heads] f32
---@param cu Tensor  [documents + 1] i32
---@param opt {key_heads: integer, key_dim: integer, value_heads: integer, state?: Tensor, rows?: Tensor,
---  pages?: Tensor, lengths?: Tensor, page_tokens?: integer}
---@return Tensor o  [tokens, value_heads * value_dim]
function q.gated_delta(x, g, beta, cu, opt) end

---a + b, and its rmsnorm, in one pass.
---A branch joins the residual stream, which the next norm reads.
---@param a Tensor  [..., dim]
---@param b Tensor  [..., dim]
---@param w Tensor  [dim]
---@param eps number
---@param plus_one? boolean  multiply by 1 + w
---@return Tensor sum
---@return Tensor y
function q.add_rmsnorm(a, b, w, eps, plus_one) end

---y = x w^T + bias + lora.scale * (dropout(x) lora.a^T) lora.b^T
---@param x Tensor  [t, in]
---@param w Tensor  [out, in]
---@param opt? {bias?: Tensor, out?: dtype, fp8?: boolean, lora?: table}  lora: a [rank, in], b [out, rank], scale,
---  dropout; fp8: products with w, forward and backward, are of numbers rounded to E4M3
---@return Tensor
function q.linear(x, w, opt) end

---Linear layers that read one x, each as q.linear has it.
---What their adapters read of x is read once, and the gradient of x is written once.
---@param x Tensor  [t, in]
---@param layers {weight: Tensor, bias?: Tensor, lora?: table, fp8?: boolean}[]
---@param opt? {out?: dtype}
---@return Tensor[]  one for each layer
function q.linears(x, layers, opt) end

---The linear layers of experts: rows first[e] .. first[e + 1] - 1 of x meet matrix e of w.
---Rows past the last expert's give 0. With `apart`, for inference, the bits of a row depend on that row alone, as
---those of q.row_linear do; it has no gradient.
---@param x Tensor  [rows, in]
---@param w Tensor  [experts, out, in]; frozen, of any stored dtype
---@param first Tensor  [experts + 1] i32, ascending from 0 (q.route)
---@param opt? {bias?: Tensor, out?: dtype, apart?: boolean, lora?: table}  bias [experts, out]
---  lora: as in q.linear, a [experts, rank, in], b [experts, out, rank]
---@return Tensor  [rows, out]
function q.grouped_linear(x, w, first, opt) end

---Which experts a token goes to: the k of the largest scores + bias, the largest first, of equal ones the lower number.
---Expert e has the rows order[first[e]] .. order[first[e + 1] - 1]: places t * k + j of choice, in order.
---A mixture of experts is q.dispatch(x, place), q.grouped_linear by first, and q.combine with scores:gather(2, choice).
---@param scores Tensor  [tokens, experts] f32
---@param k integer
---@param opt? {bias?: Tensor}  [experts] f32: counts in the choice alone
---@return Tensor choice  [tokens, k] i32
---@return Tensor order  [tokens * k] i32
---@return Tensor first  [experts + 1] i32
---@return Tensor place  [tokens, k] i32: where t * k + j is in `order`
function q.route(scores, k, opt) end

---The rows of tokens to the rows of their experts: y[place[t, j]] = x[t].
---@param x Tensor  [tokens, n]
---@param place Tensor  [tokens, k] i32 (q.route)
---@return Tensor  [tokens * k, n], for q.grouped_linear
function q.dispatch(x, place) end

---The experts' rows back to their tokens: y[t] = sum over j of weight[t, j] * rows[place[t, j]], summed in f32.
---@param rows Tensor  [tokens * k, n]
---@param place Tensor  [tokens, k] i32 (q.route)
---@param weight? Tensor  [tokens, k] f32
---@return Tensor  [tokens, n]
function q.combine(rows, place, weight) end

---Uniform noise on embedded tokens while training (NEFTune, arXiv 2310.05914).
---It is at most strength / sqrt(tokens of the document * n) either way.
---@param x Tensor  [t, n]
---@param cu Tensor  [documents + 1] i32: where documents begin and end
---@param strength number
---@return Tensor
function q.embedding_noise(x, cu, strength) end

---@class RopeOptions
---@field dim integer  rotary dimensions
---@field theta number
---@field length? integer  the longest sequence, for dynamic and longrope scaling
---@field type? string
---@field factor? number
---@field max_position_embeddings? integer

---Rotation frequencies. Further fields of opt are the keys of config.json's rope_scaling (type for rope_type).
---@param opt RopeOptions
---@return {inv_freq: Tensor, scale: number}
function q.rope_table(opt) end

---Rotates the heads of query and key by the angles of their positions. rope.interleaved: pairs are neighbours, and not
---the halves of what is rotated.
---@param query Tensor  [t, heads, head_dim]
---@param key? Tensor  [t, kv_heads, head_dim]
---@param positions Tensor  [t] i32
---@param rope {inv_freq: Tensor, scale: number, interleaved?: boolean}
---@return Tensor query
---@return Tensor? key
function q.rope(query, key, positions, rope) end

---@class AttentionOptions
---@field scale? number  1/sqrt(head_dim)
---@field window? integer  the last keys that a query sees, 0: all
---@field softcap? number  a score s becomes softcap * tanh(s / softcap), 0: as it is
---@field sinks? Tensor  [heads] f32, a score of each head that has no value; gradients flow to it

---Causal attention over packed documents.
---@param query Tensor  [tq, heads, head_dim]
---@param key Tensor  [tk, kv_heads, head_dim]
---@param value Tensor  [tk, kv_heads, value_dim]
---@param seq {cu_q: Tensor, cu_k?: Tensor}
---@param opt? AttentionOptions
---@return Tensor  [tq, heads, value_dim]
function q.attention(query, key, value, seq, opt) end

---silu(gate) * up, or with gelu = true gelu(gate) * up, GELU in its tanh form
---@param gate Tensor
---@param up Tensor
---@param opt? {gelu?: boolean}
---@return Tensor
function q.swiglu(gate, up, opt) end

---Which elements are dropped goes by q.seed, q.rng_step and how many calls came since the last backward. A loop of
---one's own calls q.rng_step(step), as q.run and q.loop do; without it each step drops the same.
---@param x Tensor
---@param p number
---@return Tensor
function q.dropout(x, p) end

---Cross-entropy fused with the LM head: loss = scale * sum of nll over targets >= 0.
---@param h Tensor  [t, hidden]
---@param w Tensor  [vocab, hidden]
---@param targets Tensor  [t] i32, -1 where not trained
---@param scale Tensor  [1] f32
---softcap: a logit z becomes softcap * tanh(z / softcap) before, 0: as it is. trained: at most so many targets are not
---negative, which spares a GPU the other rows; more are an error. While capturing it is not kept: Program:run takes it.
---@param opt? {softcap?: number, trained?: integer}
---@return Tensor loss  [1] f32
---@return Tensor nll  [t] f32
function q.lm_head_loss(h, w, targets, scale, opt) end
---The nll of each token under a frozen head, without all logits; gradients flow to h. Where the head is trained:
---q.losses.cross_entropy of logits.
---@param h Tensor  [t, hidden]
---@param w Tensor  [vocab, hidden]
---@param targets Tensor  [t] i32, -1 where there is none: nll 0
---@param opt? {softcap?: number, trained?: integer}  as of lm_head_loss
---@return Tensor nll  [t] f32
function q.token_nll(h, w, targets, opt) end

-- ---------------------------------------------------------------- the tape, scopes, programs

---Runs fn(...) without recording.
function q.no_grad(fn, ...) end
---Runs fn(...) as if these parameters required no gradient, also where backward goes back through it later. Gradients
---that they have stay as they are.
---@param parameters Tensor[]
function q.freeze(parameters, fn, ...) end
---Runs fn(...); tensors created inside die at its end, except those it returns.
function q.scope(fn, ...) end
---A handle of the same tensor that outlives the scopes around.
---@param tensor Tensor
---@return Tensor
function q.keep(tensor) end
---Runs fn(...) as one block of the tape whose activations are dropped and recomputed in backward.
---fn must be a function of its tensor arguments and of parameters only.
---@param label string  name in traces and profiles
---@param fn function
function q.checkpoint(label, fn, ...) end
---Runs fn(...) with label in traces and profiles.
---@param label string
---@param fn function
function q.block(label, fn, ...) end
---Runs fn once and records every operation, forward and backward.
---The program replays them on the same input tensors with a planned arena: no Lua, no allocation. Results of fn are
---kept and hold the new values after each run.
---@param fn function
---@return Program
---@return ...
function q.capture(fn, ...) end
---Runs fn and returns its list of operations as text.
---@return string
function q.trace(fn, ...) end
---Runs fn and returns the time of its operations and blocks; prints as a table.
---{ops = {{name=, calls=, ms=, bytes=, flops=, share=}...}, blocks = {...}, total_ms=, share=}. share: of the device's
---measured limit.
---@return table
function q.profile(fn, ...) end

---Runs fn and returns when each operation ran, in their order; begin is of q.time. Each is waited for.
---@return {name: string, block: string, begin: number, seconds: number}[]
function q.timeline(fn, ...) end

---@class Program
local Program = {}
---trained: at most so many targets of its losses (lm_head_loss, token_nll) are not negative in this run; nil: any
---number. It is rounded up to an eighth of the rows, and a GPU records the program anew for each such value.
---@param opt? {trained?: integer}
function Program:run(opt) end
---{ops=, arena_bytes=, bytes=, flops=, variants=, nodes=}; variants: how many roundings of `trained` it has run with;
---nodes: kernels and copies of a replay, where the device has recorded it.
---@return table
function Program:stats() end
---As q.profile, of one replay.
---@param opt? {trained?: integer}  as of run
---@return table
function Program:profile(opt) end
function Program:free() end

-- ---------------------------------------------------------------- streamed weights (engine/stream, model/stream.lua)

q.stream = {}
---A tensor of the CPU in a temporary file without a name ($TMPDIR, /var/tmp).
---It may leave memory and come back with what was written.
---@param shape integer[]
---@param dtype dtype
---@param label? string
---@return Tensor
function q.stream.spilled(shape, dtype, label) end

---Keeps the weights of a model within a limit of memory.
---names[i], weights[i]: the units in order of use, the embedding first, the head last.
---@param names string[]
---@param weights Tensor[][]
---@param opt? {limit?: integer, option?: string, slack?: integer, keep?: integer, depth?: integer, writable?: boolean}
---  limit     bytes of the process on the CPU; of pinned memory on a GPU, where weights beyond it that do not learn are
---            read from their file each time
---  option    its name in errors
---  slack     on the CPU, bytes of it for what is not known in advance
---  keep      on a GPU, bytes of weights that stay there for good (half of what its budget leaves)
---  depth     on a GPU, units that are copied ahead (2)
---  writable  the weights are q.stream.spilled, and those that learn are copied back to the host there
---@return WeightStream
function q.stream.open(names, weights, opt) end

---@class WeightStream
local WeightStream = {}
---The operations that follow read the weights of this unit; captured like an operation.
---@param unit integer
function WeightStream:use(unit) end
---Puts a use of the unit on the tape, where its gradient begins. Without a unit: the end of the backward pass.
---@param unit? integer
function WeightStream:mark(unit) end

---@class StreamFigures
---@field bytes integer  moved since the stream was made
---@field fetches integer  units fetched since then
---@field fetch_ms number  the time that fetching took
---@field stall_ms number  the time that the computation waited for it; of a captured program's last run only
---@field depth integer  units brought ahead
---@field resident integer  bytes in memory
---@field total integer  bytes of all units
---@field filed integer  bytes of those that come from their file each time
---@field process integer  bytes needed beside them; on a GPU, bytes that are pinned

---Figures since the stream was made, and of now.
---@return StreamFigures
function WeightStream:figures() end
---Ends streaming on the CPU: the weights are then read where they are mapped. On a GPU streaming ends with the model.
function WeightStream:close() end

-- ---------------------------------------------------------------- optimizer

---@class AdamWOptions
---@field beta1? number
---@field beta2? number
---@field eps? number
---@field decay? number  on tensors of rank 2 and more
---@field moment_bits? 32|8  of both moments (32); 8: of tensors of 4096 elements and more, others keep f32
---@field groups? integer[]  from 0, one for each parameter
---@field rates? number[]  for each group, a factor of a step's lr
---@field own? boolean[]  for each parameter, whether a step updates it (all); the others count for the norm alone
---@field ranks? Ranks  each of which has the gradients of its own parameters only
---@field allow_unused? boolean  a parameter without a gradient is meant (an expert that no token has chosen yet)

---AdamW over tensors that require gradients. A bf16 parameter has an f32 master here.
---A step that would update a parameter whose gradient no backward pass has ever written to is an error that names it. A
---gradient of zeros is a gradient.
---@param parameters Tensor[]
---@param opt? AdamWOptions
---@return AdamW
function q.adamw_state(parameters, opt) end

---@class AdamW
local AdamW = {}
---One update and zeroed gradients. skipped: the norm was not finite and nothing changed.
---groups: those to update (all). The gradients of the others have to be zero.
---@param opt {lr: number, clip?: number, groups?: integer[]}
---@return {grad_norm: number, skipped: boolean}
function AdamW:step(opt) end
---The state to save: {{name, Tensor}...} for the parameter names given, and the count of steps of each group.
---@param names string[]
---@return table tensors
---@return integer[] steps
function AdamW:state(names) end
---@param file Weights
---@param names string[]
---@param steps integer[]
function AdamW:restore(file, names, steps) end

-- ---------------------------------------------------------------- files

---Writes tensors by name to one .safetensors file, which appears whole or not at all.
---Block formats need opt.dtype, except one_bit and ternary.
---@param path string  NAME.safetensors
---@param tensors table<string, Tensor>
---@param opt? {dtype?: dtype, metadata?: table<string, string>}  dtype: of floats and blocks
function q.save(path, tensors, opt) end
---The tensors of a file of weights, by name, in memory of their own.
---@param path string  .safetensors, or any that q.weights.open takes
---@return table<string, Tensor>
function q.load_tensors(path) end
---Writes a tensor of f32, f16, i32, i64 or u8 as numpy.load reads it; likewise whole or not at all.
---@param path string  NAME.npy
---@param tensor Tensor  NumPy has no bf16 and no blocks: save x:to "f32"
function q.save_npy(path, tensor) end
---An array of numpy.save, in C's order of elements, of up to 4 dimensions.
---float32, float16, int32, int64 and uint8 stay what they are. float64 is rounded to f32, bool becomes u8, and int8,
---int16 and uint16 become i32, which a line on stderr tells. Other dtypes, and big-endian ones, are refused.
---@param path string
---@return Tensor
function q.load_npy(path) end

q.weights = {}
---A file, index or folder of weights in any format that is known (engine/formats).
---@param path string
---@return Weights
function q.weights.open(path) end

---Tensors and metadata of a file, or of a set of them. Tensors stay valid after close().
---@class Weights
local Weights = {}
---Integers beyond 2^53 come as decimal text.
---@param key string
---@return any value, string? type  nothing if the file has no such entry
function Weights:get(key) end
---@return string[]
function Weights:keys() end
---All entries; vocabularies too, so get() is quicker for one.
---@return table<string, any>
function Weights:metadata() end
---@return string[]
function Weights:names() end
---@return string[]  the paths of its parts
function Weights:files() end
---@param name string
---@return {dtype: string, readable: boolean, keep: boolean, shape: integer[], bytes: integer}?
---  keep: a model keeps the tensor's own dtype, whatever it computes in
function Weights:info(name) end
---@return string[]  what those should know who load a model of it
function Weights:remarks() end

---@class WeightOptions
---@field dtype? dtype
---@field shape? integer[]  the shape that is expected
---@field copy? boolean
---@field label? string
---@field heads? integer  rows of a llama file's q or k come in Hugging Face's order (engine/formats/gguf_rows.h)
---@field interleave? boolean  the CPU's order of rows, for tq2_0 and q6_k (kernels/interleave.h); no load() afterwards
---@field stream? boolean  what is not the file's own memory lies in a temporary file (engine/stream/spilled_file.h)

---The file's own memory if dtype, order and device allow, else a copy (engine/weights/weights.h).
---interleave has no effect if a tensor given out before shows those rows.
---@param name string
---@param opt? WeightOptions
---@return Tensor
function Weights:tensor(name, opt) end
---Whether two tensors have the same type, shape and bytes.
---@param first string
---@param second string
---@return boolean
function Weights:same(first, second) end
---Reads the file into the process's own memory, in large pages: weights are then read faster than from a mapping.
---Tensors made before and after lie there. Does nothing if tensors are copied to a device anyway.
---if_room: only with twice their size of memory to spare; only: names of the tensors that are read, and none else is
---given out then.
---@param opt? {if_room?: boolean, only?: string[]}
---@return boolean  whether it was done
function Weights:load(opt) end
---Which bytes of its files load { only = names } reads: first, last, first, last, ...
---@param names string[]
---@return {path: string, spans: integer[]}[]
function Weights:spans(names) end
function Weights:close() end

q.safetensors = {}
---@param path string  file, index.json or folder
---@return Weights
function q.safetensors.open(path) end
---Writes atomically, over max_shard_bytes in shards with an index. An earlier save's files in the folder go.
---one_bit and ternary tensors are kept as their words, U32. A note in the metadata lets them read back as what they
---were. Other block formats need a dtype.
---@param path string  file, or folder when sharded
---@param tensors table  {{name, Tensor, dtype?}...}  dtype: of this one, whatever that of the others
---@param opt? {metadata?: table<string, string>, max_shard_bytes?: integer, dtype?: dtype, from?: Weights,
---  copied?: string[]}  dtype: of floats, and of blocks other than those above
---  copied: names of tensors of the open safetensors file `from`, of any type and shape: they are written as they are
---  there
function q.safetensors.save(path, tensors, opt) end

q.gguf = {}
---Of a split file, the first part: NAME-00001-of-0000N.gguf.
---@param path string
---@return Weights
function q.gguf.open(path) end
---Writes atomically, each tensor as it is (q.quantize first, for blocks).
---Types of metadata: u8 i8 u16 i16 u32 i32 u64 i64 f32 f64 bool string, and "[u32]" for arrays.
---@param path string
---@param tensors table  {{name, Tensor}...}
---@param metadata table  {{key, type, value}...}
function q.gguf.save(path, tensors, metadata) end
---The same in pieces: writer:write each tensor in the order of specs, then writer:commit().
---part_bytes: if the tensors have more bytes, they go to parts of at most so many: NAME-00001-of-0000N.gguf and so on,
---for NAME.gguf.
---@param path string
---@param specs table  {{name = , dtype = , shape = }...}
---@param metadata table  {{key, type, value}...}
---@param opt? {part_bytes?: integer}
---@return GgufWriter
function q.gguf.writer(path, specs, metadata, opt) end

---@class GgufWriter
local GgufWriter = {}
---@param name string
---@param tensor Tensor
---@param opt? {heads?: integer}  heads: rows go to llama's order
---@return integer bytes
function GgufWriter:write(name, tensor, opt) end
---@return string[] paths  of the file, or of its parts
function GgufWriter:commit() end

q.unicode = {}
---Text as Python's str has it, by code point: lower, upper, capitalize, title.
---@param text string
---@return string
function q.unicode.lower(text) end
function q.unicode.upper(text) end
function q.unicode.capitalize(text) end
function q.unicode.title(text) end
---As Python's repr writes it.
---@param text string
---@return string
function q.unicode.quoted(text) end
---Whether Python's str.isalpha (isdigit, ...) is true of the text.
---@param text string
---@param class "alpha"|"digit"|"alnum"|"space"|"upper"|"lower"
---@return boolean
function q.unicode.is(text, class) end

q.json = {}
---Arrays keep that they are arrays; whole numbers are exact up to 2^53.
---@param text string
---@param opt? {ordered?: boolean, exact?: boolean, most?: integer}
---  most: arrays and objects; more of them are refused
---  ordered: the metatable of an object lists its keys in the text's order, as __keys
---  exact: integers beyond 2^53 and floats without a fraction are {value =, digits = of an integer}, which encode
---  writes as they were
---@return any  null is q.json.null
function q.json.decode(text, opt) end
---@param value any
---@param opt? {pretty?: boolean, replace?: boolean, ordered?: boolean}
---  replace: bytes that are not UTF-8 become U+FFFD
---  ordered: keys as they were read (decode's `ordered`), then those that came since, sorted; else all are sorted
---@return string
function q.json.encode(value, opt) end
---Marks a table so that it is written as [] even when empty.
---@param t table
---@return table
function q.json.array(t) end

q.fs = {}
---@return string
function q.fs.read(path) end
---Atomic: temporary name, sync, rename.
function q.fs.write(path, text) end
function q.fs.append(path, text) end
---@return "file"|"dir"|nil
function q.fs.kind(path) end
---@return string[]  sorted names
function q.fs.list(path) end
function q.fs.mkdir(path) end
function q.fs.remove(path) end
function q.fs.copy(from, to) end
---A symbolic link at `path` to another path, in the place of a link or file that is there.
---@param to string
---@param path string
function q.fs.link(to, path) end
---Replaces folder `to` by `from` (synced first); a kill at any moment leaves one whole folder readable.
function q.fs.replace_dir(from, to) end
---The same for a new folder, which fill(folder) writes. If that fails, nothing has changed.
---@param path string
---@param fill fun(folder: string)
function q.fs.write_dir(path, fill) end
---Files end to end as one, which appears whole or not at all.
---@param paths string[]
---@param to string
---@param opt? {lines?: boolean}  lines: each file ends with a line's end, its own or one more
function q.fs.join(paths, to, opt) end
---Whether both are there and are one file or folder, whatever their names.
---@return boolean
function q.fs.same(a, b) end
---Who holds a folder, as "process 4711 on HOST": another process that said q.fs.hold. Writes nothing.
---@return string?
function q.fs.holder(folder) end
---Holds a folder that exists for this process, until it ends. An error of code "busy" names who else holds it.
---False: its file system has no locks.
---@return boolean
function q.fs.hold(folder) end
---Paths that match a pattern as a shell's, sorted.
---@param pattern string
---@return string[]
function q.fs.glob(pattern) end
---Deletes what killed processes left in a folder: NAME.tmp-PID-N, where the process is gone. Returns the names.
---@return string[]
function q.fs.sweep(path) end
---Asks the system to forget what it keeps of a file in memory, so that the next reading comes from the disk.
---It need not comply.
---@return boolean
function q.fs.drop_cache(path) end
---The absolute path without links and dots; nil if there is nothing.
---@return string?
function q.fs.real(path) end
---@return string?  the first existing of path as given, beside the installed recipes
function q.fs.find(path) end

---@class Tokenizer
local Tokenizer = {}
---@param path string  HF folder, tokenizer.json, .tiktoken of Qwen, Meta's or a SentencePiece .model
---@return Tokenizer
function q.tokenizer(path) end
---@param text string
---@param opt? {special?: boolean, after?: integer}
---  special: text like <|im_start|> becomes its token (default false)
---  after: the token that the text goes on from, so that SentencePiece writes no space between
---@return integer[]
function Tokenizer:encode(text, opt) end
---@param ids integer[]
---@param opt? {skip_special?: boolean}
---@return string
function Tokenizer:decode(ids, opt) end
---The raw bytes of a token.
---@return string
function Tokenizer:bytes(id) end
---@return integer?
function Tokenizer:id(special) end
---@return boolean
function Tokenizer:is_special(id) end
---@return integer
function Tokenizer:vocab_size() end
---@return string  16 hex digits
function Tokenizer:hash() end
---@return {bos?: integer, eos?: integer, pad?: integer, add_bos: boolean, chat_template?: string, name: string}
function Tokenizer:info() end

---@class VocabularyLists
---@field model string
---@field pre string
---@field tokens string[]
---@field types integer[]
---@field scores? number[]
---@field merges? string[]
---@field add_space_prefix boolean

---The lists that a GGUF file holds of a tokenizer (tokenizer.ggml.*).
---@return VocabularyLists
function Tokenizer:vocabulary() end
---Writes tokenizer.json or tokenizer.model, and tokenizer_config.json, into an existing folder.
---@param dir string
function Tokenizer:save(dir) end
---Many documents at once, on several threads (default: this process's cores), with the ids that encode gives each.
---@param texts string[]
---@param opt? {special?: boolean, threads?: integer}
---@return TokenBatch
function Tokenizer:encode_batch(texts, opt) end
---@param batch TokenBatch|integer[][]
---@param opt? {skip_special?: boolean, threads?: integer}
---@return string[]
function Tokenizer:decode_batch(batch, opt) end

---Token ids of documents, 4 bytes each and outside Lua's memory; #batch is the number of documents.
---@class TokenBatch
local TokenBatch = {}
---The ids of document i, from 1.
---@param i integer
---@return integer[]
function TokenBatch:ids(i) end
---@return integer  ids of all documents
function TokenBatch:tokens() end

---Learns a byte-level BPE vocabulary: add texts, then write.
---@class BpeTrainer
local BpeTrainer = {}
---By default: the pattern of qwen2, normalised, this process's cores.
---@param opt? {pattern?: bpe_pattern, nfc?: boolean, threads?: integer}
---@return BpeTrainer
function q.bpe_trainer(opt) end
---@param texts string[]
function BpeTrainer:add(texts) end
---@return integer  bytes of all texts added
function BpeTrainer:bytes() end
---Writes out/tokenizer.json: 256 bytes, the most frequent merges, the specials. The same texts give the same file.
---@param opt {vocab: integer, specials: string[], out: string}
---@return integer ids  how many: vocab, or fewer if no pair occurs twice
function BpeTrainer:write(opt) end

---@class TokenizerOptions
---@field files string[]
---@field vocab integer
---@field specials string[]
---@field out string
---@field eos? string
---@field pad? string
---@field pattern? string
---@field nfc? boolean
---@field threads? integer

---Learns a tokenizer from text, JSONL and JSON files.
---Writes tokenizer.json and tokenizer_config.json, which transformers load.
---@param opt TokenizerOptions
---@return Tokenizer
---@return {ids: integer, bytes: integer, seconds: number}
function q.train_tokenizer(opt) end

---Learns from texts in one call, with the pattern of Qwen2, and writes out/tokenizer.json.
---@param texts string[]
---@param opt {vocab: integer, specials: string[], out: string}
---@return integer ids  how many: vocab, or fewer where no pair of bytes is left to merge
function q.train_bpe(texts, opt) end

-- ---------------------------------------------------------------- packets

q.ndp = {}
---@param path string
---@param opt? {meta?: table, crc?: "ccitt"|"xmodem"}
---@return PacketWriter
function q.ndp.create(path, opt) end
---A file HASH.part that another process is receiving is opened too: whatever reads a record waits until it is here.
---@param path string
---@return PacketFile
function q.ndp.open(path) end
---Bare frames to read in order, without a container; "-" is standard input.
---@param path string
---@param opt? {crc?: "ccitt"|"xmodem"}
---@return RecordScanner
function q.ndp.scan(path, opt) end
---Bare frames to write: a file, which appears with finish(), or "-", standard output.
---@param path string
---@param opt? {crc?: "ccitt"|"xmodem"}
---@return FrameWriter
function q.ndp.frame_writer(path, opt) end

---@class ConversionOptions
---@field inputs string[]
---@field output string
---@field tokenizer Tokenizer
---@field format? string
---@field documents? string
---@field chatml? boolean  plain conversations are rendered by the engine
---@field system? string
---@field turns? string
---@field renderer? table  options of chat.renderer, for records that are not plain
---@field max_tokens? integer
---@field long? string
---@field dedupe? boolean
---@field max_bad? number
---@field max_record? number
---@field source? string
---@field source_field? string
---@field source_names? table<string, integer>
---@field destination? integer
---@field meta? table
---@field resume? boolean
---@field checkpoint? number
---@field threads? integer
---@field special? "parse"|"text"  of plain texts, as for q.convert
---@field text_begin? integer  the id before a plain text
---@field text_end? integer  the id after it

---The formats of data that are read.
---@return string[] names  of those that are text: csv, json, jsonl, text, tsv
---@return string[] endings  of files' names, also of others: parquet
function q.ndp.formats() end
---Writes a file of data as text, whole or not at all: what is packed (.gz, .zst, .bz2, .xz) is unpacked, and of Parquet
---each record becomes a line of JSON.
---@param from string
---@param to string
function q.ndp.unpack(from, to) end

---Starts converting text data to a dataset, in threads of its own. q.convert adds what users expect around it.
---@param opt ConversionOptions
---@return Conversion
function q.ndp.convert(opt) end

---@class Conversion
local Conversion = {}

---@class ConversionFigures
---@field done boolean
---@field seen integer
---@field records integer
---@field tokens integer
---@field targets integer
---@field bad integer
---@field bad_by_reason table<string, integer>
---@field longer integer
---@field duplicates integer
---@field repaired integer
---@field bytes_read integer
---@field bytes_total integer
---@field bytes_text integer
---@field bytes_skipped integer
---@field told string[]  the first bad records
---@field notes string[]

---Waits until it is done, or for so long; raises what ended it.
---Each bad record that is told, and each note, is returned once.
---@param seconds number
---@return ConversionFigures
function Conversion:wait(seconds) end
---Ends it after the records in flight, at a point to resume from: wait() then raises "interrupted".
function Conversion:stop() end
---Ends it and removes what was written.
function Conversion:abandon() end

---@class PacketWriter
local PacketWriter = {}
---@param tokens integer[]
---@param mask? (boolean|integer)[]  per token: is it a target; nil: all are
---@param opt? {src?: integer, dst?: integer}
function PacketWriter:add(tokens, mask, opt) end
---A record that holds no tokens. data: a string for "utf8", any value of JSON for "meta", else a list of numbers or a
---Tensor: "float32", "float16", "bfloat16", "int8", "ternary" (-1, 0, 1; a multiple of 4), "one_bit" (-1, 1; of 8).
---@param kind string
---@param data string|table|number[]|Tensor
---@param opt? {src?: integer, dst?: integer}
function PacketWriter:payload(kind, data, opt) end
---The record's frames as stored, checked; false, counted in file:errors(), where they are damaged.
---@param file PacketFile
---@param record integer
---@return boolean
function PacketWriter:copy(file, record) end
function PacketWriter:finish() end
function PacketWriter:abandon() end

---Its methods are those of PacketWriter.
---@class FrameWriter
local FrameWriter = {}
function FrameWriter:add(tokens, mask, opt) end
function FrameWriter:payload(kind, data, opt) end
---@return boolean
function FrameWriter:copy(file, record) end
function FrameWriter:finish() end
function FrameWriter:abandon() end

---@class RecordScanner
local RecordScanner = {}
---The next record, nil at the end.
---{type="token_ids", tokens=, mask=, src=, dst=}: without mask, every token is a target.
---A payload is {type=, payload=, src=, dst=}.
---@return table?
function RecordScanner:next() end
---What was damaged so far: frames (total, by_source), bytes skipped, and records lost of which some frame was whole.
---@return {total: integer, by_source: table<integer, integer>, skipped_bytes: integer, lost: integer}
function RecordScanner:errors() end

---@class PacketFile
local PacketFile = {}
---@return integer
function PacketFile:records() end
---What the file says of itself. payloads: records that hold no tokens; bytes: of all frames.
---@return {records: integer, payloads: integer, frames: integer, tokens: integer, loss_tokens: integer, bytes: integer}
function PacketFile:totals() end

---@class RecordInfo
---@field type string  "token_ids", or that of a payload, which has 0 tokens
---@field tokens integer
---@field loss_tokens integer
---@field src integer
---@field dst integer
---@field frames integer
---@field bytes integer  as stored

---What is known of a record without reading it.
---@return RecordInfo
function PacketFile:info(record) end
---Says that a record will be read next: of use for a file that is still coming.
function PacketFile:expect(record) end
---@return integer[]? tokens  nil when a frame is damaged
---@return integer[] mask
function PacketFile:read(record) end
---The data of PacketWriter:payload: a string, a value of JSON, or numbers.
---Numbers are a list; with tensor = true, a tensor of f32, f16, bf16 or i32.
---@param opt? {tensor?: boolean}
---@return any value  nil when a frame is damaged
---@return string kind
function PacketFile:payload(record, opt) end
---@return "ccitt"|"xmodem"
function PacketFile:crc() end
---Records that reads so far found damaged.
---@return {total: integer, by_source: table<integer, integer>}
function PacketFile:errors() end
---@return table
function PacketFile:meta() end

---@class Damage
---@field ok boolean
---@field records integer
---@field bad_records integer
---@field blocks integer
---@field bad_blocks integer
---@field bytes integer
---@field damaged table[]  the first 1000 records: {record=, offset=, src=}
---@field block_offsets integer[]  the first 1000 blocks of 1 MiB, by their offset in the file
---@field by_source table<integer, integer>

---Checks every frame and every block's hash, on all cores.
---progress is called now and then with bytes done and in all. first, blocks: only so many blocks of 1 MiB from one on,
---from 0, and the records that begin in them; records and blocks are then still those of the whole file.
---@param opt? {progress?: fun(done: integer, total: integer), first?: integer, blocks?: integer}
---@return Damage
function PacketFile:verify(opt) end
---One pass over all records with all cores. ends: tokens that end an answer.
---For all, and under sources[SRC] for each source: records, damaged, tokens, trained, untrained (records), answers,
---empty_answers, truncated, duplicates, duplicate_tokens, shortest, longest. Also lengths and trained_lengths
---({{tokens, records}...}), groups of duplicates ({records=, first=, tokens=}), highest_token.
---@param opt? {ends?: integer[], threads?: integer}
---@return table
function PacketFile:statistics(opt) end

---@class BatchOptions
---@field row_tokens integer
---@field rows? integer
---@field rank? integer  with ranks: rows rank, rank + ranks, ... of each global batch of `rows` rows
---@field ranks? integer
---@field seed? integer
---@field split? "train"|"eval"
---@field eval_share? number
---@field pad? integer
---@field long? "auto"|"split"|"truncate"|"drop"|"error"  documents longer than a row
---@field lookahead? integer
---@field once? boolean
---@field vocab? integer  a token at or over it is an error
---@field sources? integer[]  only records of these SRC
---@field drop? number  CRC-Drop: each epoch a record is left out with this probability
---@field weights? table<integer, number>|fun(step: integer, source: integer): number  a curriculum of SRC
---@field batches_per_step? integer  batches in one of the curriculum's steps
---@field route? boolean  every batch holds packets of one DST (info().dst)

---Packed batches of rows * row_tokens slots, prefetched by a thread.
---long = "auto" splits documents of which all is trained, and leaves out others: later pieces of a conversation would
---lack the question. "truncate" keeps the first row_tokens tokens, if one is trained. weights: {[SRC] = weight}, or a
---function of (step, source), called on this thread some batches ahead. Shares are of records. A source that ends
---begins anew.
---@param opt BatchOptions
---@return Batches
function PacketFile:batches(opt) end

---@class Batches
local Batches = {}
---The next batch, or nil at the end (split = "eval", or once).
---@return Batch?
function Batches:next() end
---Small integers; restore(state) continues with the very next batch.
---@return integer[]
function Batches:state() end
function Batches:restore(state) end
---The figures of one epoch. Those of a curriculum take the weights of step 0 throughout.
---{batches=, real_tokens=, trained_tokens=, documents=, split=, truncated=, dropped=, crc_dropped=}, and {[number] =
---records} as sources= and destinations=.
---@return table
function Batches:plan() end

---@class Batch
local Batch = {}
---{tokens=, real_tokens=, trained_tokens=, documents=, split=, truncated=, dropped=, crc_dropped=, damaged=, epoch=,
---dst=, wait_ms=, max_documents=}
---@return table
function Batch:info() end
---What the batch holds of each source (SRC).
---nll: the sum over its targets of the given tensor (Model:loss), which is read.
---@param nll? Tensor  [t] f32
---@return table<integer, {documents: integer, trained_tokens: integer, nll: number}>
function Batch:by_source(nll) end
---The documents, or pieces of long ones, in order: tokens begin .. begin + tokens - 1 of a record, from a slot on.
---@return {record: integer, begin: integer, tokens: integer, slot: integer}[]
function Batch:documents() end
---Starts the batch's way to a GPU while that computes; load() then finds it there. Optional; at most two at a time.
function Batch:send() end
---Copies into tensors: tokens, targets, positions [T] i32, cu_q [max_documents + 1] i32.
---Sets the field `trained`: how many targets are not -1. Whoever changes targets sets it again, or to nil.
---@param micro_batch {tokens: Tensor, targets: Tensor, positions: Tensor, cu_q: Tensor}
function Batch:load(micro_batch) end

-- ---------------------------------------------------------------- the hub

q.hub = {}

---@class HubOptions
---@field endpoint? string
---@field token? string
---@field cache? string
---@field offline? boolean
---@field attempts? integer
---@field backoff? number
---@field connect_timeout? number
---@field stall_timeout? number

---A hub's client. The environment gives what opt leaves out.
---Its variables are HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_OFFLINE and others: engine/hub/settings.h.
---@param opt? HubOptions
---@return Hub
function q.hub.open(opt) end

---@class Hub
local Hub = {}
---@return {endpoint: string, cache: string, offline: boolean, has_token: boolean}
function Hub:settings() end
---What a revision (branch, tag, commit) holds now.
---@param kind "model"|"dataset"
---@param repo string  org/name
---@param revision string
---@param watch? fun(done: integer, total: integer?, note: string)  called ten times a second
---@return {commit: string, folder: string, files: {path: string, size: integer?, hash: string?}[]}
function Hub:list(kind, repo, revision, watch) end
---The same for what is on this machine; nil if it was never fetched.
---@return table?
function Hub:cached(kind, repo, revision) end
---Fetches a file of a commit. What arrives is checked, and an interrupted download goes on where it was.
---@param commit string
---@param file {path: string, size?: integer, hash?: string}  as of list
---@param watch? fun(done: integer, total: integer?, note: string)
---@return string path
---@return boolean verified  false: the hub gave no hash, only its size was checked
function Hub:fetch(kind, repo, commit, file, watch) end
---Notes what the revision stands for, for cached(); after all its files.
function Hub:pin(kind, repo, revision, commit) end
---Bytes free where downloads go.
---@return number
function Hub:room() end

-- ---------------------------------------------------------------- files between peers

-- Files in blocks of 1 MiB, each verified by its SHA-256 (engine/blocks). Blocks and bytes count from 0.
q.blocks = {}

---Which blocks a file has. Reads all of it, or finds what was kept in the folder `cache` while the file was the same.
---@param path string
---@param opt? {cache?: string, watch?: fun(done: integer, total: integer)}
---@return Manifest
function q.blocks.manifest(path, opt) end
---A manifest that another sent. An error of code "format" unless it has the hash that was asked for.
---@param text string
---@param hash string  64 hex digits
---@return Manifest
function q.blocks.read_manifest(text, hash) end
---The bytes of one block of a file, as it is now: as Peers:send and PartialFile:put take them.
---@param path string
---@param index integer
---@return Frame
function q.blocks.block(path, index) end
---A folder's list of files: its text, and the hash that stands for all that is in it.
---@param paths string[]  in the folder
---@param manifests Manifest[]
---@return string text
---@return string hash
function q.blocks.folder(paths, manifests) end
---A folder's list that another sent. An error of code "format" unless it has the hash, and no path leads out.
---@return {path: string, hash: string, size: integer}[]
function q.blocks.read_folder(text, hash) end
---An error of code "format" unless the path is relative, printable and stays in its folder.
function q.blocks.check_path(path) end
---Bytes that may still be written where path is or will be.
---@return number
function q.blocks.room(path) end
---A file that is being received, HASH.part in a folder, which goes on with what came before. One process at a time.
---verify: also what came before is verified again.
---@param folder string
---@param manifest Manifest
---@param opt? {verify?: boolean, watch?: fun(done: integer, total: integer)}
---@return PartialFile
function q.blocks.partial(folder, manifest, opt) end

---@class Manifest
local Manifest = {}
---By which peers name the file: the SHA-256 of text().
---@return string  64 hex digits
function Manifest:hash() end
---@return integer  bytes
function Manifest:size() end
---@return integer  blocks
function Manifest:count() end
---@return string
function Manifest:text() end

---@class PartialFile
local PartialFile = {}
---Writes a block, verified first: else an error of code "format". False: it was here already.
---@param index integer
---@param frame Frame  that came, or of q.blocks.block
---@return boolean
function PartialFile:put(index, frame) end
---The blocks that are not here and that bytes first to last lie in; of the whole file by default.
---@param first? integer
---@param last? integer
---@return integer[]
function PartialFile:missing(first, last) end
---@return boolean
function PartialFile:has(index) end
---@return integer  blocks that are here
function PartialFile:here() end
---@return boolean
function PartialFile:complete() end
---Sees to it that what is here is on the disk, and would be found after a kill.
function PartialFile:sync() end
---The same, and lets another go on with it.
function PartialFile:close() end
---Moves the whole file to a path on the same file system; an error if blocks are missing, or something is there.
function PartialFile:finish(path) end
---Where the bytes are, as long as the whole file from the start.
---@return string
function PartialFile:path() end

-- ---------------------------------------------------------------- peers

---This machine's pair of keys, which is made where there is none, and the public keys of peers that may connect.
---The folder is $QENG_KEYS or ~/.config/qeng/keys. print(q.keys()) shows all. know and forget change what is known, by
---processes that run as well. Each machine has to know the other's key.
---name: letters, digits, '.', '_' and '-', by default the machine's.
---@param opt? {folder?: string, name?: string, know?: {name: string, public: string}, forget?: string}
---@return {name: string, public: string, folder: string, known: {name: string, public: string}[]}
function q.keys(opt) end

q.peers = {}

---@class PeersOptions
---@field keys? string  folder (q.keys)
---@field listen? string  "HOST:PORT", port 0 for any free one; nil: no peer can dial this process
---@field limit? integer  the most bytes of a frame's data, 256 MiB

---@class PeerFrame
---@field type string  "hello", "load", "ready", "open", "close", "step", "result", "error", "done", "unload",
---  "adapter", "state", "probe", "list", "files", "manifest", "blocks", "block", "have", "lacking", "push", "pull",
---  "stop", "packets" or "wait"
---@field request? integer
---@field position? integer
---@field epoch? integer
---@field text? string  at most 1 MiB
---@field data? string|Tensor|Frame  a tensor's bytes, or those of a frame that came

---Peers: processes on other machines, known by their keys, with encrypted connections.
---A thread of its own keeps them and gives signs of life: who is stopped, killed or cut off is gone within 1.5 s, and
---who only computes is not.
---@param opt? PeersOptions
---@return Peers
function q.peers.open(opt) end

---@class Peers
local Peers = {}
---@return integer  where it listens; 0: it does not
function Peers:port() end
---Dials a peer, at once and whenever it is not here.
---key: its public key or known name; by default each known one is tried. Where two processes dial each other, they have
---two connections and two numbers.
---@param address string  "HOST:PORT"
---@param key? string
---@return integer peer
function Peers:dial(address, key) end
---Ends a connection. A dialed peer is not dialed again; another one may come back.
---@param peer integer
function Peers:hang_up(peer) end
---Queues a frame, which arrives whole and in order, or the peer goes.
---An error of code "peer" where it is not here, or was gone and came back, which wait has not told yet; of code "full"
---where it is larger than room(peer).
---@param peer integer
---@param frame PeerFrame
function Peers:send(peer, frame) end
---Bytes that send takes now; 0 where it is not here.
---@param peer integer
---@return integer
function Peers:room(peer) end
---The next event; nil where none comes in time, and at Ctrl-C or SIGTERM. Its kinds:
---here has peer, key and name: one is connected, for the first time or again;
---gone has peer and why: what was under way to it and from it is dropped;
---frame has peer, type, request, position, epoch, text, and frame, which has the data.
---@param seconds number
---@return table?
function Peers:wait(seconds) end
---Those that dialed this process and were not let in, since that was last asked: key and address. A key is told once,
---and 32 of them at most.
---@return {key: string, address: string}[]
function Peers:refused() end
---Of a peer: here, times_here, round_trip_ms (of signs of life), bytes_sent, bytes_received, frames_sent,
---frames_received, unsent (bytes).
---@param peer integer
---@return table
function Peers:stats(peer) end
---Ends all connections, once what waits is sent or the seconds are over.
---@param seconds? number  0
function Peers:close(seconds) end

---The data of a frame that came. A large one is freed when it has been used: the collector does not see its size.
---@class Frame
local Frame = {}
---@return integer
function Frame:bytes() end
---@return string
function Frame:data() end
---A new tensor of these bytes.
---@param shape integer[]
---@param dtype dtype
---@return Tensor
function Frame:tensor(shape, dtype) end
---Writes the bytes into a tensor that has as many; returns it.
---@param x Tensor
---@return Tensor
function Frame:into(x) end
function Frame:free() end

---Tells the network where these peers listen, every half second until it is closed.
---Only who knows their key understands it. port: of UDP, 28765; interface: by default all that can broadcast.
---@param opt {peers: Peers, port?: integer, interface?: string}
---@return Beacon
function q.peers.beacon(opt) end

---@class Beacon
local Beacon = {}
function Beacon:close() end
---Looks for networks that have come or gone. Returns this machine's addresses on those that it is sent to.
---@return string[]
function Beacon:refresh() end

---Listens for beacons of known peers, 1.5 s by default.
---@param opt? {keys?: string, seconds?: number, port?: integer, interface?: string}
---@return {name: string, public: string, address: string}[]
function q.peers.find(opt) end
---The same as long as it is held.
---@param opt? {keys?: string, port?: integer, interface?: string}
---@return Ear
function q.peers.listen(opt) end
---@class Ear
local Ear = {}
---Those that were heard since the last call, and never before; waits so many seconds for them.
---@param seconds? number  0
---@return {name: string, public: string, address: string}[]
function Ear:heard(seconds) end

-- ---------------------------------------------------------------- a server's listener

---@class HttpServerOptions
---@field host? string  "127.0.0.1"
---@field port? integer  8080; 0: any free one
---@field threads? integer  of the network: 1
---@field keys? string[]  if given, paths that open does not list need one, else 401
---@field open? string[]
---@field hosts? string[]  what the Host header may name, without port; nil: any
---@field origins? string[]  whose pages may ask, beside the server's own
---@field max_body? integer  bytes: 16 MiB
---@field max_head? integer  bytes: 16 KiB
---@field head_seconds? number  10
---@field body_seconds? number  60
---@field write_seconds? number  30: without any progress the client is dropped
---@field idle_seconds? number  75: of a connection without a request
---@field max_connections? integer  2048
---@field max_unsent? integer  bytes of one stream: 1 MiB; a reader that is slower is dropped
---@field max_waiting_bytes? integer  of bodies that wait does not give yet: 256 MiB
---@field starting? boolean  until ready() or the first wait requests get 503, those of `open` 200
---@field cert? string  PEM files: TLS
---@field key? string

---Listens for HTTP/1.1. Threads of its own read and write; the loop that calls wait answers.
---@param opt? HttpServerOptions
---@return HttpServer
function q.http_server(opt) end

---@class HttpServer
local HttpServer = {}
---@return integer
function HttpServer:port() end
---What was to be loaded is there: with `starting`, requests wait for the loop from now on.
function HttpServer:ready() end
---The next event; nil where none comes in time, and at Ctrl-C or SIGTERM. Its kinds:
---request has id, method, path, query, headers (names in lowercase), body, remote, at (of q.time);
---gone has the id of a request whose client left before its answer was complete;
---refused has status, method, path, remote of what was answered without the loop.
---@param seconds number
---@return table?
function HttpServer:wait(seconds) end
---A whole answer. Nothing happens if the client is gone.
---@param id integer
---@param status integer
---@param headers? table<string, string|number>
---@param body? string
function HttpServer:respond(id, status, headers, body) end
---Begins an answer that write goes on with and finish ends.
---@param id integer
---@param status integer
---@param headers? table<string, string|number>
function HttpServer:begin(id, status, headers) end
---@param id integer
---@param text string
---@return integer? unsent  bytes that the connection has not taken; nil: the client is gone
function HttpServer:write(id, text) end
---@param id integer
function HttpServer:finish(id) end
---Since the start: requests, refused, dropped_slow. Now: connections, waiting_events, waiting_bytes, unsent_bytes.
---@return table<string, integer>
function HttpServer:stats() end
---No new connections, and 503 for new requests. Answers under way go on.
function HttpServer:stop() end
---Ends every connection, once what was handed over is sent or the seconds are over.
---@param seconds? number
function HttpServer:close(seconds) end

-- ---------------------------------------------------------------- generation

---@class Sampler
local Sampler = {}

---@class SamplerOptions
---@field temperature? number  0: greedy
---@field top_k? integer
---@field top_p? number
---@field min_p? number
---@field typical_p? number
---@field repetition_penalty? number  looks at prompt and output, as dry_* do; the other penalties look at the output
---@field presence_penalty? number
---@field frequency_penalty? number
---@field penalty_window? integer  the penalties look at the last so many tokens; 0: all
---@field logit_bias? table<integer, number>  {[token] = bias}
---@field seed? integer
---@field dry_multiplier? number
---@field dry_base? number
---@field dry_allowed_length? integer
---@field dry_penalty_last_n? integer
---@field dry_sequence_breakers? string[]  at most 64 texts; they need a tokenizer
---@field tokenizer? Tokenizer
---@field top_n_sigma? number
---@field xtc_probability? number
---@field xtc_threshold? number
---@field mirostat? 0|1|2
---@field mirostat_tau? number
---@field mirostat_eta? number

---Draws tokens. engine/generate/sampler.h says in which order the options act.
---dry_*, top_n_sigma, xtc_* and mirostat* are llama.cpp's options of these names.
---@param opt? SamplerOptions
---@return Sampler
function q.sampler(opt) end
---Draws from logits [vocab] (or the last row of [t, vocab]); does not accept the token.
---top, top_ids: the largest of these logits and whose they are, as q.topk has them, in the host's memory. Where they
---decide, the logits are not read; the token is the same.
---@param logits Tensor
---@param opt? {mask?: TokenMask, top?: Tensor, top_ids?: Tensor}
---@return integer
function Sampler:next(logits, opt) end
---Of what next() would draw: every token that may come and its probability, by id.
---@param logits Tensor
---@param opt? {mask?: TokenMask}
---@return {id: integer, p: number}[]
function Sampler:distribution(logits, opt) end
---Tells it a token of the output, after next() or distribution(): mirostat learns from it.
---@param token integer
function Sampler:accept(token) end
---Tells it the tokens of the prompt.
---@param tokens integer[]
function Sampler:prompt(tokens) end
---A sampler of its own in the same state.
---@return Sampler
function Sampler:clone() end

---A grammar that output has to follow, in llama.cpp's notation: root ::= "yes" | [0-9]{1,3}  (engine/grammar/gbnf.h)
---@param text string
---@param opt? {schemas?: table<string, string>}  JSON schemas, as texts, by names of rules that the text only uses
---@return Grammar
function q.grammar(text, opt) end
---The grammar of the JSON texts that are valid under a schema.
---engine/grammar/schema.h says what of JSON schema is read. Properties come in the order of the text; of a Lua table,
---as it was read (q.json.decode's `ordered`), else sorted.
---@param schema table|string  a table, or JSON text
---@return Grammar
function q.json_schema(schema) end

---@class Grammar
local Grammar = {}
---A matcher of one sequence, at its beginning. Matchers of the same grammar and tokenizer share their masks.
---@param tokenizer Tokenizer
---@param opt? {ends?: integer[], spoken?: integer[]}  the tokens that end an output: the tokenizer's eos; special
--- tokens that count as the text they are written with: none
---@return Matcher
function Grammar:matcher(tokenizer, opt) end

---@class Matcher
local Matcher = {}
---Which tokens may come next: for q.sampler.
---@return TokenMask
function Matcher:mask() end
---@param token integer
---@return boolean
function Matcher:allows(token) end
---Goes on with a token; one that is not allowed is an error, and changes nothing.
---@param token integer
function Matcher:accept(token) end
---@return boolean  the text so far is a whole output (an end token may come)
function Matcher:complete() end
---@return boolean  and nothing else may come
function Matcher:finished() end
---A matcher of its own at the same place; to go back after speculation, for one.
---@return Matcher
function Matcher:clone() end
---Back to the beginning.
function Matcher:reset() end

---One bit for each id; #mask is the vocabulary's size.
---@class TokenMask
local TokenMask = {}
---@param token integer
---@return boolean
function TokenMask:allows(token) end
---@return integer
function TokenMask:count() end
---@return integer[]  the ids that are allowed
function TokenMask:ids() end

---y_i = alpha x w_i^T scale_i + bias_i for inference. Not differentiable.
---The bits of a row depend on that row alone, so a sequence computes the same in every batch. Weights may have any
---stored dtype. scale: f32 [n_i] each, a factor for each row of w_i; one_bit and ternary weights need it. bias and
---scale may have holes (false). into: adds to these tensors instead.
---@param x Tensor  [rows, k]
---@param w Tensor[]  [n_i, k] each
---@param opt? {bias?: Tensor[], scale?: Tensor[], out?: dtype, alpha?: number, into?: Tensor[]}
---@return Tensor[]
function q.row_linear(x, w, opt) end

-- ---------------------------------------------------------------- time, errors, help

---Seconds on a monotonic clock. With a function, how long that takes: the median of runs for half a second after a
---first one; prints as a line. Each run is in a scope of its own, and tensors that fn returns are computed. A forward
---pass that no backward follows belongs in q.no_grad.
---share: of the device's measured limit, by the operations of one run, over 1 where data stay in caches; nil if there
---are no operations, or if measuring the limit would break the budget.
---@param fn? fun(...): ...
---@return number|{median: number, fastest: number, slowest: number, runs: integer, share: number?}
function q.time(fn, ...) end
---fn's results, or nil and the error object.
function q.try(fn, ...) end
---@param code string
---@param message string
function q.error(code, message) end
---Prints the reference of a name ("q.adamw"), a function, a class or an object; without x, the names.
---@param x? any
function q.help(x) end
---@type string
q.version = ""

-- ---------------------------------------------------------------- adapters and new tokens

q.adapters = {}
---w + scale * b a, rounded once to w's dtype; not differentiable.
---The result is f32 if w is f16, of a block format, or bf16 under f32.
---@param w Tensor
---@param lora {a: Tensor, b: Tensor, scale: number}
---@return Tensor
function q.adapters.merge_lora(w, lora) end
---The weight of a DoRA layer: row i of w + lora.scale b a, times magnitude[i] / its length.
---It is rounded as in q.adapters.merge_lora.
---@param w Tensor
---@param lora {a: Tensor, b: Tensor, scale: number}
---@param magnitude Tensor  [out] f32
---@return Tensor
function q.adapters.merge_dora(w, lora, magnitude) end
---scale[i] = magnitude[i] / |row i of w + lora.scale b a|, [out] f32: the factor of a DoRA layer's columns.
---The magnitude has its gradient through it. The length counts as a constant (arXiv 2402.09353).
---@param w Tensor  [out, in]
---@param lora {a: Tensor, b: Tensor, scale: number}
---@param magnitude Tensor  [out] f32
---@param squares Tensor  [out] f32: q.adapters.row_squares(w)
---@return Tensor
function q.adapters.dora_scale(w, lora, magnitude, squares) end
---The squared lengths of w's rows, [out] f32.
---@param w Tensor  [out, in] of any dtype
---@return Tensor
function q.adapters.row_squares(w) end
---A copy of w whose rows first .. first + count - 1 (from 0) are the mean of the rows before them.
---For an embedding with so many new tokens. It has more rows than w if those reach beyond.
---@param w Tensor  [rows, n]
---@param first integer
---@param count integer
---@param opt? {dtype?: dtype, label?: string}  dtype: f32 or bf16, w's own
---@return Tensor
function q.adapters.new_rows(w, first, count, opt) end

-- ---------------------------------------------------------------- what quantizing needs to know

q.quant = {}
---sums[c] += the squares of column c of x: how much the inputs of a linear layer use each column of its weights.
---@param sums Tensor  f32 [columns], on the CPU
---@param x Tensor
function q.quant.add_column_squares(sums, x) end
---The sums of (x - y)^2 and of x^2; the tensors may be of any dtype that can be decoded.
---@param x Tensor
---@param y Tensor
---@return number error
---@return number total
function q.quant.squared_error(x, y) end

-- ---------------------------------------------------------------- one-bit and ternary weights

q.onebit = {}
---One-bit or ternary weights times the scale of their row, as one tensor.
---one_bit becomes "q1_0" (rows of whole 128), ternary "tq2_0" (of 256), each block with its row's scale rounded to f16.
---Either becomes "f32", "bf16" or "f16".
---@param w Tensor  one_bit or ternary [rows, columns]
---@param scale Tensor  f32 [rows]
---@param type dtype
---@return Tensor
function q.onebit.join_row_scale(w, scale, type) end
---The inverse, if all blocks of a row have one scale: q1_0 or tq2_0 to one_bit or ternary weights, and f32 [rows].
---@param packed Tensor
---@return Tensor w
---@return Tensor scale
function q.onebit.split_row_scale(packed) end
---The signs of a matrix and the mean of |w| over each of its rows.
---@param w Tensor  f32, bf16 or f16 [rows, columns], columns a multiple of 32
---@return Tensor bits  one_bit
---@return Tensor scale  [rows] f32
function q.onebit.binarize(w) end
---Fair random signs, the same everywhere.
---@param bits Tensor  one_bit
---@param opt? {seed?: integer, subsequence?: integer}
function q.onebit.random_signs(bits, opt) end
---bits = the signs of x.
---@param x Tensor  f32
---@param bits Tensor  one_bit, of that shape
function q.onebit.pack_signs(x, bits) end
---How many elements of a one_bit tensor are +1; with y, how many differ between the two.
---@param x Tensor  one_bit
---@param y? Tensor  one_bit of the same shape
---@return integer
function q.onebit.count_bits(x, y) end
---Gives a one_bit weight's rows first .. counters.
---Each backward pass feeds them with pulses of its gradient (PulseGrad and Inertia in kernels/ops.h). q.inertia does
---this for a whole model.
---@param weight Tensor  one_bit [out, in], of one linear layer
---@param opt {state: Tensor, hyper: Tensor, counts: Tensor, first?: integer, subsequence?: integer, bop?: boolean}
function q.onebit.learn_by_pulses(weight, opt) end
---Straight-through: the gradient of a weight is added to that of `latent`, f32 of its shape.
---@param weight Tensor
---@param latent Tensor
function q.onebit.learn_latent(weight, latent) end
---Ends the learning of a weight.
---@param weight Tensor
function q.onebit.stop_learning(weight) end
---Clips x to [-1, 1] in place; with levels > 0 rounds it at random to a multiple of 1 / levels beside it.
---@param x Tensor  f32
---@param opt? {levels?: integer, subsequence?: integer}
function q.onebit.clip_to_grid(x, opt) end
---How many counters stand at each level: of bit planes one number a level from 0 on, of bytes 16 bins.
---@param state Tensor  one_bit [planes, rows, columns] or u8
---@return integer[]
function q.onebit.count_levels(state) end

-- ---------------------------------------------------------------- pages of keys and values

q.pages = {}
---Which pages of a paged cache belong to which sequence (engine/generate/page_pool.h).
---remember: full pages are found again. exact_pages: how many pages of exact rows there are beside pages of codes, for
---the first exact_first tokens of a sequence and the exact_last ones before each query (engine/generate/exact_pages.h).
---@param opt {pages: integer, page_tokens?: integer, remember?: boolean, exact_pages?: integer,
---  exact_first?: integer, exact_last?: integer}
---@return PagePool
function q.pages.pool(opt) end

---@class PagePool
local PagePool = {}
---A new sequence, without tokens; pages are shared under equal salts only.
---@param salt? integer
---@return integer id
function PagePool:open(salt) end
---Takes pages that hold the beginning of `ids`; how many tokens they hold, less than #ids.
---@param id integer
---@param ids integer[]
---@return integer
function PagePool:reuse(id, ids) end
---Slots for tokens first .. last of `ids`; false, and nothing changed, where pages lack.
---@param id integer
---@param ids integer[]
---@param first? integer
---@param last? integer
---@return boolean
function PagePool:extend(id, ids, first, last) end
---What the sequence has slots for is stored.
---@param id integer
function PagePool:commit(id) end
---@param id integer
---@return integer
function PagePool:length(id) end
---@param id integer
---@param length integer
function PagePool:truncate(id, length) end
---@param id integer
---@return integer id  another sequence of the same tokens, sharing the pages
function PagePool:fork(id) end
---@param id integer
function PagePool:close(id) end
---Forgets pages that no sequence has; of a sequence: those of its own that no other has, and how many these are.
---@param id? integer
---@return integer?
function PagePool:forget(id) end
---The sequence's pages in their order.
---@param id integer
---@return integer[]
function PagePool:pages(id) end
---The sequence's pages of exact rows, -1 where a page has none.
---@param id integer
---@return integer[]
function PagePool:exact_pages(id) end
---Drops the exact rows of page `index`, from 1, in which nothing was stored.
---@param id integer
---@param index integer
function PagePool:drop_exact(id, index) end
---Pages to copy before anything is stored: from, to, from, to..., and exact pages likewise; nil where there are none.
---Told once.
---@return integer[]?
---@return integer[]?
function PagePool:copies() end
---The longest beginning of at most `length` tokens that the sequence can be cut to and go on.
---@param id integer
---@param length integer
---@return integer
function PagePool:reachable(id, length) end
---Pages that extend can have.
---@return integer
function PagePool:available() end
---@return {pages: integer, page_tokens: integer, used: integer, remembered: integer, sequences: integer,
---  exact_pages: integer, exact_used: integer}
function PagePool:stats() end
---What is remembered by its beginnings, the one with the most pages first.
---One is all pages that go on from one first page. longest: pages of the longest sequence in it; used: pages that a
---sequence has; reused: how often the first page was taken over. Without a salt what it went on from is forgotten.
---@return {salt?: integer, pages: integer, longest: integer, used: integer, reused: integer}[]
function PagePool:beginnings() end
---Writes a step over the last counts[i] tokens of sequences ids[i] into its tensors, padded to their sizes.
---before, after: [sequences] i32, the page of the token before the step (the number of pages where there is none), and
---that of its last token. exact_slots, exact: as slots and pages, of exact rows; -1 where there are none.
---@param to {tokens: Tensor, positions: Tensor, slots: Tensor, cu_q: Tensor, lengths: Tensor, pages: Tensor,
---  before?: Tensor, after?: Tensor, exact_slots?: Tensor, exact?: Tensor}
---@param ids integer[]
---@param counts integer[]
function PagePool:fill(to, ids, counts) end
---The same step as a string for a process that has some of the model's layers, which q.pages.unpack reads there.
---most: columns of the page table; ranges: adapter's number, first row and rows of each adapter, one after another;
---copies, exact_copies: what PagePool:copies gave before it.
---@param ids integer[]
---@param counts integer[]
---@param opt {most: integer, ranges: integer[], copies?: integer[], exact_copies?: integer[]}
---@return string
function PagePool:pack(ids, counts, opt) end

---A step that another process told (PagePool:pack).
---@class CarriedStep
local CarriedStep = {}
---Writes it into the tensors of a step of its shape, as PagePool:fill does. Tokens are zeros.
---@param to table
function CarriedStep:fill(to) end
---Reads a step that another process told, and its shape. An error of code "format" where a number leads outside limits:
---the pages, exact pages, tokens of a page, rows and sequences that were opened, and the positions that the model has.
---@param text string
---@param limits {pages: integer, exact_pages: integer, page_tokens: integer, rows: integer, sequences: integer,
---  positions: integer}
---@return CarriedStep
---@return {rows: integer, count: integer, most: integer, copies?: integer[], exact_copies?: integer[],
---  ranges: {salt: integer, first: integer, count: integer}[],
---  spans: {first: integer, count: integer, position: integer}[]} shape  count: of sequences, whose rows are spans
function q.pages.unpack(text, limits) end

---Stores keys and values [tokens, kv_heads, head_dim] in pools [slots, kv_heads, head_dim].
---slots: [tokens] i32; slot -1 is nowhere.
---@param k Tensor
---@param v? Tensor  without it only k goes to its pool
---@param slots Tensor
---With levels the pool is one of codes, u8 [slots / 16, kv_heads, bytes of a tile] (KvStore of kernels/ops.h).
---@param k_pool Tensor
---@param v_pool? Tensor
---@param k_levels? Tensor
---@param v_levels? Tensor
function q.pages.kv_store(k, v, slots, k_pool, v_pool, k_levels, v_levels) end
---A matrix for each head: x [tokens, heads, dim] w [bases, dim, out_dim] + bias [bases, out_dim].
---Heads follow each other in as many runs as there are bases. A row's bits do not depend on the others. No gradient.
---@param x Tensor
---@param w Tensor
---@param bias? Tensor
---@param signs? Tensor  [3, dim], where they and two Hadamard matrices are w (HeadLinear of kernels/ops.h)
---@return Tensor
function q.pages.head_linear(x, w, bias, signs) end
---@param pool Tensor
---@param pairs_ Tensor  [n, 2] i32: from, to
---@param page_tokens integer
function q.pages.copy_pages(pool, pairs_, page_tokens) end
---The memory of a tensor as bytes, u8 [rows, bytes of a row], whatever its dtype; not a copy.
---@param tensor Tensor
---@return Tensor
function q.pages.bytes(tensor) end
---@class PagedAttentionOptions: AttentionOptions
---@field pages Tensor
---@field cu_q Tensor
---@field lengths Tensor
---@field page_tokens integer
---@field key_levels? Tensor  of codes, as for kv_store
---@field value_levels? Tensor
---@field value_dim? integer  of values that are codes
---@field exact? {keys?: Tensor, values?: Tensor, pages: Tensor, first: integer, last: integer}  rows that are not coded

---Attention of queries [tokens, heads, head_dim] over a paged cache (PagedAttention of kernels/ops.h).
---@param query Tensor
---@param k_pool Tensor
---@param v_pool Tensor
---@param opt PagedAttentionOptions
---@return Tensor
function q.pages.paged_attention(query, k_pool, v_pool, opt) end

-- ---------------------------------------------------------------- what is read from logits

q.logits = {}
---Log probabilities under logits as the model gave them, for each row.
---They are those of the token that came (left out if tokens[row] is -1) and of the `top` most probable. For a prompt
---tokens are the prompt from its second token on, and -1 for the last row.
---@param logits Tensor  [rows, vocab] or [vocab]
---@param tokens integer[]  one for each row
---@param opt? {top?: integer}
---@return {id?: integer, logprob?: number, top?: {id: integer, logprob: number}[]}[]
function q.logits.logprobs(logits, tokens, opt) end
---The log-probability of a token under the last row of logits, and the k likeliest: {{id =, logprob =}...}.
---@param logits Tensor  f32
---@param id integer
---@param k? integer
---@return number
---@return table[]
function q.logits.token_logprobs(logits, id, k) end
---KL(reference || model) of each row in nats, and in how many rows both have the same most probable token.
---@param reference Tensor  [rows, vocab]
---@param logits Tensor  [rows, vocab]
---@return number[] divergence
---@return integer same_top
function q.logits.compare(reference, logits) end
---A copy of logits in host memory, by one read, for samplers that take a row each.
---nil if the host can read the device's memory.
---@param logits Tensor
---@return Tensor?
function q.logits.on_host(logits) end

-- ---------------------------------------------------------------- rehearsals

q.rehearsal = {}
---Runs fn on a device that computes nothing and has only address space; returns fn's results.
---In it q.memory() says what fn would need, and q.rehearsal.cost() what it would cost at the limits given. Values read
---as zeros or as anything. Tensors made in it are closed at its end. gpu: the limits are those of a GPU that may not
---be here.
---@param fn function
---@param opt? {bandwidth?: number, flops_f32?: number, flops_bf16?: number, gpu?: boolean}
---@return ...
function q.rehearsal.run(fn, opt) end
---The cost of the operations of this rehearsal so far. seconds: at the limits given, 0 without any.
---@return {device: string, seconds: number, flops_f32: number, flops_bf16: number, bytes: number}
function q.rehearsal.cost() end

--- ---------------------------------------------------------------- ranks

-- The processes of a job, which mpirun or srun started. All call the same functions in the same order.
q.ranks = {}
---Joins the job that this process was started for; nil where it was not. On other ranks than 0 nothing but errors is
---printed from then on.
---@return Ranks?
function q.ranks.join() end
---Rank 0 of so many that do not exist, for a rehearsal: nothing is sent.
---@param size integer
---@return Ranks
function q.ranks.imagined(size) end

---@class Ranks
local Ranks = {}
---@return integer rank  from 0
function Ranks:rank() end
---@return integer size  ranks of the job
function Ranks:size() end
---Waits until all ranks are here.
function Ranks:barrier() end
---Rank 0's text, for all.
---@param text string
---@return string
function Ranks:tell(text) end
---Each rank's text, in the order of ranks, for all.
---@param text string
---@return string[]
function Ranks:texts(text) end
---Sums of the ranks' lists, number by number, in the order of ranks.
---@param numbers number[]  equally many on each rank
---@return number[]
function Ranks:sum(numbers) end
---The sums of these parameters' gradients over micro-batches that ranks compute.
---@param parameters Tensor[]  the same on each rank
---@return GradientSum
function Ranks:gradients(parameters) end
---Shares out the parameters of a model by units (embedding, layers, head): takes their memory, and keeps what this rank
---owns. A parameter of two units stays whole.
---@param names string[]  of the units
---@param parameters Tensor[][]  of each unit
---@param owners integer[][]  of each parameter of each unit, a rank
---@param weights boolean  weights too, not gradients alone
---@return Shards
function Ranks:shards(names, parameters, owners, weights) end
---Gives all ranks each parameter as the rank has it that owns it.
---@param parameters Tensor[]  the same on each rank
---@param owners integer[]  for each, a rank
function Ranks:share(parameters, owners) end
---Bytes that this rank has sent to others since the last call.
---@return number
function Ranks:sent() end
---Leaves the job, of which nothing is asked any more. A process that ends without it ends the others.
function Ranks:leave() end

---@class GradientSum
local GradientSum = {}
---A round: the first `present` ranks compute a micro-batch each until finish(). Their gradients are added, in f32 and
---in that order. After the last round of a step they are the sums on every rank; before it, zeros.
---@param present integer
---@param first boolean  begins a step
---@param last boolean  ends it
function GradientSum:begin(present, first, last) end
function GradientSum:finish() end
---Runs of the program tell which gradients are final, and may be sent while it computes others.
---@param program Program
function GradientSum:watch(program) end
---Seconds since the last call: of exchanging, and what finish() waited for it. While traced also when: jobs, waits.
---@return {exchanging: number, waiting: number, jobs: table[], waits: table[]}
function GradientSum:figures() end
---Whether figures() says when things were exchanged, as {name, begin, seconds}.
---@param on boolean
function GradientSum:trace(on) end

---@class Shards
local Shards = {}
---A parameter is trained from now on; its gradient is kept by its owner.
---@param parameter Tensor
---@param gradient? "f32"|"bf16"  by default as it is, or f32
function Shards:learn(parameter, gradient) end
---The stream that brings what units need, for a model's marks.
---@return WeightStream
function Shards:stream() end
---A round, as GradientSum's. A rank with a micro-batch runs one forward and one backward pass in it; after the last
---round owners have the sums.
---@param present integer
---@param first boolean
---@param last boolean
function Shards:begin(present, first, last) end
function Shards:finish() end
---Takes part in a forward pass without gradients that other ranks compute.
function Shards:follow() end
---After such passes.
function Shards:rest() end
---Gives all ranks what owners have changed, of what all of them keep.
function Shards:share() end
---All weights come together on rank 0, until release().
function Shards:gather() end
function Shards:release() end
---As GradientSum's.
---@return {exchanging: number, waiting: number, jobs: table[], waits: table[]}
function Shards:figures() end
---@param on boolean
function Shards:trace(on) end

-- ---------------------------------------------------------------- the host: terminal, process, signals

q.host = {}
---@param fd? 0|1|2  1
---@return boolean
function q.host.isatty(fd) end
---Columns of the terminal, 80 where unknown.
---@return integer
function q.host.columns() end
---Lines from the terminal with editing, history in a file and completion.
---complete(word, before) gives the words that may stand for `word`, which follows `before`. Pasted lines and Alt-Enter
---make a text of several lines.
---@param opt? {history?: string, complete?: fun(word: string, before: string): string[]}
---@return LineEditor
function q.host.line_editor(opt) end

---@class LineEditor
local LineEditor = {}
---@param prompt string
---@param initial? string  text to begin with
---@return string? text
---@return "interrupted"|"end"|nil why  there is no text: Ctrl-C, or the end of the input
function LineEditor:read(prompt, initial) end
---Adds a text to history, and to its file.
---@param text string
function LineEditor:remember(text) end

---With true, Ctrl-C (so do SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2) only sets the flag that q.host.interrupted() tells; a
---second one raises. With false it raises at once. So does one that came before and that nobody asked for.
---@param on boolean
function q.host.defer_interrupt(on) end
---@return boolean
---@return string? name  "Ctrl-C", "SIGTERM", "SIGHUP", "SIGUSR1" or "SIGUSR2"
function q.host.interrupted() end
---Runs fn(...) without raising or telling a Ctrl-C: one that comes meanwhile takes effect when fn has returned.
---For what has to change together. What takes long in it goes into q.host.interruptible.
function q.host.uninterrupted(fn, ...) end
---Runs fn(...), within which Ctrl-C is raised although a caller is in q.host.uninterrupted.
function q.host.interruptible(fn, ...) end
---From now on the process goes on if nobody reads what it prints: for jobs whose result is files.
---Otherwise a closed pipe ends it, as it does other programs. Either way a process whose standard output did not all
---arrive does not exit with 0.
function q.host.outlive_output() end
---Peak resident memory of this process, bytes.
---@return integer
function q.host.peak_rss() end
---XXH3 (64 bits) of bytes, as 16 hexadecimal digits.
---@param bytes string
---@return string
function q.host.hash(bytes) end
---Reads a YAML document such as READMEs have at their head: lists, maps and text, whatever a scalar looks like.
---null is nil. Anchors and tags are refused.
---@param text string
---@param name string  of the text, for errors
---@return any
function q.host.yaml(text, name) end
---Runs qeng with other arguments, as a process of its own whose output goes to the end of a file.
---It is killed when nothing holds it any more.
---@param arguments string[]
---@param opt? {output?: string, folder?: string}  folder: where it runs
---@return Process
function q.host.process(arguments, opt) end
---@class Process
local Process = {}
---@return integer
function Process:pid() end
---nil while it runs; then its exit status, or 128 and the number of the signal that ended it.
---@return integer?
function Process:status() end
---Waits at most so many seconds for its end, or until Ctrl-C; then as status.
---@param seconds number
---@return integer?
function Process:wait(seconds) end
---Ends it and what it began: SIGTERM, or with true SIGKILL.
---@param now? boolean
function Process:stop(now) end
---Runs Lua code that nobody has read, in a process of its own without io, os, ffi and debug.
---print and bytecode are missing too. Past a limit the code has failed.
---@param code string
---@param opt? {instructions?: integer, memory?: integer, seconds?: number}  20 million, 256 MiB, 5
---@return boolean done
---@return string text  what the code returned (a string, number or boolean), or what was wrong
function q.host.sandbox(code, opt) end

-- ================================================================ Part 2: the Lua library (scripts/qeng)

-- ---------------------------------------------------------------- recipes

---A recipe's command line, from a list in the order that --help prints.
---The list has what the recipe does, { "rank", 16, "LoRA rank", min = 1 } for each option (name, default, help), and
---names of sets of options ("device", "model"; recipes/README.md lists them). The default shows the type.
---scripts/qeng/console/options.lua says what else an entry may have. A wrong or unknown option is an error of code
---"usage" that names the nearest.
---@param list table
---@param args? string[]  the recipe's own
---@param program? string  for the help text
---@return table values  values.__given[name]: was it on the command line?
function q.options(list, args, program) end

---Chooses the device that the options name.
---@param opt {device: string, threads: integer, device_budget?: integer}
function q.use_device(opt) end

---@class FinetuneOptions
---@field model string
---@field model_file? string
---@field data string
---@field out? string
---@field mode? "lora"|"full"
---@field rank? integer
---@field alpha? number
---@field rslora? boolean
---@field dropout? number
---@field targets? string[]
---@field steps? integer
---@field epochs? number
---@field row_tokens? integer
---@field rows? integer
---@field accumulate? integer
---@field lr? number
---@field schedule? string
---@field warmup? integer
---@field decay? number
---@field clip? number
---@field seed? integer
---@field dtype? dtype
---@field template? string
---@field template_args? string|table
---@field eval_share? number
---@field eval_data? string
---@field eval_every? integer
---@field patience? integer
---@field best? boolean
---@field samples? string
---@field sample_tokens? integer
---@field tensorboard? boolean
---@field save_every? integer
---@field keep? integer
---@field resume? boolean
---@field recompute? boolean
---@field eager? boolean
---@field profile? boolean
---@field gguf? boolean
---@field adapter? string
---@field rank_pattern? table<string, integer>
---@field alpha_pattern? table<string, number>
---@field dora? boolean
---@field add_tokens? string[]
---@field train_embeddings? boolean
---@field neftune? number
---@field mtp? number  the weight of the loss of a head that drafts tokens and is trained beside
---@field mtp_depth? integer
---@field special? "parse"|"text"
---@field documents? "paragraph"|"line"|"file"
---@field long? "auto"|"split"|"truncate"|"drop"
---@field sources? string
---@field drop? number
---@field weights? string
---@field host_budget? integer
---@field stream_keep? integer
---@field any_tokenizer? boolean

---Loads opt.model, opens opt.data, trains by opt.mode, saves under opt.out.
---opt is the set of options "finetune", as in recipes/lora_qwen.lua, whose --help tells the defaults. A list may be
---text with commas. Other names are refused.
---@param opt FinetuneOptions
---@param hooks? {prepare?: function, on_step?: function, weights?: table|function, title?: string}
---  prepare(model, file), on_step(row, model)
---@return Model model
---@return PacketFile file
---@return table result  as q.train
function q.finetune(opt, hooks) end

---A model's folder by its name on the hub, org/name[@revision].
---Fetches configuration, tokenizer and safetensors, if they are not here.
---@param name string
---@param opt? {hub?: Hub}
---@return string folder
---@return string commit
function q.hub.model(name, opt) end
---The data of a split of a dataset, org/name[@revision][:config][:split].
---It is one local file, or several with commas between. config: by default that of the dataset's README; split: train.
---@param name string
---@param opt? {hub?: Hub}
---@return string path
---@return string commit
function q.hub.data(name, opt) end
---The files of a repository whose path one of the patterns ("*.json") matches.
---@param name string
---@param kind "model"|"dataset"
---@param patterns string[]  none: all files
---@param opt? {hub?: Hub}
---@return string folder
---@return string commit
---@return integer files
function q.hub.files(name, kind, patterns, opt) end

-- ---------------------------------------------------------------- models

---@class LoadOptions
---@field dtype? dtype  by default the file's own; f16 matrices then stay so, and are computed in f32
---@field writable? boolean  weights with memory of their own, for full fine-tuning
---@field weights? string  "map", "copy" (faster, the default if there is room) or "stream"
---@field host_budget? integer  with stream: bytes of the process; on a GPU with memory of its own, what is pinned
---@field stream_slack? integer  bytes of host_budget for what is not known in advance (64 MB)
---@field stream_keep? integer  on such a GPU, bytes of weights that stay there for good
---@field model_file? string  a Lua file like those of scripts/qeng/models; it is run
---@field runtime? Runtime  where the model lies; by default the runtime in use

---A model from a Hugging Face folder (config.json, safetensors, tokenizer) or a GGUF file.
---Its architecture is one of scripts/qeng/models, or that of model_file. Options of other names are refused, unless
---q.options parsed them.
---@param dir string  folder, .gguf file, or a name on the hub, org/name[@revision]
---@param opt? LoadOptions
---@return Model
function q.load(dir, opt) end

---@class RandomModelOptions
---@field dtype? dtype
---@field std? number
---@field seed? integer
---@field weights? (fun(name: string, shape: integer[]): Tensor)
---@field model_file? string
---@field runtime? Runtime

---A model with random weights from the keys of a config.json; or with those that weights(name, shape) gives.
---@param config table
---@param opt? RandomModelOptions
---@return Model
function q.random_model(config, opt) end

---Tensors that hold one packed micro-batch.
---batch:load(micro_batch) and micro_batch.scale:fill(1 / trained tokens) fill them. The field `trained`, which load
---sets, says how many targets are not -1, at most; nil: any number. A GPU then computes so many rows of the head.
---@param tokens integer
---@param max_documents integer
---@return {tokens: Tensor, targets: Tensor, positions: Tensor, cu_q: Tensor, scale: Tensor, trained: integer?}
function q.micro_batch(tokens, max_documents) end

---@class Model
---@field stream WeightStream?  where the weights are streamed
---@field tokenizer Tokenizer?
---@field config table
---@field dtype dtype
---@field recompute boolean  drop activations of each layer and compute them again in backward
---@field router_aux_loss number  weight of the loss that balances experts
---@field places string[]  where hooks may be: "embed", "layers.N.attn", "layers.N.mlp", "layers.N", "norm"
---@field parameters {name: string, tensor: Tensor}[]
local Model = {}
---The rotation table for documents of up to `length` tokens.
function Model:rope(length) end
---Refuses rows longer than the model can pack.
function Model:check_length(row_tokens) end
---Hidden states [t, hidden] of one document, or of several.
---@param input string|integer[]|Packed  a text, whose special tokens count as such, token ids, or what q.pack gives
---@return Tensor
function Model:hidden(input) end
---Logits [t, vocab] in f32 of one document, without a gradient. Those with one are
---q.linear(model:hidden(input), model.head, {out = "f32"}).
---@param input string|integer[]
---@return Tensor
function Model:logits(input) end
---The log probability of each target of a packed batch, 0 where there is none.
---@param packed Packed|table
---@param length? integer  of the longest document
---@return Tensor  [t] f32
function Model:logprobs(packed, length) end
---Logits of a packed batch, for losses that need all of them.
---@param packed Packed|table
---@param length? integer
---@return Tensor  [t, vocab] f32
function Model:packed_logits(packed, length) end
---fn(...) with the adapters off: the model as it was loaded.
---@param fn function
---@return ...
function Model:without_adapter(fn, ...) end
---Sets the hook of a place, or with nil removes it: fn(x, place) gets what passes there, [t, hidden].
---What it returns, of the same shape and dtype, takes the place of x; nothing leaves x as it is. It is called in every
---pass: model:logits, training, generation, and again in backward with recompute, also if it is removed between.
---Reading values in training needs eager = true. A program of q.capture keeps the hooks that it was captured with.
---@param place string  one of model.places; scripts/qeng/model/hooks.lua says what passes there
---@param fn? fun(x: Tensor, place: string): Tensor?
function Model:hook(place, fn) end
---What leaves the places for a text or ids, as the hooks have it.
---@param input string|integer[]
---@param places? string[]  all by default
---@return table<string, Tensor>
function Model:activations(input, places) end
---The gradients of parameters and adapters that have one, by name.
---@return table<string, Tensor>
function Model:gradients() end
---Loss [1] of a packed batch: micro_batch.scale * sum of nll; length: the longest document.
---@param micro_batch table  as q.micro_batch
---@param length? integer
---@return Tensor loss
---@return Tensor nll  [t]
---@return Tensor? balance  [1], if router_aux_loss is not 0; loss:backward(balance) goes back from both
function Model:loss(micro_batch, length) end

---@class LoraOptions
---@field rank? integer  16
---@field alpha? number  2 * rank
---@field rslora? boolean
---@field dropout? number
---@field targets? string[]  names of layers or their ends, "layers.3.mlp.up_proj"; by default all linear ones
---@field ranks? table<string, integer>  of single layers, by such names
---@field alphas? table<string, number>  likewise
---@field dora? boolean  the lengths of weight rows are trained too
---@field seed? integer

---Adds LoRA adapters to the target layers and trains those.
---@param opt LoraOptions
---@return Model self
function Model:lora(opt) end
---Trains every parameter; load the model with writable = true.
---@param opt? {gradients?: "f32"|"bf16"}  bf16: of linear layers of a bf16 model; the others keep f32
---@return Model self
function Model:full(opt) end
---@return {name: string, tensor: Tensor}[]
function Model:trainable() end
---Gives the model a head that drafts tokens (MTP): its folder's, or a new one made of its last layer of attention.
---The engine guesses with it: model:engine { draft = "mtp" }.
---from: also the folder of an adapter that the head was trained beside, which load_adapter attaches.
---@param opt? {from?: "folder"|"layer"|string, input?: "post"|"pre", writable?: boolean, seed?: integer}
function Model:attach_mtp(opt) end
---Takes that head off, also one that the model's folder has.
function Model:strip_mtp() end
---Trains that head, beside what else is trained or alone. Model:loss has its losses as a fourth result.
---@param opt {alone?: boolean, weight?: number, depth?: integer}  weight 0.3; depth: tokens ahead, 1
---@return Model self
function Model:train_mtp(opt) end
---Writes a PEFT adapter folder, and mtp.safetensors beside: the head that drafts tokens, if it was trained with it.
---@param dir string
function Model:save_adapter(dir) end
---Writes the adapter as a GGUF file, as llama.cpp loads it beside a model.
---@param path string
function Model:save_adapter_gguf(path) end
---@param path string  a PEFT adapter folder, or an adapter in a GGUF file
function Model:load_adapter(path) end

---@class GgufOptions
---@field type? string  "f16", or any that recipes/quantize.lua lists
---@field overrides? string
---@field part_bytes? integer
---@field importance? table<string, Tensor>
---@field measure? boolean
---@field progress? function

---Writes the model as a GGUF file; merge an adapter first. Weights that are stored rotated are written unrotated.
---@param path string
---@param opt? GgufOptions
---@return {by_type: table[], elements: integer, bytes: integer, notes: string[], paths: string[]}
function Model:save_gguf(path, opt) end
---Adds the adapters into the weights; those that are stored rotated stay so.
function Model:merge() end
---A Hugging Face folder of the weights as they are, tokenizer files included.
---@param dir string
---@param opt? {max_shard_bytes?: integer}
function Model:save(dir, opt) end

---@class GenerateOptions: SamplerOptions
---@field prompt? string
---@field messages? table[]  the chat; with a template they may have tool_calls, reasoning_content and role tool
---@field ids? integer[]
---@field system? string
---@field tools? table[]  if the model has a chat template
---@field template? string
---@field template_args? string|table
---@field max_tokens? integer
---@field stop? string[]
---@field stop_ids? table<integer, boolean>
---@field grammar? Grammar
---@field adapter? Adapter|false
---@field logprobs? integer
---@field prompt_logprobs? integer
---@field context? "stop"|"error"|"shift"
---@field keep? integer
---@field lookup? integer
---@field reasoning? boolean
---@field on_token? fun(request: Request, id: integer)
---@field engine? Engine
---@field kv? string  the type of a KV cache for this call alone
---@field chunk? integer  tokens of prompts in a step
---@field draft? Model|"mtp"|boolean  a model that guesses ahead, or the model's own head; false: none

---An iterator over pieces of generated text, whole UTF-8 characters each, and their kind.
---kind: "reasoning" with opt.reasoning, else nil. The second result is the request: its finish, logprobs and figures
---(scripts/qeng/infer/request.lua). Without opt.engine there is a KV cache for this call alone. A caller that leaves
---the loop early may free it with request.engine:close().
---@param opt GenerateOptions
---@return fun(): string?, string?
---@return Request
function Model:generate(opt) end
---The whole answer as one string.
---@param opt table  as Model:generate
---@return string
function Model:answer(opt) end
---An adapter of PEFT's for single requests ({adapter = }), beside the one that is on the model.
---@param dir string
---@return Adapter
function Model:read_adapter(dir) end
---As q.engine(model, opt).
---@param opt? table
---@return Engine
function Model:engine(opt) end

---@class EngineOptions
---@field kv? string  how keys and values are kept: auto, f32, bf16, f16, q8_0, codes as tq4, or two as q8_0/tq3
---  (scripts/qeng/model/kv_types.lua; recurrent states are f32)
---@field pages? integer  the cache's size in pages
---@field memory? number  or in bytes
---@field page_tokens? integer  tokens of a page: 16; of a recurrent model (Mamba-2) all of a sequence, as a page keeps
---  a snapshot of its state; smaller pages share equal beginnings, and go back less far after a wrong guess
---@field max_batch? integer
---@field chunk? integer  tokens of prompts in a step
---@field context? integer  the most tokens of a sequence
---@field remember? boolean  equal beginnings of prompts are computed once
---@field draft? Model|"mtp"  a model that guesses ahead, or the model's own head (Model:attach_mtp)
---@field draft_vocab? integer|integer[]  "mtp": only the first so many tokens are guessed, or these
---@field draft_always? boolean  guess also where it does not pay
---@field blank? boolean  all pages are zeros in memory, for who times steps over what was not computed (false)

---Many requests at once (scripts/qeng/infer/engine.lua says how they are served).
---@param model Model
---@param opt? EngineOptions
---@return Engine
function q.engine(model, opt) end

---Weights of an adapter for single requests: {adapter = } of Model:generate and Engine:submit.
---@class Adapter

---@class Engine
local Engine = {}
---@param opt table  as Model:generate, without engine, kv, chunk and the draft model
---@return Request
function Engine:submit(opt) end
---Runs one step; false once no request is left. Not from on_token.
---@return boolean
function Engine:step() end
---Runs until no request is left.
function Engine:finish() end
---@param request Request
function Engine:cancel(request) end

---@class EngineStats
---@field running integer
---@field waiting integer
---@field steps integer
---@field pages integer
---@field used integer
---@field remembered integer
---@field kv_bytes number
---@field kv_capacity number

---@return EngineStats
function Engine:stats() end
---What the cache holds: dtype, bytes of a page in all layers and in each kind of state, the pages of requests that run,
---and what is remembered (PagePool:beginnings).
---@return {kv: dtype, page_tokens: integer, page_bytes: number, requests: table[], kinds: table[], beginnings: table[]}
function Engine:cache() end
---After the model's weights changed: forgets what was computed with the old ones.
function Engine:forget() end
---Writes what is remembered of the beginning of token ids into a file: full pages of them, as they came.
---adapter: as for a request. An error of code "value" if nothing is.
---@param path string
---@param ids integer[]
---@param adapter? Adapter|false
---@return integer  tokens
function Engine:save_prefix(path, ids, adapter) end
---Remembers what such a file holds. It has to be of this model, this adapter and the same cache.
---@param path string
---@param adapter? Adapter|false
---@return integer[]  ids
function Engine:load_prefix(path, adapter) end
---@param ids integer[]
---@param adapter? Adapter|false
---@return integer  tokens that are forgotten
function Engine:forget_prefix(ids, adapter) end
---Cancels what is left and frees the cache. Not from on_token.
function Engine:close() end

---@class Request
local Request = {}
---Text since the last call: an array of {text, kind}.
---@return table[]
function Request:take() end
---How fast it was, in a line.
---@return string
function Request:speed() end

-- ---------------------------------------------------------------- the server (recipes/SERVER.md)

---@class ServerOptions
---@field models? table  {{name, model or path}, ...}: the first answers requests that name none
---@field dir? string  a folder of models that are loaded when a request names them
---@field keep? integer  of those so many stay (1)
---@field load? table  options of q.load for models that are loaded here
---@field adapters? table<string, string>  PEFT folders or GGUF files, by the names that requests choose them by
---@field engine? EngineOptions  of each model
---@field queue? integer  requests that may wait; beyond them status 429 (256)
---@field grace? number  seconds for what runs when it is told to end (30)
---@field root? string  the folder whose files requests may name
---@field log? fun(line: string)  takes a line of JSON for each request
---@field log_text? boolean  with what was asked and answered
---@field limits? table  of q.limits: of every 256 steps one is measured against them, for /metrics
---@field ping? number  seconds after which a silent stream says that it lives (15)
---@field http? table  options of q.http_server

---Answers HTTP with models (scripts/qeng/server/init.lua).
---@param opt ServerOptions
---@return Server
function q.server(opt) end
---A server from the options of the set "serve", and its address.
---@param opt table
---@return Server
---@return string
function q.serve(opt) end
---A worker from the options of the set "worker" (recipes/worker.lua), and its address: it computes layers of models for
---coordinators whose keys are known here (scripts/qeng/peers/worker.lua). worker:run() serves until Ctrl-C.
---@param opt table
---@return table
---@return string
function q.worker(opt) end

---@class Server
local Server = {}
---Adds a route, in place of one of the same method and path. The path may have {name} for a piece of it, {name*} for
---the rest.
---@param method string
---@param path string
---@param handler fun(call: Call, given?: table)
---@param about? {says?: string, fields?: table, errors?: fun(status: integer, body: table): table}
---  says: what it does; fields: what its JSON body may have (scripts/qeng/server/fields.lua), which is `given` then;
---  errors: another form of an error's body
function Server:route(method, path, handler, about) end
---Serves until Ctrl-C, SIGTERM or drain(); what runs is answered first.
function Server:run() end
---One round of its loop, which waits at most so long for a request.
---@param seconds number
function Server:turn(seconds) end
---Takes no request from now on.
function Server:drain() end
---The model, and the adapter if it is one, that a request names; without a name, the first.
---@param name? string
---@return table
---@return Adapter?
function Server:find(name) end
---Whether there is a model or an adapter of a name.
---@param name string
---@return boolean
function Server:has(name) end
---A path that a request names, within the server's root.
---@param path string
---@param param string  the field that has it, for errors
---@return string
function Server:inside(path, param) end
---A name that no other request or answer has.
---@param kind string
---@return string
function Server:name(kind) end

---A request by HTTP and its answer (scripts/qeng/server/call.lua). event: what q.http_server gave; params: what stood
---for the {names} of the path.
---@class Call
---@field event table
---@field params table<string, string>
---@field server Server
local Call = {}
---The body, of JSON.
---@return any
function Call:json() end
---The same with the order of keys and the spelling of numbers (q.json.decode's ordered and exact).
---@return any
function Call:exact() end
---Answers with JSON.
---@param status integer
---@param value table
---@param headers? table<string, string>
function Call:reply(status, value, headers) end
---Answers with a text of a type.
function Call:text(status, kind, body, headers) end
---Begins a stream of server-sent events.
function Call:stream() end
---Sends an event: JSON or a text.
---@param value table|string
---@param name? string
function Call:send(value, name) end
---Ends the stream.
function Call:close() end
---Sends a comment, which clients pass over: proxies close what is silent for long.
function Call:ping() end
---Answers with an error: as the answer, or as the last event of a stream.
function Call:fail(err) end
---Who asks: the key that was shown, else the address.
---@return string
function Call:client() end
---Submits a request to a model's engine; it is cancelled when the client leaves.
---@param served table  one of Server.models
---@param opt table  as Engine:submit
---@return Request
function Call:submit(served, opt) end
---Lets the server's loop go on with others for a round.
function Call:pause() end
---Lets it go on for so many seconds, by a quarter of one more.
---@param seconds number
function Call:sleep(seconds) end
---Waits until one of its requests has another token, or is done.
function Call:wait() end
---Whether the loop has to go on with it.
---@return boolean
function Call:ready() end
---Follows its requests to their ends.
---@param piece fun(i: integer, request: Request, text: string, kind?: string)
---@param over fun(i: integer, request: Request)
function Call:follow(piece, over) end
---Ends its requests.
function Call:cancel() end

---A conversation: what was said counts, and only what is new is computed (scripts/qeng/infer/conversation.lua).
---opt: system; kv, context, chunk, draft as in q.engine; when_full, which Model:generate calls context; and other
---options of Model:generate.
---@param model Model
---@param opt? table
---@return Conversation
function q.conversation(model, opt) end

---@class Conversation
---@field messages table[]
---@field system string?  the system message
---@field request Request?  the last
local Conversation = {}
---An iterator over pieces of the answer and their kind ("reasoning" or nil).
---@param text string
---@param interrupted? fun(): boolean  asked between pieces: true ends the answer
---@return fun(): string?, string?
function Conversation:ask(text, interrupted) end
---Ends the answer; what has come is kept.
function Conversation:stop() end
---@return string
function Conversation:speed() end
---Forgets the messages.
function Conversation:reset() end
---@param path string  gets a line of JSON
function Conversation:save(path) end
---@param path string  of a line that save wrote; its messages take the place of these
function Conversation:load(path) end
---Takes back the last question and its answer.
---@return string? question  nil where nothing was asked
function Conversation:take_back() end
function Conversation:close() end

---How the options of the set "kv" keep keys and values, as model:engine takes it; nil for the model's dtype.
---@param opt table  parsed options
---@param model? Model  with it `auto` is the type that it comes to
---@return string?
function q.kv_option(opt, model) end

---The model of the options of the set "generation", with its adapter.
---@param opt table  parsed options
---@return Model
---@return table opt  for Model:generate and q.conversation
function q.generation(opt) end


---The k likeliest tokens under a row of logits [vocab] or [t, vocab], by softmax; prints as a table.
---token is the text of the id, of logits that model:logits gave.
---@param k? integer  5
---@param row? integer  from 0; the last
---@return {id: integer, p: number, token: string?}[]
function Tensor:top(k, row) end

-- ---------------------------------------------------------------- data, training

---@class PacketsOptions
---@field tokenizer? Tokenizer
---@field template? string
---@field template_args? string|table
---@field special? "parse"|"text"
---@field documents? "paragraph"|"line"|"file"
---@field cache_dir? string
---@field cache? string
---@field any_tokenizer? boolean

---A dataset to train on: a .qubgpu file, which is checked against the tokenizer, or data that are converted first.
---Data (q.data_files) are converted to cache_dir/data.qubgpu or the path `cache`.
---@param path string
---@param opt PacketsOptions
---@return PacketFile
function q.packets(path, opt) end

---The files of a name: a file, a folder (its data files, sorted), a pattern ('data/*.jsonl'), or several of these.
---Several are a text with commas, or a list.
---@param given string|string[]
---@return string[]
function q.data_files(given) end

---Refuses a path to write to that is read as well, or that holds a file of another kind.
---holds: "qubgpu", "gguf", "imatrix", "ndp", or {field, description} of a JSON object. q.options does this for options
---of kind "output" and "folder".
---@param path string
---@param opt {holds: string|table, reads?: string[], overwrite?: boolean}
function q.check_output(path, opt) end

---The folder of a training run. It is refused if another process writes to it or a stopped run is in it.
---Its clear() moves what an earlier run left to earlier-1/ (overwrite: deletes it).
---@param out string
---@param opt {resume?: boolean, overwrite?: boolean, reads?: string[]}
---@return {clear: fun(self)}
function q.run_folder(out, opt) end

---@class ConvertOptions
---@field tokenizer Tokenizer
---@field overwrite? boolean
---@field template? string
---@field template_args? string|table
---@field system? string|false
---@field turns? "all"|"last"
---@field special? "parse"|"text"  parse (the default): special tokens spelled in texts are tokens, as in transformers
---@field format? string  "auto", or a name of q.ndp.formats()
---@field documents? "file"|"paragraph"|"line"  what one document of plain text is; paragraph: blank lines part them
---@field max_tokens? integer
---@field long? "keep"|"drop"|"split"|"truncate"|"end"  what becomes of records of more than max_tokens
---@field dedupe? boolean
---@field source? string  a name or number for all records
---@field source_field? string  the field that says it
---@field source_names? table<string, integer>
---@field destination? integer
---@field max_bad? number
---@field max_record? number
---@field resume? boolean
---@field checkpoint? number
---@field threads? integer

---@class ConvertCounts
---@field records integer
---@field tokens integer
---@field targets integer
---@field bad integer
---@field seen integer
---@field bad_by_reason table<string, integer>
---@field longer integer
---@field duplicates integer
---@field repaired integer
---@field template "model"|"chatml"|"none"
---@field special "parse"|"text"

---Converts JSONL, JSON arrays, Parquet, CSV, TSV or plain text, also compressed, to packets, on all cores.
---Bad records are told and left out; more than max_bad of them is an error. After Ctrl-C, resume = true goes on. A text
---begins with bos if the tokenizer adds it, and ends with the end of text.
---@param from string|string[]  as q.data_files; "-" is standard input
---@param to string  a dataset that is there is replaced, another file with overwrite = true
---@param opt ConvertOptions
---@return ConvertCounts
function q.convert(from, to, opt) end

---What q.convert returned, as a line for people.
---@param counts table
---@return string
function q.conversion_summary(counts) end

---One record of a dataset in a few lines, decoded, what is trained of it marked.
---@param path string
---@param tokenizer Tokenizer
---@param to? integer  the file descriptor it is for: coloured on a terminal (default 1)
---@return string
function q.conversion_sample(path, tokenizer, to) end

---How conversations become tokens: "chatml", "model" (the tokenizer's own Jinja template) or "auto".
---"auto" is its own template if there is one, else ChatML if the tokenizer has its tokens. Otherwise it takes texts
---only, and prompts with their completions, one after the other.
---@param tokenizer Tokenizer
---@param name? string
---@param system? string|false  of conversations without one; false: none; by default what the model's template says
---@param turns? "all"|"last"  which of the assistant's messages are trained
---@param special? "parse"|"text"  what special tokens spelled in texts become
---@param arguments? string|table  what the model's own template is given beside the messages, as a table or JSON
---@return Template
function q.chat_template(tokenizer, name, system, turns, special, arguments) end

---@class Template
local Template = {}
---@param record table  {messages=} or {text=}; a message with train = false is not trained
---@return integer[] tokens
---@return integer[] mask  1: a target
function Template:encode(record) end
---The same as pieces: text or one token each.
---@param record table
---@return {text?: string, id?: integer, target: boolean, special?: boolean}[]
function Template:pieces(record) end
---The model's own template, compiled on first use.
function Template:model() end
---The tokens of a prompt that the assistant is to answer.
---@param record table  {messages=, tools=}
---@return integer[]
function Template:prompt(record) end

---A learning-rate schedule: a function of the step (from 0).
---@param name "constant"|"linear"|"cosine"|"wsd"
---@param peak number
---@param steps integer
---@param opt? {warmup?: integer, floor?: number}
---@return fun(step: integer): number
function q.schedule(name, peak, steps, opt) end
---The cosine of q.schedule, for q.adamw's lr.
---@param peak number
---@param steps integer
---@param opt? {warmup?: integer, floor?: number}
---@return fun(step: integer): number
function q.cosine(peak, steps, opt) end
---Flat for the first 80 %, then down as 1 - sqrt.
---@param peak number
---@param steps integer
---@param opt? {warmup?: integer, floor?: number}
---@return fun(step: integer): number
function q.wsd(peak, steps, opt) end
---The same rate throughout, after the warm-up.
---@param peak number
---@param steps? integer
---@param opt? {warmup?: integer}
---@return fun(step: integer): number
function q.constant(peak, steps, opt) end

---@class OptimizerOptions
---@field lr? number|fun(step: integer): number  or a function of the step
---@field decay? number
---@field beta1? number
---@field beta2? number
---@field eps? number
---@field rates? table<string, number>
---@field groups? integer[]
---@field allow_unused? boolean

---AdamW over parameters as model:trainable() lists them. Its fields: scripts/qeng/train/adamw.lua.
---The options are those of q.adamw_state, and lr. rates are by name here, for parameters that name theirs.
---@param parameters {name: string, tensor: Tensor, rate?: string}[]|Tensor[]
---@param opt? OptimizerOptions
---@return Optimizer
function q.adamw(parameters, opt) end

---@class Optimizer
---@field lr number  of the last step
---@field last {grad_norm: number, skipped: boolean}  what the last step gave
local Optimizer = {}
---One update and zeroed gradients, at lr or at what q.adamw was given.
---@param opt? {lr?: number, clip?: number, groups?: integer[]}
---@return {grad_norm: number, skipped: boolean}
function Optimizer:step(opt) end
---The rate of the step that is due.
---@return number?
function Optimizer:rate() end
---As of AdamW.
---@param names string[]
---@return table tensors
---@return integer[] steps
function Optimizer:state(names) end
---@param file Weights
---@param names string[]
---@param steps integer[]
function Optimizer:restore(file, names, steps) end

---The objects of a small file, JSONL or a JSON array, all in memory. An error names the file and the record.
---@param path string
---@param fields? string[]  of each object, texts that have to be there
---@param opt? table  of q.json.decode
---@return table[]
function q.records(path, fields, opt) end

---@class Packed
---@field tokens Tensor  [t] i32, as the next three; Model:loss and Model:logprobs take the whole
---@field targets Tensor  -1 where a token is not trained
---@field positions Tensor
---@field cu_q Tensor  boundaries of documents
---@field owner Tensor  [t] i32: the document of each token, from 0
---@field counts integer[]  trained tokens of each document
---@field trained integer
---@field longest integer
local Packed = {}
---@param x Tensor  [t]
---@return Tensor  [documents], the sum over each
function Packed:sums(x) end
---@param x Tensor  [t]
---@return Tensor  [documents], the sum divided by the document's trained tokens
function Packed:means(x) end
---Documents side by side in one row, of which each sees itself alone.
---@param documents {tokens: integer[], mask: integer[]}[]  as Template:encode gives them
---@return Packed
function q.pack(documents) end

---@class Preferences  a list of {chosen = document, rejected = document}
---@field left_out integer  pairs longer than max_tokens
local Preferences = {}
---Pairs of a step (from 0), in an order that is drawn anew for each pass.
---@param step integer
---@param count integer
---@return Packed answers  the chosen and the rejected ones in turns
---@return Packed mixed  each prompt with the chosen answer to the next one
function Preferences:take(step, count) end
---A file of {prompt, chosen, rejected}, JSONL or a JSON array. prompt: a text or messages; chosen and rejected: a text,
---a message, messages from the assistant's on, or a conversation that begins with the prompt. Other fields (system,
---tools, ...) mean what they mean in all records.
---@param path string
---@param tokenizer Tokenizer
---@param opt? {template?: string, system?: string, max_tokens?: integer, seed?: integer}
---@return Preferences
function q.preferences(path, tokenizer, opt) end

---The model's own answers to records, several to each, one group after the other, and what they are worth.
---An advantage is the reward less the group's mean, over its deviation.
---@param model Model
---@param records {prompt: string}[]
---@param reward fun(record: table, text: string, tokenizer: Tokenizer): number
---@param opt {group?: integer, max_tokens?: integer, temperature?: number, seed?: integer}  8, 128, 1, 0
---@return {record: table, text: string, tokens: integer[], mask: integer[], reward: number, advantage: number}[]
function q.group_answers(model, records, reward, opt) end

---An associative store of a model's hidden states, a modern Hopfield network: a cue is answered by one step of it.
---@param model Model
---@param opt? {beta?: number}  how sharply the nearest counts, 16
---@return Hopfield
function q.hopfield(model, opt) end

---@class Hopfield
---@field rows Tensor[]  what is stored, as states
---@field values any[]
local Hopfield = {}
---The mean of a text's last hidden states.
---@param text string
---@return Tensor  [hidden] f32
function Hopfield:state(text) end
---@param text string|Tensor  or its state
---@param value any
function Hopfield:store(text, value) end
---How much each thing stored weighs.
---@param text string|Tensor
---@return Tensor  [stored], of sum 1
function Hopfield:weights(text) end
---The value that weighs most, and its share.
---@param text string|Tensor
---@return any
---@return number
function Hopfield:recall(text) end
---The share of what is stored that its own state with noise added is answered with.
---@param noise number  its length, as a share of the state's
---@param seed? integer
---@return number
function Hopfield:recalled(noise, seed) end

q.edit = {}

---@class Fact
---@field subject string  "Toyota"
---@field prompt string  "{} is a car maker from": {} is where the subject stands
---@field target_new string  what is to follow
---@field target_true string
---@field paraphrases? string[]  other ways to ask it, with {} for the subject
---@field neighborhood? string[]  prompts about others, of whom target_true is true

---The facts of a file, JSONL or a JSON array.
---@param path string
---@return Fact[]
function q.edit.facts(path) end

---@class EditStatisticsOptions
---@field layers integer[]  from 0, in their order
---@field text? string  by default one that the model writes by itself, at temperature 1
---@field tokens? integer  of the text, 4000
---@field contexts? integer  pieces of the text that prompts are read behind, 5
---@field ridge? number  a share of the mean diagonal that is added to it, 0.01
---@field seed? integer

---What the keys of layers, the inputs of their MLPs' last matrices, are like over a text: the sums of k k^T.
---The first use of a layer factors a matrix of ffn x ffn in float64, a second for 1536.
---@param model Model
---@param opt EditStatisticsOptions
---@return EditStatistics
function q.edit.statistics(model, opt) end

---@class EditStatistics
---@field contexts integer[][]  pieces of the text, the first of them empty
---@field count integer  keys
local EditStatistics = {}
---@param layer integer
---@return Tensor sum  [ffn, ffn] of k k^T
---@return integer count
function EditStatistics:sum(layer) end
---(C + ridge)^-1 k for each of a list of keys; C: the sum divided by the count.
---@param layer integer
---@param keys number[][]
---@return number[][]
function EditStatistics:solve(layer, keys) end

---@class EditOptions
---@field layer? integer  q.edit.rome's, from 0; by default the middle one of q.edit.layers
---@field layers? integer[]  q.edit.memit's
---@field statistics? EditStatistics  by default made of the options that it takes, each time
---@field steps? integer  of Adam, that finds what the layer should give, 20
---@field lr? number  of these, in units of that vector's root mean square, 0.3
---@field kl? number  weight of KL(P' || P) of what follows "{subject} is a", 0.0625
---@field decay? number  weight of the change's length, 0.5
---@field clamp? number  the most that it is, in lengths of the vector, 2; with q.edit.memit 0.75
---@field enough? number  the loss at which it is found, 0.05
---@field lambda? number  q.edit.memit's: the weight of the text beside the facts, 200

---Puts a fact into the last matrix of a layer's MLP, by ROME (arXiv 2202.05262).
---It gets a tensor of its own, of the model's dtype; the one before, also a quantized one, stays as it is.
---@param model Model
---@param fact Fact
---@param opt? EditOptions
---@return Edit
function q.edit.rome(model, fact, opt) end
---Puts facts into several layers, by MEMIT (arXiv 2210.07229).
---@param model Model
---@param facts Fact[]
---@param opt? EditOptions
---@return Edit
function q.edit.memit(model, facts, opt) end
---The layers that are edited: those of a list of numbers or texts, or five around a fifth of the way up.
---@param model Model
---@param given? (integer|string)[]
---@return integer[]
function q.edit.layers(model, given) end

---@class Edit
---@field found {loss: number, nll: number, steps: integer}[]  of each fact, where Adam ended
---@field key Tensor?  [ffn], of q.edit.rome
---@field value Tensor?  [hidden]: what the layer gives for the key now
local Edit = {}
---Puts the tensors from before back. Edits of the same weights that came later have to be undone first.
function Edit:undo() end

---What the model says to the prompts of facts, their paraphrases and their neighbours.
---@param model Model
---@param facts Fact[]
---@param tokens? integer  written after each prompt, 64; 0: none
---@return EditScores
function q.edit.scores(model, facts, tokens) end

---@class EditScores
---@field facts table[]  of each fact: prompts, paraphrases, neighborhood, lists of {new =, old =}, each {logprob =
---  (mean over the target's tokens), exact =, greedy =}
---@field texts string[]  what was written
local EditScores = {}
---Appends those of other facts.
---@param other EditScores
function EditScores:add(other) end
---Shares of the answers, nil where nothing was asked, as CounterFact has them.
---efficacy, paraphrase: target_new is likelier than target_true. exact: target_new follows greedily. locality: of
---neighbours target_true is the likelier one. kept: their likeliest token is that of `before`. fluency: bits of the
---n-grams of words.
---@param before? EditScores  of the same facts
---@return {efficacy: number?, exact: number?, paraphrase: number?, locality: number?, kept: number?, fluency: number?}
function EditScores:figures(before) end

q.rewards = {}
---1 where the answer is record.answer, but for space around it, else 0.
---@param record {answer: string}
---@param text string
---@return number
function q.rewards.exact(record, text) end
---1 where the answer is JSON that is valid under record.schema.
---@param record {schema: table}
---@param text string
---@param tokenizer Tokenizer
---@return number
function q.rewards.json(record, text, tokenizer) end
---1 where the answer's Lua code, followed by record.test, returns true in a sandbox.
---@param record {test: string}
---@param text string
---@return number
function q.rewards.code(record, text) end
---The reward of that name, or the function that a Lua file returns.
---@param name string
---@return fun(record: table, text: string, tokenizer: Tokenizer): number
function q.rewards.of(name) end

q.losses = {}
---Mean cross-entropy over targets that are not -1. One that is no class is Error("value").
---@param logits Tensor  [t, vocab]
---@param targets Tensor  [t] i32
---@param opt? {smoothing?: number, z?: number, sum?: boolean}  z: the weight of log(sum(exp))^2
---@return Tensor  [1]
function q.losses.cross_entropy(logits, targets, opt) end
---DPO. All: log probabilities [n] of answers.
---@param chosen Tensor
---@param rejected Tensor
---@param reference_chosen Tensor
---@param reference_rejected Tensor
---@param opt? {beta?: number, smoothing?: number}
---@return Tensor loss  [1]
---@return Tensor margin  [n]
function q.losses.dpo(chosen, rejected, reference_chosen, reference_rejected, opt) end
---ORPO. Both: log probabilities per token, [n].
---@param chosen Tensor
---@param rejected Tensor
---@param opt? {beta?: number}
---@return Tensor loss
---@return Tensor margin
function q.losses.orpo(chosen, rejected, opt) end
---KTO. good: [n], not 0 where the answer is wanted.
---@param policy Tensor
---@param reference Tensor
---@param good Tensor
---@param opt? {beta?: number, kl?: number|Tensor, wanted?: number, unwanted?: number}
---@return Tensor loss
---@return Tensor reward  [n]
function q.losses.kto(policy, reference, good, opt) end
---GRPO: the mean over documents of the mean over their trained tokens. sampled: of the policy that answered;
---reference: log probabilities of another model, from which beta keeps the policy near.
---@param packed Packed
---@param logprobs Tensor  [t], as the next one
---@param sampled Tensor
---@param advantages Tensor  [documents]
---@param opt? {clip?: number, beta?: number, reference?: Tensor}
---@return Tensor  [1]
function q.losses.grpo(packed, logprobs, sampled, advantages, opt) end
---The divergence of [t, vocab] logits from a teacher's, which get no gradient. top: over its k likeliest tokens alone.
---@param logits Tensor
---@param teacher Tensor
---@param opt? {temperature?: number, top?: integer, weight?: Tensor}
---@return Tensor  [1]
function q.losses.distill(logits, teacher, opt) end

q.optim = {}
---q.adamw.
q.optim.adamw = q.adamw
---Optimizers in Lua (scripts/qeng/optim/), each with the face of q.adamw: momentum, Lion, Muon, Adafactor. lr is a
---number or a function of the step; decay is decoupled, of tensors of two dimensions and more. Further options stand
---in each file. The state is f32; a bf16 parameter has an f32 master there.
---@param parameters {name: string, tensor: Tensor, rate?: string}[]|Tensor[]
---@param opt? table
---@return Optimizer
function q.optim.sgd(parameters, opt) end
---@param parameters {name: string, tensor: Tensor, rate?: string}[]|Tensor[]
---@param opt? table
---@return Optimizer
function q.optim.lion(parameters, opt) end
---@param parameters {name: string, tensor: Tensor, rate?: string}[]|Tensor[]
---@param opt? table
---@return Optimizer
function q.optim.muon(parameters, opt) end
---@param parameters {name: string, tensor: Tensor, rate?: string}[]|Tensor[]
---@param opt? table
---@return Optimizer
function q.optim.adafactor(parameters, opt) end
---An optimizer of one's own, which is then q.optim[name]. rule(p) sees one parameter: p.w (f32), p.g (f32, clipped),
---p.lr and p.t (tensors: rate, and step from 1), p.name, p.opt; p:state(name, shape) is a tensor that stays, p:move(d)
---does w = w (1 - lr decay) - lr d. The step is captured once: rules decide by shapes and names, not by values.
---@param name string
---@param defaults table  its options beside lr, decay, rates and allow_unused
---@param rule fun(p: table)
---@return fun(parameters: table, opt?: table): Optimizer
function q.optim.define(name, defaults, rule) end

---@class TrainingOptions
---@field model Model
---@field data PacketFile
---@field out string
---@field seed? integer
---@field row_tokens? integer
---@field rows? integer
---@field accumulate? integer
---@field steps? integer
---@field epochs? number
---@field eval_share? number
---@field eval_data? PacketFile
---@field eval_every? integer
---@field patience? integer
---@field save_every? integer
---@field keep? integer
---@field resume? boolean
---@field sources? integer[]
---@field drop? number
---@field long? "auto"|"split"|"truncate"|"drop"
---@field weights? table|function
---@field tensorboard? boolean

---@class RunOptions: TrainingOptions
---@field optimizer Optimizer
---@field overwrite? boolean
---@field leaves? string[]  what the page writes into the folder
---@field bits? Inertia|Phases
---@field settings? table
---@field title? string

---A training run around a loop of your own. Its fields: scripts/qeng/train/run.lua.
---It has the folder, batches, checkpoints, evaluation, metrics.jsonl, report.html and Ctrl-C. recipes/own_loop.lua is
---such a loop.
---@param opt RunOptions
---@return Run
function q.run(opt) end

---@class LoopOptions
---@field out string
---@field steps integer
---@field optimizer Optimizer
---@field parameters table[]  {name=, tensor=}, what checkpoints keep: all that is trained, and what else steps change
---@field model? Model  its other weights have to be the same in a resumed run
---@field settings? table
---@field seed? integer
---@field save_every? integer
---@field keep? integer
---@field resume? boolean
---@field overwrite? boolean
---@field leaves? string[]  what the recipe writes into the folder

---The steps of a recipe that makes its batches itself: folder, checkpoints, metrics.jsonl, progress and Ctrl-C.
---What a step computes may depend on its number, parameters and optimizer only. recipes/grpo.lua is such a recipe.
---@param opt LoopOptions
---@return Loop
function q.loop(opt) end

---@class Loop
---@field done integer  steps that are done
---@field total integer
local Loop = {}

---for step in run:steps(): the number of steps done, from 0 or where the run was stopped.
---@return fun(): integer
function Loop:steps() end

---Ends a step: figures for metrics.jsonl, and a text for the progress line.
---@param figures table
---@param text? string
function Loop:log(figures, text) end

---Goes on after Ctrl-C at the prompt.
function Loop:continue() end

---Ends the loop before its last step.
function Loop:finish() end

---@class Run
---@field total integer  steps of the whole run
---@field plan table  of the batches, Batches:plan()
local Run = {}
---For loops: for step, batch in run:steps(n) runs the steps that are left of n; step is how many are done.
---model:loss takes batch. With accumulate > 1, for part in batch:parts() gives what it takes. The loop ends with the
---last step or on Ctrl-C, and finishes the run. At the prompt Ctrl-C gives the prompt back in the middle of the loop.
---@param n? integer
---@return fun(): integer?, table?
function Run:steps(n) end
---Ends a step: metrics, progress, and evaluation and checkpoint when due. loss: a number or a tensor; lr, the norm and
---whether the update was skipped are the optimizer's; further fields go to metrics.jsonl.
---@param figures {loss: number|Tensor, lr?: number}
function Run:log(figures) end
---Goes on with a run that Ctrl-C interrupted at the prompt, with the bits of one that was not.
---Also with one of q.train, which is global there as `run`. Run:finish() ends it instead.
function Run:continue() end
---Goes between backward and the optimizer's step, of a run with bits.
function Run:observe() end
---Ends the run, of a page that leaves its loop before; otherwise steps() does it. Returns what q.train returns.
---@return table
function Run:finish() end

---@class TrainOptions: TrainingOptions
---@field lr? number
---@field schedule? string
---@field warmup? integer
---@field decay? number
---@field clip? number
---@field on_eval? fun(step: integer, tell: fun(text: string))
---@field eager? boolean
---@field allow_unused? boolean
---@field on_step? function
---@field curves? string[]

---The ordinary fine-tuning loop. Its fields: scripts/qeng/train/init.lua.
---It has evaluation, checkpoints, metrics.jsonl, report.html and Ctrl-C. Data without a trained token are refused. A
---step without one computes and changes nothing, has no loss, and is told and counted. resume: all settings, the base
---weights and the data have to be those of the stopped run, except the list in scripts/qeng/train/resume.lua.
---@param opt TrainOptions
---@return {steps: integer, eval_before: number?, eval_loss: number?, metrics: table[], report: table, pass: table?}
---  pass: what one micro-batch takes (Program:stats)
function q.train(opt) end

---@class PlanStep
---@field seconds number
---@field flops_f32 number
---@field flops_bf16 number
---@field bytes number
---@field moved number
---@field transfer number?
---@field tokens integer
---@field exchanged number?  bytes that a rank sends to the others

---@class PlanOptions
---@field model string|table  folder, GGUF file, config.json or its keys, name on the hub, or a shape ("7b")
---@field mode? "lora"|"full"|"onebit"|"inference"
---@field dtype? dtype
---@field stored? dtype
---@field rank? integer
---@field targets? string[]
---@field dropout? number
---@field levels? integer
---@field active? integer
---@field keep? boolean
---@field row_tokens? integer
---@field rows? integer
---@field accumulate? integer
---@field ranks? integer
---@field zero? 0|1|2|3
---@field recompute? boolean
---@field mtp? boolean  with a head that drafts tokens: trained beside, or its guesses in inference
---@field eval? boolean
---@field context? integer
---@field batch? integer
---@field kv? string
---@field device_budget? number
---@field host_budget? number
---@field machine? string  one that is not here: "gb10", "h200" and others (scripts/qeng/plan/machines.lua)
---@field bandwidth? number
---@field flops? number
---@field link? number
---@field examples? number  training: of a dataset, for the time that they take
---@field example_tokens? number
---@field epochs? number

---@class Plan
---@field accounts table<string, number>
---@field total number
---@field least number
---@field least_host number
---@field process number
---@field fits boolean
---@field placed {device: number, host: number, file: number, streamed: number, resident: integer, keep: number}
---@field units table[]
---@field devices table[]
---@field step PlanStep
---@field parameters number
---@field trained number
---@field sentence function

---What training or inference will need and take, before anything is loaded; prints as a table.
---Its fields: scripts/qeng/plan/init.lua.
---@param opt PlanOptions
---@return Plan
function q.plan(opt) end

-- ---------------------------------------------------------------- looking at numbers

---@class PlotOptions
---@field kind? "line"|"hist"|"heat"  by default heat for a matrix, else line
---@field bins? integer  of a histogram
---@field width? integer  characters in the terminal
---@field height? integer  lines there
---@field title? string  by default dtype, shape and label
---@field out? string  NAME.html or NAME.svg, instead of the terminal

---Draws a line (of a matrix, one a row), a histogram or a heat map, in the terminal or to a file.
---A long line shows the least and the greatest of each stretch, a large heat map means. Values that are not finite are
---left out and counted.
---@param what Tensor|number[]|table<string, Tensor|number[]>  by name: a line each
---@param opt? PlotOptions
function q.plot(what, opt) end

-- ---------------------------------------------------------------- one-bit training

---@class OnebitOptions
---@field rule? "frozen"|"counter"|"bop"|"latent"|"grid"|"dense"
---@field seed? integer
---@field dtype? dtype
---@field levels? integer  of rule grid
---@field std? number
---@field head_std? number

---A model from the keys of a config.json with one-bit linear layers.
---Their weights are 1 or -1, drawn at random, and each row has a trained scale.
---@param values table
---@param opt? OnebitOptions
---@return Model
function q.onebit.random(values, opt) end
---Makes a model with one-bit layers (loaded, or random) learn by a rule: scripts/qeng/onebit/init.lua lists them.
---@param model Model
---@param rule string
---@param opt {seed?: integer, levels?: integer}
---@return Model
function q.onebit.learn(model, rule, opt) end
---Unpacks the q1_0 or tq2_0 weights of a model from a GGUF file, with a scale for each row.
---They become one_bit weights, which can learn, or ternary ones.
---@param model Model
---@return Model
function q.onebit.unpack(model) end
---The number of weights in its linear layers.
---@param model Model
---@return integer
function q.onebit.weights(model) end
---Rules against each other at equal tokens: scripts/qeng/onebit/compare.lua.
---@param opt table
---@return table[]
function q.onebit.compare(opt) end
---A trained model becomes one of one-bit weights, with the options of recipes/onebit_convert.lua.
---@param opt table
---@return Model
---@return table  as of q.train
function q.onebit.convert(opt) end
---What q.inertia takes of the options of the set "onebit".
---@param opt table
---@return table
function q.onebit.inertia_options(opt) end
---Pretrains a one-bit model with those options.
---@param opt table
---@param learn fun(model: Model): Inertia|Phases
---@param title string
---@return Model
---@return table  as of q.train
function q.onebit.pretrain(opt, learn, title) end

---@class InertiaOptions
---@field levels? 1|"strict"|3|7|15|255
---@field q? number
---@field k? number
---@field friction? number
---@field target? number
---@field schedule? "cosine"|"constant"
---@field bop? boolean
---@field gamma? number
---@field tau? number
---@field rise? number
---@field parts? table

---The optimizer of one-bit weights: counters that are fed in the backward pass, at every micro-batch.
---scripts/qeng/onebit/inertia.lua says what decides.
---@param model Model
---@param opt? InertiaOptions
---@return Inertia
function q.inertia(model, opt) end

---@class PhasesOptions
---@field active? integer  the most weights that learn at once
---@field count? integer  or the number of parts
---@field steps integer
---@field by? "layer"|"rows"|"gradient"
---@field keep? boolean
---@field inertia? table

---Lets a part of the weights learn at a time; stands where q.inertia does.
---@param model Model
---@param opt PhasesOptions
---@return Phases
function q.phases(model, opt) end

---@class Inertia
local Inertia = {}
---Sets the threshold of the micro-batches that follow.  progress: 0 at the start, 1 at the end
---@param progress number
function Inertia:begin(progress) end
---What they did: flips, pulses, their rates, and a warning where the rate of flips is out of range.
---@param feeds? integer  how many micro-batches (1)
---@return {flips: integer, pulses: integer, flip_rate: number, pulse_rate: number, layers: table[], warning: string?}
function Inertia:finish(feeds) end
---How many counters stand at each level, from 0 on; of bytes in 16 bins.
---@return integer[]
function Inertia:histogram() end
---What a checkpoint keeps: {{name, tensor}...}; state() gives the rest.
---@return table
function Inertia:tensors() end
---@return table
function Inertia:state() end
---The settings that a resumed run must share with the stopped one, by name.
---@return table<string, string|number|boolean>
function Inertia:settings() end
---@param state table
---@param file Weights
function Inertia:restore(state, file) end
---The part of state() that is no tensor: steered thresholds, and what warnings are judged by.
---@param state table
function Inertia:restore_numbers(state) end
---Ends the learning and frees the counters.
function Inertia:free() end

---@class Phases
local Phases = {}
---As Inertia:begin. True if other weights learn from now on: a captured program is then out of date.
---@param progress number
---@param step integer  from 0
---@return boolean
function Phases:begin(progress, step) end
---Between backward and the floats' step: by = "gradient" looks at the gradients of row scales.
function Phases:observe() end
---@param feeds? integer
---@return table
function Phases:finish(feeds) end
---@return integer[]
function Phases:histogram() end
---@return table
function Phases:tensors() end
---@return table
function Phases:state() end
---As Inertia:settings.
---@return table<string, string|number|boolean>
function Phases:settings() end
---@param state table
---@param file Weights
function Phases:restore(state, file) end
function Phases:free() end

return q
