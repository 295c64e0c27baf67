-- Qwen3.5 (dense), which 3.6 and 3.8 are too: three of four layers mix tokens by a gated delta net (Yang et al. 2024,
-- arXiv 2412.06464), the others by attention whose output is gated. A value head has a state S [key_dim, value_dim]:
--   S <- exp(g) S,   S <- S + k (beta (v - S^T k))^T,   o = S^T q
-- q, k and v come from a projection and a convolution over the last tokens; g <= 0 and beta from small projections.
-- What other models of this family share with it is in the functions of this file (models/qwen3_5_moe.lua,
-- models/qwen3_next.lua).

local conv_pages = require "qeng.model.conv_pages"
local delta_pages = require "qeng.model.delta_pages"
local nn = require "qeng.model.nn"
local q = require "qeng.core"
local value_heads = require "qeng.model.value_heads"

local unlike_both = "sparse attention, hyper-connections and a table of n-grams"
local Qwen3_5 = {
  hf = "Qwen3_5ForCausalLM", model_type = "qwen3_5_text",
  exact = { "%.A_log$", "%.dt_bias$" },  -- A_log is f32 in released checkpoints of bf16
  lora = {
    "q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkv", "in_proj_z", "out_proj", "gate_proj", "up_proj", "down_proj",
  },
  refuses = {
    { "Qwen4ExpForConditionalGeneration", unlike_both }, { "Qwen4ExpForCausalLM", unlike_both },
    { "qwen4_exp", unlike_both }, { "qwen4_exp_text", unlike_both }, { "qwen4exp", unlike_both },
  },
}

-- ---------------------------------------------------------------- settings

-- Which layers have attention: those that layer_types says, or every so many-th.
local function attending(file, layers)
  local every, kinds, list = file:size("full_attention_interval", 4), file:layer_types(layers), {}
  for i = 1, layers do
    local kind = kinds and kinds[i] or i % every == 0 and "full_attention" or "linear_attention"
    if kind ~= "full_attention" and kind ~= "linear_attention" then
      q.error("unsupported", ("%s: layer_types[%d] is %s; full_attention and linear_attention are supported")
        :format(file.path, i - 1, kind))
    end
    list[i] = kind == "full_attention"
  end
  return list
end

-- c.delta, the gated delta net: heads, their sizes, the width of the convolution, the activation of the output's gate.
local function delta_of(file)
  local d = {
    key_heads = file:size("linear_num_key_heads", 16), value_heads = file:size("linear_num_value_heads", 32),
    key_dim = file:size("linear_key_head_dim", 128), value_dim = file:size("linear_value_head_dim", 128),
    width = file:size("linear_conv_kernel_dim", 4), gate = file:get("output_gate_type", "silu"),
  }
  if d.gate == "swish" then d.gate = "silu" end
  if d.gate ~= "silu" then
    q.error("unsupported", ("%s: output_gate_type is %s; only silu (swish) is supported: transformers computes that "
      .. "whatever the key says, other programs what it says"):format(file.path, d.gate))
  end
  if d.value_heads % d.key_heads ~= 0 or d.width < 2 or d.width > 8 then
    q.error("format", ("%s: linear_num_value_heads %d of linear_num_key_heads %d, linear_conv_kernel_dim %d; expected "
      .. "a multiple of the key heads, and a kernel of 2 to 8"):format(file.path, d.value_heads, d.key_heads, d.width))
  end
  for key, dim in pairs { linear_key_head_dim = d.key_dim, linear_value_head_dim = d.value_dim } do
    if dim % 16 ~= 0 or dim > 256 then
      q.error("unsupported", ("%s: %s is %d; multiples of 16 up to 256 are supported"):format(file.path, key, dim))
    end
  end
  d.keys, d.values = d.key_heads * d.key_dim, d.value_heads * d.value_dim
  d.channels = 2 * d.keys + d.values
  return d
end

-- c.value_heads (model/value_heads.lua). layout: see Qwen3_5.gguf.layout.
local function order_of(d, is_gguf, layout)
  if d.value_heads == d.key_heads then return nil end
  local row, head = { 0, 1 }, { 0, d.value_dim }
  return {
    groups = d.key_heads, repeats = d.value_heads / d.key_heads,
    rows = {
      ["linear_attn.in_proj_qkv"] = { 2 * d.keys, d.value_dim }, ["linear_attn.conv1d"] = { 2 * d.keys, d.value_dim },
      ["linear_attn.in_proj_z"] = head, ["linear_attn.in_proj_b"] = row, ["linear_attn.in_proj_a"] = row,
      ["linear_attn.A_log"] = row, ["linear_attn.dt_bias"] = row,
    },
    columns = { ["linear_attn.out_proj"] = d.value_dim },
    tiled = { rows = is_gguf, columns = is_gguf and not layout.grouped_out },
  }
