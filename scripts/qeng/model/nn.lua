-- The parts that decoder models are made of. A model file (scripts/qeng/models) says which parts, with which config
-- keys. `p` is a position in the model's tree of parameters: p:at("self_attn") goes down, p:weight(name, shape) takes a
-- tensor from the checkpoint (or draws it) and registers it under its Hugging Face name.

local adapters = require "qeng.model.lora"
local hooks = require "qeng.model.hooks"
local kv_pages = require "qeng.model.kv_pages"
local part_names = require "qeng.model.names"
local q = require "qeng.core"

local nn = {}

-- ---------------------------------------------------------------- parameters

local Params = {}
Params.__index = Params

-- source(name, shape, plus_one) returns a tensor; plus_one: it belongs to a norm that adds one to its weight. Every
-- parameter and linear layer is registered in `model`. elsewhere: peers have what is made at this position: its layers
-- are made, as their states count, but have no weights and are not called.
function nn.params(model, source, prefix, elsewhere)
  return setmetatable({ model = model, source = source, prefix = prefix or "", elsewhere = elsewhere }, Params)
end

function Params:at(name, elsewhere)
  return nn.params(self.model, self.source, self.prefix .. name .. ".", elsewhere or self.elsewhere)
end

-- Stands where a peer has the weight.
local function on_a_peer(name)
  return setmetatable({}, { __index = function()
    q.error("value", name .. ": a peer has this weight, and only generation (model:engine) reaches it")
  end })
end

function Params:weight(name, shape, plus_one)
  local full = self.prefix .. name
  local tensor = self.source(full, shape, plus_one, self.elsewhere)
  if self.elsewhere then return on_a_peer(full) end
  tensor:label(full)
  table.insert(self.model.parameters, { name = full, tensor = tensor })
  return tensor
end

-- Registers what a new mixer keeps of a sequence (infer/sequences.lua). Returns its place among the model's states.
function Params:state(kind)
  kind.elsewhere = self.elsewhere
  table.insert(self.model.states, kind)
  return #self.model.states
end

-- Registers a new linear layer, which gets adapters by its name.
function Params:register(layer)
  if not self.elsewhere then table.insert(self.model.linears, layer) end
  return layer
end

-- Registers a place where hooks may read or change what passes (model/hooks.lua). Returns the function through which it
-- passes; without a name the place is that of this position, "layers.3".
function Params:place(name)
  local model, prefix = self.model, part_names.plain(self.model, self.prefix)
  local position = prefix:gsub("^model%.", ""):gsub("%.$", "")
  local place = not name and position or position == "" and name or position .. "." .. name
  if not self.elsewhere then table.insert(model.places, place) end
  return function(x)
    if not model.hooks then return x end
    return hooks.pass(model, place, x)
  end
end

-- The rotations of a parameter's input and of rows looked up in it: {block =, signs =} each, or nil.
function Params:rotation(name, columns)
  if not self.model.rotations then return nil end
  return self.model.rotations(self.prefix .. name, columns)
end

-- ---------------------------------------------------------------- layers

local Linear = {}
Linear.__index = Linear

-- y plus the adapter's product with x.
local function adapted(y, x, lora)
  return lora and y + q.linear(q.linear(q.dropout(x, lora.dropout or 0), lora.a), lora.b) * lora.scale or y
end

-- The layer under DoRA (arXiv 2402.09353): the rows of w + scale b a get the lengths of the adapter's magnitude.
local function decomposed(self, x)
  local lora = self.lora
  local scale = q.adapters.dora_scale(self.weight, lora, lora.magnitude, lora.squares)
  return q.scale_columns(q.linear(x, self.weight, { lora = lora, fp8 = self.fp8 }), scale, self.bias)
end

