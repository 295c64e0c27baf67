-- Qwen3-Next: as Qwen3.5 with a mixture of experts, but the delta net's projections are two fused layers, whose rows
-- stand by key heads: q, k, v, z of the first, then of the second; b and a of the first, then of the second. Its GGUF
-- files have the value heads in the checkpoint's order, and q, k and v apart from z.

local experts = require "qeng.model.experts"
local moe = require "qeng.models.qwen3_5_moe"
local nn = require "qeng.model.nn"
local q = require "qeng.core"
local qwen3_5 = require "qeng.models.qwen3_5"
local qwen3_moe = require "qeng.models.qwen3_moe"

local Qwen3Next = {
  hf = "Qwen3NextForCausalLM", model_type = "qwen3_next", exact = qwen3_5.exact,
  initial = qwen3_5.initial,
  lora = { "q_proj", "k_proj", "v_proj", "o_proj", "in_proj_qkvz", "out_proj" },
  peft_leaves = { "%.shared_expert%.", "%.shared_expert_gate$" },
}

function Qwen3Next.config(file)
  local c = qwen3_5.settings(file, { kv_heads = 2, ffn = 5632, grouped = true })
  c.experts = moe.experts(file, { count = 512, used = 10, normalised = file:get("norm_topk_prob", true) })
  c.mixed = qwen3_moe.mixed_layers(file, c.layers)
  if c.layout.apart then c.parts_of = { in_proj_qkv = "in_proj_qkvz", in_proj_z = "in_proj_qkvz" } end
  return c
end

-- ---------------------------------------------------------------- the fused projections

-- The widths of q, k, v and z of a key head, and of b and a.
local function widths(d)
  local many = d.value_heads / d.key_heads
  return { d.key_dim, d.key_dim, many * d.value_dim, many * d.value_dim }, { many, many }
end

-- Of x [tokens, key heads * the sum of sizes] each part [tokens, key heads * size].
local function by_part(x, d, sizes)
  local rows, parts = x:shape()[1], { x:reshape({ x:shape()[1], d.key_heads, -1 }):split(sizes, 3) }
  for i, part in ipairs(parts) do parts[i] = part:reshape { rows, d.key_heads * sizes[i] } end
  return unpack(parts)
end

-- As qwen3_5's `apart`. In a model of a GGUF file q, k and v have a layer of their own, and z another.
local function fused(p, c)
  local d = c.delta
  local layers
  if c.layout.apart then
    layers = { p:linear("in_proj_qkv", d.channels, c.hidden), p:linear("in_proj_z", d.values, c.hidden) }
  else
    layers = { p:linear("in_proj_qkvz", d.channels + d.values, c.hidden) }
  end
  local ba = p:linear("in_proj_ba", 2 * d.value_heads, c.hidden)
  local of_key, of_step = widths(d)
  return function(seq, u)
    local mixed, z = nn.project(seq, u, layers[1], layers[2])
    local b, a = by_part(nn.project(seq, u, ba), d, of_step)
    if not z then
      local query, key, value
      query, key, value, z = by_part(mixed, d, of_key)
      mixed = q.concat({ query, key, value }, 2)
    end
    return mixed, z, b, a
  end
end

function Qwen3Next.build(model, source, c)
  local mixture, plain = experts.mlp {}, nn.swiglu_mlp {}
  return qwen3_5.decoder(model, source, c, {
    delta_net = qwen3_5.delta_net { projections = fused },
    mlp = function(index) return c.mixed[index + 1] and mixture or plain end,
  })
end

-- The rows of a fused layer's weight [rows, columns], or of an adapter's b, as those of q, k and v, and those of z.
local function apart_rows(x, c)
  local d = c.delta
  local sizes, columns = widths(d), x:shape()[2]
  local parts = { x:reshape({ d.key_heads, -1, columns }):split(sizes, 2) }
  for i, part in ipairs(parts) do parts[i] = part:reshape { d.key_heads * sizes[i], columns } end
  return q.concat({ parts[1], parts[2], parts[3] }), parts[4]
end

-- And back.
local function fused_rows(mixed, z, c)
  local d = c.delta
  local sizes, columns = widths(d), z:shape()[2]
  local parts = { mixed:split { d.keys, d.keys, d.values } }
  parts[4] = z
  for i, part in ipairs(parts) do parts[i] = part:reshape { d.key_heads, sizes[i], columns } end
  return q.concat(parts, 2):reshape { d.channels + d.values, columns }
end

-- {{name, tensor}...} of a parameter as checkpoints have it; nil if that is as the model has it.
function Qwen3Next.stored(name, _, plain, model)
  local stem, part = name:match "^(.*%.linear_attn%.)(in_proj_[%a]+)%.weight$"
  if not model.config.layout.apart or part ~= "in_proj_qkv" and part ~= "in_proj_z" then return nil end
  if part == "in_proj_z" then return {} end
  local whole = q.no_grad(fused_rows, plain(name), plain(stem .. "in_proj_z.weight"), model.config)
  return { { stem .. "in_proj_qkvz.weight", whole } }
end

-- ---------------------------------------------------------------- GGUF

local gguf = moe.joined(moe.gguf, { architecture = "qwen3next", no_ffn = false })
gguf.names = moe.joined(moe.gguf.names, {
  ["linear_attn.in_proj_ba"] = "ssm_ba", ["linear_attn.in_proj_qkvz"] = "ssm_in",
})
gguf.apart = {
  ["linear_attn.in_proj_qkvz"] = {
    words = { "attn_qkv", "attn_gate" }, rows = apart_rows, join = fused_rows,
    counts = function(c) return { c.delta.channels, c.delta.values } end,
  },
}

-- Older files have the fused layer as it is.
function gguf.layout(r) return { apart = not r:any "ssm_in.weight" } end

function gguf.read(r, values)
  qwen3_5.gguf.read_delta(r, values)
  moe.read_experts(r, values)
  values.norm_topk_prob = true
end

-- llama.cpp gives every layer experts, and always normalises their scores.
function gguf.write(add, c)
  if not c.experts.normalised then
    q.error("unsupported", "gguf: qwen3next has no words for norm_topk_prob = false")
  end
  for i, mixed in ipairs(c.mixed) do
    if not mixed then
      q.error("unsupported", ("gguf: qwen3next has no words for a layer without experts, as %d is here"):format(i - 1))
    end
  end
  moe.write_experts(add, c)
  return qwen3_5.gguf.write_delta(add, c)
end

Qwen3Next.gguf = gguf

return Qwen3Next
