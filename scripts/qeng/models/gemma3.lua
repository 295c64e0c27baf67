-- Gemma 3 (text): a Gemma with RMSNorm on each head of q and k, and after attention and MLP. Five layers in six look
-- back over a window only, and turn their heads by frequencies of their own.

local gemma = require "qeng.models.gemma"
local nn = require "qeng.model.nn"
local q = require "qeng.core"

local Gemma3 = { hf = "Gemma3ForCausalLM", model_type = "gemma3_text" }

function Gemma3.config(file)
  local c = gemma.decoder(file, 1e6, { kv_heads = 4, max_position = 131072, kinds = true })
  c.rope_local = file:rope(1e4, "sliding_attention", "rope_local_base_freq")
  file.used.rope_local_base_freq = true
  c.local_layers = file:local_layers(c.layers, 6)
  c.window = file.values.sliding_window == q.json.null and 0 or file:size("sliding_window", 4096)
  c.query_pre_attn_scalar = file:size("query_pre_attn_scalar", 256)
  c.attention_scale = 1 / math.sqrt(c.query_pre_attn_scalar)
  file:without("attn_logit_softcapping", "attention logit soft-capping, which transformers does not apply in Gemma 3")
  c.logit_softcap = gemma.cap(file, "final_logit_softcapping")
  return c
end

function Gemma3.build(model, source, c)
  return nn.decoder(model, source, c, function(p, index)
    local near = c.local_layers[index + 1]
    return nn.block(p, c, {
      mixer = nn.attention {
        qkv_bias = c.bias, o_bias = c.bias, qk_norm = true, window = near and c.window or 0, local_rope = near,
      },
      norms = nn.sandwich_norms,
    })
  end)
end

-- ---------------------------------------------------------------- GGUF

local gguf = {
  architecture = "gemma3", plus_one = true, window = "attention.sliding_window", names = gemma.sandwich_names,
}

local largest = 62

-- llama.cpp derives the pattern of windows, the frequencies of layers with a window, and the scale of attention from
-- the architecture. Newer files say the first two.
function gguf.read(r, values)
  gemma.gguf.read(r, values)
  local cap = r:get("final_logit_softcapping", "number", 0)
  values.final_logit_softcapping = cap ~= 0 and cap or nil
  r:must("rope.scaling.attn_factor", 1)
  local layers, types, window = values.num_hidden_layers, {}, r.window
  local pattern = r.file:get "gemma3.attention.sliding_window_pattern" or 6
  r.used["attention.sliding_window_pattern"] = true
  local listed = type(pattern) == "table"
  if listed and #pattern ~= layers or not listed and (type(pattern) ~= "number" or pattern < 1 or pattern % 1 ~= 0) then
    q.error("format", ("%s: entry gemma3.attention.sliding_window_pattern %s, expected a positive integer, or one "
      .. "entry for each of %d layers"):format(r.path, listed and ("has %d entries"):format(#pattern)
      or "is " .. tostring(pattern), layers))
  end
  for i = 1, layers do
    local near
    if listed then near = pattern[i] == true or pattern[i] == 1 else near = i % pattern ~= 0 end
    types[i] = window > 0 and near and "sliding_attention" or "full_attention"
  end
  values.layer_types = q.json.array(types)
  values.sliding_window = window > 0 and window or nil
  values.rope_local_base_freq = r:get("rope.freq_base_swa", "number", 10000)
  values.query_pre_attn_scalar = gemma.query_scalar(largest, layers, values.hidden_size, values.num_attention_heads,
    values.head_dim)
end

-- The period of layers with a window in llama.cpp's sense: all but every so many-th. nil if there is none.
local function pattern_of(near)
  for pattern = 1, #near + 1 do
    local fits = true
    for i, each in ipairs(near) do fits = fits and each == (i % pattern ~= 0) end
    if fits then return pattern end
  end
end

function gguf.write(add, c)
  local function must(what, ok) if not ok then q.error("unsupported", "gguf: gemma3 has no words for " .. what) end end
  must("query_pre_attn_scalar = " .. c.query_pre_attn_scalar,
    c.query_pre_attn_scalar == gemma.query_scalar(largest, c.layers, c.hidden, c.heads, c.head_dim))
  must("biases of attention", not c.bias)
  must("scaled rope frequencies of the local layers", not c.rope_local.scaling)
  for _, near in ipairs(c.local_layers) do
    if near then must("layers of local frequencies without a window", c.window > 0) end
  end
  add("rope.freq_base_swa", "f32", c.rope_local.theta)
  if c.logit_softcap then add("final_logit_softcapping", "f32", c.logit_softcap) end
  local pattern = pattern_of(c.local_layers)
  if pattern then return add("attention.sliding_window_pattern", "u32", pattern) end
  add("attention.sliding_window_pattern", "[bool]", c.local_layers)
  return "which layers have a window follows no period, which llama.cpp's key cannot say in this architecture: qeng "
    .. "alone reads the list"
end

Gemma3.gguf = gguf

Gemma3.texts = { gemma3_text = { 262208, 2304, 9216, 26, 8, 4 } }

return Gemma3