-- y = x w^T (+ bias) (+ the adapter, once model:lora set self.lora). A weight that is stored rotated reads x rotated.
-- The adapter reads x as it is: adapters do not depend on how a model's weights are stored.
function Linear:__call(x)
  local input = self.rotation and q.hadamard(x, self.rotation) or x
  if self.model.observe then self.model.observe(self.name .. ".weight", input) end
  -- A weight without a scale has one number for each row beside it (onebit/init.lua).
  if self.row_scale and not self.whole then
    return adapted(q.scale_columns(q.linear(input, self.weight), self.row_scale, self.bias), x, self.lora)
  end
  if self.lora and self.lora.magnitude then return decomposed(self, x) end
  if self.rotation then
    return adapted(q.linear(input, self.weight, { bias = self.bias, fp8 = self.fp8 }), x, self.lora)
  end
  return q.linear(x, self.weight, { bias = self.bias, lora = self.lora, fp8 = self.fp8 })
end

-- Whether q.linear alone is all that a layer does.
local function plain(layer)
  return not layer.rotation and not layer.row_scale and not (layer.lora and layer.lora.magnitude)
end

-- The outputs of such layers that read the same x.
local function together(x, layers)
  local list = {}
  for i, layer in ipairs(layers) do
    if layer.model and layer.model.observe then layer.model.observe(layer.name .. ".weight", x) end
    list[i] = { weight = layer.weight, bias = layer.bias, lora = layer.lora, fp8 = layer.fp8 }
  end
  return unpack(q.linears(x, list))
end

-- The outputs of up to three layers that read the same x. One fused layer gives an output for each of its parts. In
-- inference they are one operation (infer/paged.lua), whatever the batch around them.
local function project(seq, x, first, second, third)
  if seq.inference then return seq.inference:project(x, { first, second, third }) end
  if first.parts then return first:split(x) end
  if second and plain(first) and plain(second) and (not third or plain(third)) then
    return together(x, { first, second, third })
  end
  return first(x), second and second(x), third and third(x)
end
nn.project = project

-- Rows first .. first + count of a weight or of an adapter's b. No gradient passes a view of rows, so rows of what is
-- trained are looked up, which copies them.
local function rows_of(tensor, first, count, index)
  if not tensor:requires_grad() then return tensor:rows(first, count) end
  return q.embedding(tensor, index:rows(first, count), tensor:dtype())
end

-- The parts of a fused layer as layers of their own, under an adapter of the whole, or nil. rows: rows_of, or
-- Tensor.rows if no gradient is wanted.
function Linear:fused(adapter, rows)
  local list, first = {}, 0
  for i, count in ipairs(self.parts) do
    list[i] = {
      weight = rows(self.weight, first, count, self.index), rotation = self.rotation, fp8 = self.fp8,
      bias = self.bias and self.bias:slice(1, first, first + count),
      row_scale = self.row_scale and self.row_scale:rows(first, count),
      lora = adapter and {
        a = adapter.a, b = rows(adapter.b, first, count, self.index),
        scale = adapter.scale, dropout = adapter.dropout,
      },
    }
    first = first + count
  end
  return list
end

-- The outputs of the parts of a fused layer for x. Each part draws its own dropout.
function Linear:split(x)
  local input = self.rotation and q.hadamard(x, self.rotation) or x
  if self.model.observe then self.model.observe(self.name .. ".weight", input) end
  if self.row_scale then
    q.error("unsupported", ("%s: several layers in one that have a scale for each row are only generated from")
      :format(self.name))
  end
  local parts, results = self:fused(self.lora, rows_of), {}
  if not self.rotation then return together(x, parts) end
  for i, part in ipairs(parts) do
    results[i] = adapted(q.linear(input, part.weight, { bias = part.bias, fp8 = part.fp8 }), x, part.lora)
  end
  return unpack(results)
end

-- parts: the numbers of rows of several layers that are stored as one. Such a layer is called through `project`, which
-- gives an output for each.
function Params:linear(name, out, inputs, bias, parts)
  local p = self:at(name)
  local index = parts and not self.elsewhere and {}
  for i = 1, index and out or 0 do index[i] = i - 1 end
  return self:register(setmetatable({
    model = self.model,
    name = self.prefix .. name,
    role = name,
    weight = p:weight("weight", { out, inputs }),
    bias = bias and p:weight("bias", { out }) or nil,
    rotation = p:rotation("weight", inputs),
    parts = parts,
    index = index and q.keep(q.tensor(index, "i32")),
  }, Linear))
