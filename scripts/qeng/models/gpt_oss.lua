-- gpt-oss: attention with a sink in each head, over a window in every other layer; all MLPs are of experts with
-- biases, whose gates are clamped. Its checkpoints have gate and up of all experts as one tensor [experts, in, 2 ffn],
-- in turns, or the same numbers in MXFP4, which engine/formats/mxfp4_read.cpp takes apart.

local experts = require "qeng.model.experts"
local nn = require "qeng.model.nn"
local q = require "qeng.core"

local GptOss = { hf = "GptOssForCausalLM", model_type = "gpt_oss", lora = { "q_proj", "k_proj", "v_proj", "o_proj" } }

-- transformers' rotation where a file says none.
local yarn = {
  rope_type = "yarn", factor = 32, beta_fast = 32, beta_slow = 1, truncate = false,
  original_max_position_embeddings = 4096,
}

function GptOss.config(file)
  local newer = file.values.rope_parameters
  if (newer == nil or newer == q.json.null) and not file:rope_entries "rope_scaling" then
    file.values.rope_scaling = yarn
  end
  local c = file:decoder(150000, { kv_heads = 8, max_position = 131072, eps = 1e-5 })
  c.bias = file:get("attention_bias", true)
  c.local_layers = file:local_layers(c.layers, 2)
  c.window = file.values.sliding_window == q.json.null and 0 or file:size("sliding_window", 128)
  c.experts = experts.config(file, { count = 128, used = 4, ffn = c.ffn, normalised = true })
  file:must("experts_per_token", c.experts.used)  -- the same again, in the first checkpoints
  file:must("initial_context_length", (c.rope.scaling or {}).original_max_position_embeddings)
  c.alpha, c.limit = file:positive("swiglu_alpha", 1.702), file:positive("swiglu_limit", 7)
  return c
end

-- (up + 1) gate sigmoid(alpha gate), gate at most the limit, up within it.
local function activate(gate, up, c)
  gate, up = gate:minimum(c.limit), up:clamp(-c.limit, c.limit)
  return ((up + 1) * gate * (gate * c.alpha):sigmoid()):compute()
end

function GptOss.build(model, source, c)
  local mlp = experts.mlp { router = "router", bias = true, activate = activate }
  return nn.decoder(model, source, c, function(p, index)
    local near = c.local_layers[index + 1]
    return nn.block(p, c, {
      mixer = nn.attention { qkv_bias = c.bias, o_bias = c.bias, sinks = true, window = near and c.window or 0 },
      mlp = mlp,
    })
  end)
end

-- ---------------------------------------------------------------- the checkpoint's tensors

-- Of experts: the name before the part, "up_proj", and "weight" or "bias".
local function part_of(name) return name:match "^(.*%.experts%.)(%l+_proj)%.(%l+)$" end

-- What the checkpoint calls the tensor, and the shape that it has there.
local function stored(name, shape)
  local stem, part, kind = part_of(name)
  local both = part ~= "down_proj"
  local own = stem .. (both and "gate_up_proj" or part) .. (kind == "bias" and "_bias" or "")
  if kind == "bias" then return own, { shape[1], both and 2 * shape[2] or shape[2] } end
  return own, { shape[1], shape[3], both and 2 * shape[2] or shape[2] }
end

function GptOss.source(source, file)
  local packed = file.values.quantization_config ~= nil and file.values.quantization_config ~= q.json.null
  return function(name, shape, ...)
    local stem, part, kind = part_of(name)
    if not stem then return source((name:gsub("(self_attn%.sinks)%.weight$", "%1")), shape, ...) end
    if packed and kind == "weight" then return source(stem .. part, shape, ...) end
    local own, size = stored(name, shape)
    local whole = source(own, size, ...)
    return whole and q.no_grad(q.scope, function()
      if part ~= "down_proj" then whole = whole:slice(-1, part == "up_proj" and 1 or 0, nil, 2) end
      if kind == "weight" then whole = whole:transpose(2, 3) end
      return q.keep(whole:clone():label "weights")
    end)
  end
end

-- {{name, tensor}...} of a parameter as the checkpoint has it: gate with up, up nothing. plain(name): a parameter's
-- tensor, decoded.
function GptOss.stored(name, tensor, plain)
  local stem, part, kind = part_of(name)
  if name:find "self_attn%.sinks%.weight$" then return { { name:gsub("%.weight$", ""), tensor } } end
  if not stem then return { { name, tensor } } end
  if part == "up_proj" then return {} end
  return q.no_grad(function()
    local whole, shape = plain(name), tensor:shape()
    if part == "gate_proj" then
      shape[2] = 2 * shape[2]
      whole = q.stack({ whole, plain(stem .. "up_proj." .. kind) }, 3):reshape(shape)
    end
    return { { (stored(name, tensor:shape())), kind == "weight" and whole:transpose(2, 3):clone() or whole } }
  end)
end

-- ---------------------------------------------------------------- GGUF

GptOss.gguf = {
  architecture = "gpt-oss", experts = true, window = "attention.sliding_window", untruncated = true,
  names = {
    ["self_attn.sinks"] = "attn_sinks", ["post_attention_layernorm"] = "post_attention_norm",
    ["mlp.router"] = "ffn_gate_inp",
  },
  read = function(r, values)
    values.intermediate_size = r:size "expert_feed_forward_length"
    values.num_local_experts, values.attention_bias = r.experts, r:has "blk.0.attn_q.bias"
    values.sliding_window = r.window
    if values.rope_scaling then
      values.rope_scaling.truncate = false
    else
      values.rope_parameters = { rope_type = "default", rope_theta = values.rope_theta }
    end
  end,
  write = function(add, c)
    local function must(what, ok)
      if not ok then q.error("unsupported", "gguf: gpt-oss has no words for " .. what) end
    end
    must(("swiglu_alpha = %g, swiglu_limit = %g"):format(c.alpha, c.limit), c.alpha == 1.702 and c.limit == 7)
    must("attention_bias = false", c.bias)
    for i, near in ipairs(c.local_layers) do
      must("layers of which not every second has a window", near == (i % 2 == 1))
    end
    add("expert_feed_forward_length", "u32", c.experts.ffn)
    if (c.rope.scaling or {}).truncate == false then
      return "llama.cpp rounds where YaRN begins and ends, which the model does not: its logits differ a little"
    end
  end,
}

return GptOss