end

-- The settings of this family. opt: kv_heads (transformers' default), ffn (as for Config:decoder), grouped (GGUF has
-- value heads in the checkpoint's order).
function Qwen3_5.settings(file, opt)
  local c = file:decoder(1e4, {
    kv_heads = opt.kv_heads, head_dim = 256, max_position = 32768, partial_rotary = 0.25, ffn = opt.ffn,
  })
  c.plus_one, c.bias = true, file:get("attention_bias", false)
  file:must("attn_output_gate", true)
  file:must("mamba_ssm_dtype", "float32")
  file:get("mtp_num_hidden_layers", 0)  -- what drafts tokens is kept, and not run
  file:get("mtp_use_dedicated_embeddings", false)
  c.attends, c.delta = attending(file, c.layers), delta_of(file)
  c.draft_layer = false
  for i, attends in ipairs(c.attends) do
    if attends then c.draft_layer = i - 1 end
  end
  c.layout = file.layout or {}
  c.value_heads = not opt.grouped and order_of(c.delta, file.is_gguf or false, c.layout) or nil
  local rope = file.values.rope_parameters
  c.mrope = type(rope) == "table" and type(rope.mrope_section) == "table" and rope.mrope_section or nil
  return c
end

-- A list that has to be empty: transformers does not read it here.
function Qwen3_5.no_list(file, key)
  file.used[key] = true
  local list = file.values[key]
  if type(list) == "table" and #list > 0 then
    q.error("unsupported", ("%s: %s lists %d layers; this architecture has one kind of MLP"):format(file.path, key,
      #list))
  end
end

function Qwen3_5.config(file)
  local c = Qwen3_5.settings(file, { kv_heads = 4 })
  Qwen3_5.no_list(file, "mlp_only_layers")
  return c
end

-- A new model's parameters that decide how long heads remember: dt_bias is 1, and A is spread over 0.01 to 16 in an
-- order of its own, where transformers draws it.
function Qwen3_5.initial(name, shape)
  local part, values = name:match "[%w_]+$", {}
  if part ~= "A_log" and part ~= "dt_bias" then return nil end
  for head = 1, shape[1] do
    values[head] = part == "dt_bias" and 1 or math.log(0.01 + 15.99 * (head * 0.6180339887 % 1))
  end
  return values
end

-- ---------------------------------------------------------------- the gated delta net

-- The layers before the convolution, as a function of seq and tokens that gives q | k | v, z, b and a.
local function apart(p, c)
  local d = c.delta
  local qkv, z = p:linear("in_proj_qkv", d.channels, c.hidden), p:linear("in_proj_z", d.values, c.hidden)
  local b, a = p:linear("in_proj_b", d.value_heads, c.hidden), p:linear("in_proj_a", d.value_heads, c.hidden)
  return function(seq, u)
    local mixed, gate = nn.project(seq, u, qkv, z)
    return mixed, gate, nn.project(seq, u, b, a)
  end
end

local back = 8  -- by so many tokens a convolution goes back within a page: the most guesses of a step

-- The mixer. opt.projections: of the form of `apart`.
function Qwen3_5.delta_net(opt)
  return function(block, c)
    local p, d, heads = block:at "linear_attn", c.delta, c.value_heads
    local projected = (opt.projections or apart)(p, c)
    local taps = p:weight("conv1d.weight", { d.channels, 1, d.width })
    local dt_bias, a_log = p:weight("dt_bias", { d.value_heads }), p:weight("A_log", { d.value_heads })
    local norm = p:weight("norm.weight", { d.value_dim })
    local out_proj = p:linear("out_proj", c.hidden, d.values)
    local convolved = block:state(conv_pages.kind(d.channels, d.width, back))
    local advanced = block:state(delta_pages.kind(d))
    local passed = block:place "mixer"
    local rule = { key_heads = d.key_heads, key_dim = d.key_dim, value_heads = d.value_heads }
    local grouped = heads and heads.tiled.rows and function(x, width)
      return value_heads.columns(x, heads, width, false)
    end

    return function(u, seq)
      local tokens, w = u:shape()[1], taps:reshape { d.channels, d.width }
      if w:dtype() == "f16" then w = w:to "f32" end
      local mixed, z, b, a = projected(seq, u)
      local beta = b:to("f32"):sigmoid()
      local decay = -(a:to "f32" + dt_bias):softplus() * a_log:to("f32"):exp()
      local states, step = seq.inference and seq.inference.states, seq.inference and seq.inference.step
      mixed = (states and states[convolved]:convolve(step, mixed, w) or q.causal_conv(mixed, w, nil, seq.cu_q)):silu()
      if grouped then
        local keys, values = mixed:split({ 2 * d.keys, d.values }, 2)
        mixed = q.concat({ keys, grouped(values, d.value_dim) }, 2)
        beta, decay = grouped(beta, 1), grouped(decay, 1)
        if not heads.tiled.columns then z = grouped(z, d.value_dim) end
      end
      local o = states and states[advanced]:advance(step, mixed, decay, beta)
        or q.gated_delta(mixed, decay, beta, seq.cu_q, rule)
      if grouped and heads.tiled.columns then o = value_heads.columns(o, heads, d.value_dim, true) end
      o = q.rmsnorm(o:reshape { tokens, d.value_heads, d.value_dim }, norm, c.eps):reshape { tokens, d.values }
      return passed((nn.project(seq, (o * z[d.gate](z)):compute(), out_proj)))
    end
  end
end

-- The decoder. opt: delta_net, and mlp(index), the MLP of a layer from 0; both by default those of Qwen3.5.
function Qwen3_5.decoder(model, source, c, opt)
  local attention = nn.attention { qkv_bias = c.bias, o_bias = c.bias, qk_norm = true, gated = true }
  local delta_net = opt.delta_net or Qwen3_5.delta_net {}
  return nn.decoder(model, source, c, function(p, index)
    return nn.block(p, c, { mixer = c.attends[index + 1] and attention or delta_net, mlp = opt.mlp and opt.mlp(index) })
  end)
end

function Qwen3_5.build(model, source, c) return Qwen3_5.decoder(model, source, c, {}) end

-- {{name, tensor}...} of a parameter as checkpoints have it; nil if that is as the model has it.
function Qwen3_5.stored(name, _, plain, model)
  if not value_heads.moves(model.config, name, false) then return nil end
  return { { name, value_heads.weight_to(model.config, name, plain(name), false) } }
end

-- ---------------------------------------------------------------- GGUF

local gguf = {
  architecture = "qwen35", partial_rotary = true, plus_one = true, nextn = true,
  names = {
    ["post_attention_layernorm"] = "post_attention_norm", ["linear_attn.in_proj_qkv"] = "attn_qkv",
    ["linear_attn.in_proj_z"] = "attn_gate", ["linear_attn.in_proj_a"] = "ssm_alpha",
    ["linear_attn.in_proj_b"] = "ssm_beta", ["linear_attn.out_proj"] = "ssm_out",
  },
  tensors = {
    ["linear_attn.conv1d.weight"] = {
      "ssm_conv1d.weight", shape = function(shape) return { shape[1], shape[3] } end,
    },
    ["linear_attn.dt_bias"] = { "ssm_dt.bias" }, ["linear_attn.norm.weight"] = { "ssm_norm.weight" },
    ["linear_attn.A_log"] = {
      "ssm_a", read = function(a) return (-a):log() end, write = function(log) return -log:exp() end,
    },
  },
}

-- PrismML's rotated files have the columns of ssm_out in the checkpoint's order.
function gguf.layout(r) return { grouped_out = r.file:get "prism.hadamard.gdn_v_grouped" == true } end

-- Which layers have attention: 'attention.recurrent_layers', a list of the others, or every so many-th.
local function attention_of(r, layers)
  local every = r:get("full_attention_interval", "number", 4)
  r:check_size("full_attention_interval", every, 2 ^ 31)
  local listed, kinds = r.file:get(r.architecture .. ".attention.recurrent_layers"), {}
  r.used["attention.recurrent_layers"] = true
  if listed ~= nil and (type(listed) ~= "table" or #listed < layers) then
    q.error("format", ("%s: entry %s.attention.recurrent_layers is no list of %d layers"):format(r.path,
      r.architecture, layers))
  end
  for i = 1, layers do
    local recurrent = i % every ~= 0
    if listed then recurrent = listed[i] == true or listed[i] == 1 end
    kinds[i] = recurrent and "linear_attention" or "full_attention"
  end
  return q.json.array(kinds)
end

-- The entries of the delta net and of the layers. Blocks behind the last layer draft tokens.
function gguf.read_delta(r, values)
  local drafts = r:get("nextn_predict_layers", "number", 0)
  values.num_hidden_layers = r:check_size("block_count less nextn_predict_layers", values.num_hidden_layers - drafts,
    2 ^ 31)
  values.layer_types = attention_of(r, values.num_hidden_layers)
  values.partial_rotary_factor = values.partial_rotary_factor or 1
  local heads, inner = r:size "ssm.time_step_rank", r:size "ssm.inner_size"
  values.linear_num_value_heads, values.linear_value_head_dim = heads, inner / heads
  values.linear_num_key_heads, values.linear_key_head_dim = r:size "ssm.group_count", r:size "ssm.state_size"
  values.linear_conv_kernel_dim = r:size "ssm.conv_kernel"
end

function gguf.read(r, values)
  gguf.read_delta(r, values)
  local rope = { rope_type = "default" }
  for key, value in pairs(values.rope_scaling or {}) do rope[key] = value end
  rope.rope_theta, rope.partial_rotary_factor = values.rope_theta, values.partial_rotary_factor
  local sections = r:get("rope.dimension_sections", "table")
  rope.mrope_section, rope.mrope_interleaved = q.json.array { unpack(sections, 1, 3) }, true
  values.rope_parameters, values.rope_scaling = rope, nil
  values.rope_theta, values.partial_rotary_factor = nil, nil
end

-- The period of layers with attention; nil if there is none.
local function period_of(attends)
  for every = 1, #attends + 1 do
    local fits = true
    for i, each in ipairs(attends) do fits = fits and each == (i % every == 0) end
    if fits then return every end
  end
end

function gguf.write_delta(add, c)
  local d = c.delta
  local function must(what, ok) if not ok then q.error("unsupported", "gguf: no words for " .. what) end end
  must("attention_bias", not c.bias)
  must(("heads of %d keys and %d values"):format(d.key_dim, d.value_dim), d.key_dim == d.value_dim)
  add("ssm.conv_kernel", "u32", d.width)
  add("ssm.inner_size", "u32", d.values)
  add("ssm.state_size", "u32", d.key_dim)
  add("ssm.time_step_rank", "u32", d.value_heads)
  add("ssm.group_count", "u32", d.key_heads)
  local every, recurrent = period_of(c.attends), {}
  for i, attends in ipairs(c.attends) do recurrent[i] = not attends end
  if every then
    add("full_attention_interval", "u32", every)
  else
    add("attention.recurrent_layers", "[bool]", recurrent)
  end
  if c.eps ~= 1e-6 then
    return ("llama.cpp takes the epsilon of norms, %g, for that of the lengths of keys too, which is 1e-6: its logits "
      .. "differ a little"):format(c.eps)
  end
end

-- Whether llama.cpp turns each of `pairs` by a position of text. It turns pair i by section i % 3, as far as that goes;
-- what no section has gets position 0.
local function covers(sections, pairs_)
  local s = { tonumber(sections[1]) or 0, tonumber(sections[2]) or 0, tonumber(sections[3]) or 0 }
  local period = s[1] + s[2] + s[3]
  for i = 0, math.min(pairs_, period) - 1 do
    if i >= 3 * s[i % 3 + 1] then return false end
  end
  return period > 0
end

-- How positions of images are laid out says nothing of text, but llama.cpp wants it.
function gguf.write(add, c)
  local n, s = c.rotary / 2, c.mrope or c.head_dim >= 32 and { 11, 11, 10 } or {}
  if not covers(s, n) then s = { math.floor((n + 2) / 3), math.floor((n + 1) / 3), math.floor(n / 3) } end
  add("rope.dimension_sections", "[i32]", { s[1], s[2] or 0, s[3] or 0, 0 })
  return gguf.write_delta(add, c)
end

Qwen3_5.gguf = gguf

Qwen3_5.texts = { qwen3_5_text = { 248320, 4096, 12288, 32, 16, 4 } }

return Qwen3_5