end

local Norm = {}
Norm.__index = Norm
function Norm:__call(x) return q.rmsnorm(x, self.weight, self.eps, self.plus_one) end

-- x + branch and its norm. Without a branch, x and its norm. Under f32_residual x is f32, whatever the weights are.
function Norm:of_sum(x, branch)
  local dtype = self.weight:dtype()
  if self.f32_residual and dtype ~= "f32" then
    x = x:to "f32"
    if branch then x = x + branch end
    return x, self(x:to(dtype))
  end
  if not branch then return x, self(x) end
  return q.add_rmsnorm(x, branch, self.weight, self.eps, self.plus_one)
end

function Params:norm(name, dim, eps, plus_one)
  local weight = self:at(name):weight("weight", { dim }, plus_one)
  return setmetatable({ weight = weight, eps = eps, plus_one = plus_one or false }, Norm)
end

local LayerNorm = {}
LayerNorm.__index = LayerNorm
function LayerNorm:__call(x) return q.layer_norm(x, self.weight, self.bias, self.eps) end

function LayerNorm:of_sum(x, branch)
  if branch then x = x + branch end
  return x, self(x)
end

function Params:layer_norm(name, dim, eps)
  local p = self:at(name)
  return setmetatable({ weight = p:weight("weight", { dim }), bias = p:weight("bias", { dim }), eps = eps }, LayerNorm)
end

-- The norm of a model with settings c. c.layer_norm: it takes the mean off and has a bias. c.f32_residual: the residual
-- stream is f32, whatever the model's dtype.
local function norm_of(p, name, c)
  if c.layer_norm then return p:layer_norm(name, c.hidden, c.eps) end
  local norm = p:norm(name, c.hidden, c.eps, c.plus_one)
  norm.f32_residual = c.f32_residual
  return norm
end

-- ---------------------------------------------------------------- attention and MLP

-- A block's mixer and MLP are functions of this form: make(p, c) takes parameters at p and returns f(x, seq) -> y
-- [tokens, hidden].

