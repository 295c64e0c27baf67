-- SmolLM3: a Llama in which every fourth layer does not turn its heads (NoPE).

local llama = require "qeng.models.llama"
local nn = require "qeng.model.nn"
local q = require "qeng.core"

local SmolLM3 = { hf = "SmolLM3ForCausalLM", model_type = "smollm3" }

-- Whether each layer turns its heads. no_rope_layers has 1 for those that do, whatever its name; without it they are
-- all but every so many-th.
local function turned(file, layers)
  local every, list, turns = file:size("no_rope_layer_interval", 4), file.values.no_rope_layers, {}
  file.used.no_rope_layers = true
  if list == q.json.null then list = nil end
  if list and (type(list) ~= "table" or #list ~= layers) then
    q.error("format", ("%s: key no_rope_layers: expected a list of %d numbers, one a layer"):format(file.path, layers))
  end
  for i = 1, layers do
    local one = list and list[i] or i % every ~= 0 and 1 or 0
    if one ~= 0 and one ~= 1 then
      q.error("format", ("%s: no_rope_layers[%d] is %s, expected 0 or 1"):format(file.path, i - 1, tostring(one)))
    end
    turns[i] = one == 1
  end
  return turns
end

function SmolLM3.config(file)
  local c = file:decoder(2e6, { kv_heads = 4, max_position = 32768, tied = true })
  c.attention_bias = file:get("attention_bias", false)
  c.mlp_bias = file:get("mlp_bias", false)
  c.turned = turned(file, c.layers)
  file:must("use_sliding_window", false)
  file:window(c.layers)
  return c
end

function SmolLM3.build(model, source, c)
  local bias, mlp = c.attention_bias, nn.swiglu_mlp { bias = c.mlp_bias }
  return nn.decoder(model, source, c, function(p, index)
    local mixer = nn.attention { qkv_bias = bias, o_bias = bias, no_rope = not c.turned[index + 1] }
    return nn.block(p, c, { mixer = mixer, mlp = mlp })
  end)
end

SmolLM3.gguf = {
  architecture = "smollm3", llama_rows = llama.gguf.llama_rows,
  write = function(_, c)
    if c.attention_bias or c.mlp_bias then q.error("unsupported", "gguf: smollm3 has no words for biases") end
    for i, turns in ipairs(c.turned) do
      if turns ~= (i % 4 ~= 0) then
        q.error("unsupported", ("gguf: smollm3 turns the heads of all layers but every fourth; here %d is other")
          :format(i - 1))
      end
    end
  end,
}

return SmolLM3