-- Grouped-query attention with rotary positions. c: hidden, heads, kv_heads, head_dim, eps, plus_one (norms add one to
-- their weights), attention_scale (1 / sqrt(head_dim)), attention_softcap (of the scores; none). opt: qkv_bias, o_bias,
-- qk_norm (before RoPE; per head, or "whole": over all heads), window (0: none), local_rope (seq.rope_local turns its
-- heads), no_rope (heads are not turned), value_dim (of the values' heads: head_dim), sinks (the parameter "sinks"
-- [heads] takes part in the softmax), gated (q_proj has a gate behind each head of the query, whose sigmoid the head's
-- output is multiplied by), at ("self_attn"), out ("o_proj"), fused (the name of one layer that is q_proj, k_proj and
-- v_proj).
function nn.attention(opt)
  return function(block, c)
    local p = block:at(opt.at or "self_attn")
    local wide, narrow, value_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim, opt.value_dim or c.head_dim
    local values = c.kv_heads * value_dim
    local q_proj, k_proj, v_proj
    if opt.fused then
      q_proj = p:linear(opt.fused, wide + narrow + values, c.hidden, opt.qkv_bias, { wide, narrow, values })
    else
      q_proj = p:linear("q_proj", opt.gated and 2 * wide or wide, c.hidden, opt.qkv_bias)
      k_proj = p:linear("k_proj", narrow, c.hidden, opt.qkv_bias)
      v_proj = p:linear("v_proj", values, c.hidden, opt.qkv_bias)
    end
    local o_proj = p:linear(opt.out or "o_proj", c.hidden, c.heads * value_dim, opt.o_bias)
    local whole = opt.qk_norm == "whole"
    local q_norm = opt.qk_norm and p:norm("q_norm", whole and wide or c.head_dim, c.eps, c.plus_one)
    local k_norm = opt.qk_norm and p:norm("k_norm", whole and narrow or c.head_dim, c.eps, c.plus_one)
    local sinks = opt.sinks and p:at("sinks"):weight("weight", { c.heads })
    local state = block:state(kv_pages.kind(c.kv_heads, c.head_dim, value_dim, {
      layer = tonumber(block.prefix:match "layers%.(%d+)"), whole = not sinks and (c.attention_softcap or 0) == 0,
      rope = not opt.no_rope and (opt.local_rope and "rope_local" or "rope") or nil,
    }))
    local passed_query, passed_key = block:place "attn.query", block:place "attn.key"
    local passed_value, passed = block:place "attn.value", block:place "attn"

    return function(x, seq)
      local tokens = x:shape()[1]
      local query, key, value = project(seq, x, q_proj, k_proj, v_proj)
      local gate
      if opt.gated then query, gate = query:reshape({ tokens, c.heads, 2 * c.head_dim }):split(c.head_dim, 3) end
      if whole then query, key = q_norm(query), k_norm(key) end
      query = query:reshape { tokens, c.heads, c.head_dim }
      key, value = key:reshape { tokens, c.kv_heads, c.head_dim }, value:reshape { tokens, c.kv_heads, value_dim }
      if q_norm and not whole then query, key = q_norm(query), k_norm(key) end
      if not opt.no_rope then
        query, key = q.rope(query, key, seq.positions, opt.local_rope and seq.rope_local or seq.rope)
      end
      query, key, value = passed_query(query), passed_key(key), passed_value(value)
      local how = {
        window = opt.window or 0, scale = c.attention_scale, softcap = c.attention_softcap,
        sinks = sinks and sinks:to "f32",
      }
      local mixed = seq.inference and seq.inference.states[state]:attend(seq.inference.step, query, key, value, how)
        or q.attention(query, key, value, seq, how)
      if gate then mixed = (mixed * gate:sigmoid()):compute() end
      return passed((project(seq, mixed:reshape { tokens, c.heads * value_dim }, o_proj)))
    end
  end
end

-- c: hidden, ffn, gelu (the gate is GELU's, not SiLU's). opt: bias, at ("mlp", also the name of its place for hooks),
-- fused (the name of one layer that is gate_proj and up_proj).
function nn.swiglu_mlp(opt)
  return function(block, c)
    local at = opt.at or "mlp"
    local p = block:at(at)
    local gate_proj = opt.fused and p:linear(opt.fused, 2 * c.ffn, c.hidden, false, { c.ffn, c.ffn })
      or p:linear("gate_proj", c.ffn, c.hidden, opt.bias)
    local up_proj = not opt.fused and p:linear("up_proj", c.ffn, c.hidden, opt.bias) or nil
    local down_proj = p:linear("down_proj", c.hidden, c.ffn, opt.bias)
    local passed = block:place(at)
    return function(x, seq)
      local gate, up = project(seq, x, gate_proj, up_proj)
      return passed((project(seq, q.swiglu(gate, up, { gelu = c.gelu or false }), down_proj)))
    end
  end
end

-- ---------------------------------------------------------------- the block

-- The norms of a block are functions of this form: norms(p, c, place) gives the norm of a place, or nil. The places
-- "mixer" and "mlp" are before these. "mixer_branch" and "mlp_branch" are after them, before the sum.

local function norms_named(of_place)
  return function(p, c, place) return of_place[place] and norm_of(p, of_place[place], c) end
end
nn.norms_named = norms_named
nn.pre_norms = norms_named { mixer = "input_layernorm", mlp = "post_attention_layernorm" }
nn.branch_norms = norms_named { mixer_branch = "post_attention_layernorm", mlp_branch = "post_feedforward_layernorm" }
nn.sandwich_norms = norms_named {
  mixer = "input_layernorm", mixer_branch = "post_attention_layernorm", mlp = "pre_feedforward_layernorm",
  mlp_branch = "post_feedforward_layernorm",
}

-- Stands where there is no norm: x + branch as it is.
local no_norm = setmetatable({}, { __call = function(_, x) return x end })
function no_norm:of_sum(x, branch)
  local sum = branch and x + branch or x
  return sum, sum
end

-- x + mixer(norm(x)), then x + mlp(norm(x)). opt: mixer, mlp (swiglu_mlp), norms (pre_norms), functions of the forms
-- above. The norm that reads the residual stream x next also adds the branch to it. So block(x, branch, seq) takes the
-- last block's branch, nil in the first, and gives that sum and its own branch. A model file may have any other
-- function of that form for a block. c.residual_scale: a factor of both branches.
function nn.block(p, c, opt)
  local norms = opt.norms or nn.pre_norms
  local mixer_norm = norms(p, c, "mixer") or no_norm
  local mixer = opt.mixer(p, c)
  local mixer_post = norms(p, c, "mixer_branch") or no_norm
  local mlp_norm = norms(p, c, "mlp") or no_norm
  local mlp = (opt.mlp or nn.swiglu_mlp {})(p, c)
  local mlp_post = norms(p, c, "mlp_branch") or no_norm
  local function scaled(branch) return c.residual_scale and branch * c.residual_scale or branch end

  return function(x, branch, seq)
    local y
    x, y = mixer_norm:of_sum(x, branch)
    x, y = mlp_norm:of_sum(x, scaled(mixer_post(mixer(y, seq))))
    return x, scaled(mlp_post(mlp(y, seq)))
  end
end

-- ---------------------------------------------------------------- the decoder around the blocks

-- A positive number rounded to bf16, if that is the dtype.
local function rounded(value, dtype)
  if dtype ~= "bf16" then return value end
  local fraction, exponent = math.frexp(value)
  return math.ldexp(math.floor(fraction * 256 + 0.5) / 256, exponent)
end

-- Logits as a model with settings c has them: what its head gives, bent where c.logit_softcap says so (Gemma 2). Every
-- place that makes logits calls this; q.lm_head_loss and q.token_nll are given the number.
function nn.softcap(logits, c)
  local cap = c.logit_softcap
  return cap and ((logits / cap):tanh() * cap):compute() or logits
end

-- fn with the adapters and hooks that the model has here: backward calls it again, when it may have others.
local function as_here(model, fn)
  local here, set = adapters.current(model), model.hooks
  return function(...)
    local others = model.hooks
    model.hooks = set
    local results = { pcall(adapters.with, model, here, fn, ...) }
    if model.hooks == set then model.hooks = others end  -- a hook may change them itself
    if not results[1] then error(results[2], 0) end
    return unpack(results, 2)
  end
end

-- Embedding, c.layers blocks made by new_block(p, index), final norm and head. Returns forward(tokens, seq) -> hidden,
-- and what the final norm read.
-- c.embed_scale: a factor of the embedding's rows, rounded to the model's dtype. c.logit_scale: one of the logits; what
-- the head reads gets it. c.learned_positions: a learned row for each of c.max_position positions is added to the
-- embedding's. model.neftune: the strength of noise on the embedded tokens while training. seq: positions, cu_q, cu_k,
-- rope, rope_local; or positions, the ropes and inference (infer/paged.lua). With model.recompute each block is one
-- checkpoint. It then adds its branch itself, so that one tensor is kept for a block and not two.
-- model.range: {first =, count =, ends =} where peers have the layers outside of it, and unless `ends` what is before
-- the first and behind the last (model/range.lua). Then model.pieces is the way: enter(tokens, seq) -> x, advance(x,
-- seq) -> x, branch of the own layers, leave(x, branch) -> hidden, residual.
function nn.decoder(model, source, c, new_block)
  local range = model.range or { first = 0, count = c.layers, ends = true }
  local p = nn.params(model, source, "", not range.ends)
  local names = c.names or part_names.most
  model.names = c.names
  local body = p:at(names.body)
  model.embed = body:weight(names.embed .. ".weight", { c.vocab, c.hidden })
  local places = c.learned_positions and body:weight(names.positions .. ".weight", { c.max_position, c.hidden })
  local blocks, passed, trunk = {}, { embed = body:place "embed" }, nn.params(model, source, body.prefix)
  for i = 0, c.layers - 1 do
    local at = trunk:at(names.layers .. "." .. i, i < range.first or i >= range.first + range.count)
    local block, place = new_block(at, i), at:place()
    if not at.elsewhere then table.insert(blocks, { "layers." .. i, i + 1, block, place }) end
  end
  local norm = norm_of(body, names.norm, c)
  passed.norm = body:place "norm"
  -- For a head that drafts tokens (model/mtp.lua), whose layer is of the kind of this one.
  model.new_block, model.body, model.draft_layer = new_block, body.prefix, c.draft_layer
  if c.draft_layer == nil then model.draft_layer = c.layers - 1 end
  model.head = c.tied and model.embed or p:weight("lm_head.weight", { c.vocab, c.hidden })
  local of_head, of_rows = body:rotation(names.embed .. ".weight", c.hidden)
  if not c.tied then
    of_head = p:rotation("lm_head.weight", c.hidden)
  elseif (not of_head) ~= (not of_rows) then
    q.error("format", "the embedding, which is the head too, is listed as rotated for one of the two only; expected it "
      .. "among the metadata's weight_names and inverse_weight_names")
  end

  local function embed(tokens, positions, documents)
    local rows = q.embedding(model.embed, tokens, model.dtype)
    if of_rows then rows = q.hadamard(rows, { block = of_rows.block, signs = of_rows.signs, inverse = true }) end
    if places then rows = rows + q.embedding(places, positions, model.dtype) end
    if c.embed_scale then rows = rows * rounded(c.embed_scale, model.dtype) end
    return model.neftune and documents and q.embedding_noise(rows, documents, model.neftune) or rows
  end

  model.embed_rows = embed

  -- model.stream (model/stream.lua): unit 0 is the embedding, i a block, the last one norm and head.
  local function enter(tokens, seq)
    local weights = model.stream
    if weights then weights:use(0) end
    local x = passed.embed(q.block("embed", embed, tokens, seq.positions, seq.cu_q))
    if weights then weights:mark() end
    return x
  end

  local function advance(x, seq)
    local weights, branch = model.stream, nil
    local run = model.recompute and as_here(model, function(block, input) return block(input, nil, seq) end)
    for _, each in ipairs(blocks) do
      local name, i, block, pass = unpack(each)
      if weights and not model.recompute then weights:use(i) end
      if model.recompute then
        x = q.checkpoint(name, function(input)
          if weights then weights:use(i) end
          local residual, addend = run(block, input)
          if weights then weights:mark(i) end
          return residual + addend
        end, x)
      elseif seq.inference then  -- only the block's results are needed; the next one gets its memory, still in caches
        local before, addend = x, branch
        x, branch = q.scope(q.block, name, block, x, branch, seq)
        if not rawequal(before, x) then before:free() end
        if addend then addend:free() end
      else
        x, branch = q.block(name, block, x, branch, seq)
        if weights then weights:mark(i) end  -- its gradient begins here
      end
      if model.hooks and model.hooks[name] then x, branch = pass(branch and x + branch or x), nil end
    end
    return x, branch
  end

  local function leave(x, branch)
    if model.stream then model.stream:use(c.layers + 1) end
    local residual, hidden = q.block("norm", norm.of_sum, norm, x, branch)
    hidden = passed.norm(hidden)
    if c.logit_scale then hidden = hidden * c.logit_scale end
    return of_head and q.hadamard(hidden, of_head) or hidden, residual
  end

  model.pieces = { enter = enter, advance = advance, leave = leave }
  return function(tokens, seq)
    if model.range then
      q.error("unsupported", "peers have layers of this model, and only generation (model:engine) reaches them")
    end
    return leave(advance(enter(tokens, seq), seq))
  end
end

return nn
