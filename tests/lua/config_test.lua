-- config.json: a value of the wrong kind is refused by its key and file, and so is one larger than any model.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local config = require "qeng.model.config"

local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused

local function with(changes, architecture)
  local all = {
    architectures = { architecture or "Qwen2ForCausalLM" }, hidden_size = 32, intermediate_size = 64,
    num_hidden_layers = 2, num_attention_heads = 2,
    num_key_value_heads = 2, vocab_size = 40, max_position_embeddings = 64, rms_norm_eps = 1e-5, hidden_act = "silu",
  }
  for key, value in pairs(changes) do all[key] = value end
  return all
end

-- The rotation's settings.
for _, key in ipairs { "rope_scaling", "rope_parameters" } do
  for value, what in pairs { [5] = "a number", linear = 'a string ("linear")', [true] = "a boolean",
      [q.json.array { 1 }] = "a list" } do
    refused(("key %s is %s, expected an object"):format(key, what), q.random_model, with { [key] = value })
  end
  local llama3 = { rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 4,
    original_max_position_embeddings = 32 }
  assert(q.random_model(with { [key] = llama3 }).config.rope.scaling)
  for name, value in pairs(llama3) do
    if type(value) == "number" then
      llama3[name] = tostring(value)
      refused(('key %s.%s is a string ("%d"), expected a number'):format(key, name, value), q.random_model,
        with { [key] = llama3 })
      llama3[name] = value
    end
  end
  refused("key " .. key .. ".rope_type is a number", q.random_model, with { [key] = { rope_type = 1 } })
  refused("no rope_type says", q.random_model, with { [key] = { factor = 8 } })
  refused("key " .. key .. ".partial_rotary_factor is 0", q.random_model,
    with { [key] = { partial_rotary_factor = 0 } })
end
refused("key rope_parameters.full_attention is an object", q.random_model,
  with { rope_parameters = { full_attention = { rope_theta = 1e6 } } })
refused("key rope_theta is a string", q.random_model, with { rope_theta = "10000" })
local rope = q.random_model(with { rope_theta = 5e5, rope_scaling = { rope_theta = q.json.null, rope_type = q.json.null,
  partial_rotary_factor = q.json.null } }).config.rope
assert(rope.theta == 5e5 and not rope.scaling, "null is not the same as absent")
for _, key in ipairs { "rope_scaling", "rope_parameters" } do
  local function rotated(entries, ...)
    refused(key .. "." .. table.concat({ ... }, " "), q.random_model, with { [key] = entries })
  end
  rotated({ rope_type = "longrope", short_factor = { 1 }, long_factor = { 1 } },
    "rope_type is longrope; default, linear, dynamic, llama3 and yarn are supported")
  rotated({ type = "mrope", mrope_section = { 2, 2, 4 } }, "rope_type is mrope; default")
  rotated({ rope_type = "default", partial_rotary_factor = 0.5 }, "partial_rotary_factor is 0.5; only 1 is supported")
  rotated({ rope_type = "default", factor = 4 }, "factor is 4, which a rotation of type default has not")
  rotated({ rope_type = "linear", factor = 4, low_freq_factor = 1 },
    "low_freq_factor is 1, which a rotation of type linear has not")
  rotated({ rope_type = "yarn", original_max_position_embeddings = 32 },
    "factor is missing, which a rotation of type yarn needs")
  rotated({ rope_type = "llama3", factor = 8, low_freq_factor = 1 }, "high_freq_factor is missing")
  rotated({ rope_type = "yarn", factor = 4, attention_factor = 0 }, "attention_factor is 0, expected a positive number")
  assert(not q.random_model(with {
    [key] = { rope_type = "default", factor = 1, partial_rotary_factor = 1 } }).config.rope.scaling)
end
refused("high_freq_factor 1 must be above low_freq_factor 1", q.random_model, with { rope_scaling = {
  rope_type = "llama3", factor = 8, low_freq_factor = 1, high_freq_factor = 1,
    original_max_position_embeddings = 32 } })
refused("rope_parameters and rope_scaling (with rope_theta) say different things", q.random_model,
  with { rope_parameters = { rope_type = "default", rope_theta = 1e6 },
    rope_scaling = { rope_type = "linear", factor = 2 } })
-- rope_scaling has no theta of its own, so it takes that of the top level
refused("say different things", q.random_model,
  with { rope_parameters = { rope_type = "linear", factor = 2, rope_theta = 1e6 },
    rope_scaling = { type = "linear", factor = 2 } })
refused("partial_rotary_factor = 0.25 changes the mathematics", q.random_model, with { partial_rotary_factor = 0.25 })
refused("use_mrope = true changes the mathematics", q.random_model, with { use_mrope = true })
-- as published ones have them
q.random_model(with { partial_rotary_factor = 1, use_mrope = false, is_llama_config = true,
  ["transformers.js_config"] = {} })
local kinds = { full_attention = { rope_type = "default" }, sliding_attention = { rope_type = "default" } }
local of_gemma = { hidden_act = "gelu_pytorch_tanh", head_dim = 16, rope_parameters = kinds }
refused("_attention is an object, expected a number", q.random_model, with(of_gemma, "GemmaForCausalLM"))
assert(not q.random_model(with(of_gemma, "Gemma3ForCausalLM")).config.rope.scaling)
of_gemma.rope_parameters = { rope_type = "linear", factor = 2 }
refused("has neither full_attention nor sliding_attention", q.random_model, with(of_gemma, "Gemma3ForCausalLM"))

-- gpt-oss without settings has transformers' YaRN, which a saved folder says.
local function gpt_oss(changes)
  changes.num_local_experts = 4
  return q.random_model(with(changes, "GptOssForCausalLM"))
end
local yarn = gpt_oss { rope_scaling = q.json.null, rope_parameters = q.json.null }
assert(yarn.config.rope.scaling.factor == 32 and yarn.config.rope.scaling.original_max_position_embeddings == 4096)
yarn:save(at "gpt_oss")
assert(q.json.decode(q.fs.read(at "gpt_oss/config.json")).rope_scaling.truncate == false)
assert(not gpt_oss { rope_parameters = { rope_type = "default" } }.config.rope.scaling)

-- The architecture is that of model_type.
refused("whose model_type is llama, but model_type is granite", q.random_model,
  with({ model_type = "granite" }, "LlamaForCausalLM"))
refused("whose model_type is llama, but model_type is mistral", q.random_model,
  with({ model_type = "mistral" }, "LlamaForCausalLM"))
refused("architecture exaone is not known", q.random_model, with { model_type = "exaone", architectures = {} })
q.random_model(with({ model_type = "llama" }, "LlamaForCausalLM"))

-- Windows.
local function windowed(changes)
  changes.use_sliding_window = changes.use_sliding_window == nil or changes.use_sliding_window
  changes.sliding_window = changes.sliding_window or 4
  return with(changes)
end
refused("key layer_types is a number, expected a list of strings", q.random_model, windowed { layer_types = 5 })
refused("layer_types[1] is a number", q.random_model, windowed { layer_types = { "full_attention", 5 } })
refused('key max_window_layers is a string ("x"), expected a number', q.random_model,
  windowed { max_window_layers = "x" })
refused('key use_sliding_window is a string ("true")', q.random_model, windowed { use_sliding_window = "true" })
for _, wrong in ipairs { "4", -4, 1.5 } do
  refused("key sliding_window is", q.random_model, windowed { sliding_window = wrong })
end
assert(q.random_model(windowed { max_window_layers = 0 }).config.window == 4)
assert(q.random_model(windowed {}).config.window == 0, "without max_window_layers the first 28 layers look at all")
refused("max_window_layers = 1 with use_sliding_window mixes kinds", q.random_model, windowed { max_window_layers = 1 })
refused("layer_types has 1 entries", q.random_model, windowed { layer_types = { "full_attention" } })
refused("layer_types has chunked_attention", q.random_model,
  windowed { layer_types = { "chunked_attention", "chunked_attention" } })
refused("layer_types has sliding_attention layers, but use_sliding_window", q.random_model,
  windowed { use_sliding_window = false, layer_types = { "sliding_attention", "sliding_attention" } })
refused("layer_types has full_attention layers, but this architecture has a sliding_window in all", q.random_model,
  with({ sliding_window = 4, layer_types = { "full_attention", "full_attention" } }, "MistralForCausalLM"))
local gemma = with({ layer_types = "sliding_attention", hidden_act = "gelu_pytorch_tanh", head_dim = 16 },
  "Gemma3ForCausalLM")
refused("key layer_types is a string", q.random_model, gemma)

-- Sizes: published ones are accepted. Sizes of no model are refused before memory is asked for.
local largest = { hidden_size = 16384, intermediate_size = 53248, num_hidden_layers = 126, num_attention_heads = 128,
  vocab_size = 262144, head_dim = 256 }
for key, size in pairs(largest) do
  assert(config.wrap({ [key] = 8 * size }):size(key) == 8 * size)
  refused(("key %s is 2147483648, expected a positive integer, at most"):format(key), q.random_model,
    with { [key] = 2 ^ 31 })
end

-- A file that is no config.json, and errors in one, are refused by path.
for text, why in pairs {
  ['{"architectures": ["LlamaForCausalLM"], "hidden_size": NaN}'] = "key hidden_size is NaN, expected a number",
  ['{"x": "a \\\\\\" NaN", "architectures": ["LlamaForCausalLM"], "hidden_size":-Infinity}'] =
    "key hidden_size is -Infinity, expected a number",
  ['{"architectures": ["LlamaForCausalLM"], "hidden_act": Infinity, "hidden_size": 32, "num_attention_heads": 2, ' ..
    '"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8}'] = "hidden_act = Infinity changes",
  ['{"hidden_size": nan}'] = "not a JSON object: parse error",
  ['{"hidden_size": 1e400}'] = "not a JSON object: number overflow", ["[1]"] = "not a JSON object",
  ['{"architectures": ["LlamaForCausalLM"], "hidden_size": "x"}'] = "key hidden_size is a string",
} do
  local path = at "config.json"
  q.fs.write(path, text)
  refused(path .. ": " .. why, q.plan, { model = path, bandwidth = 1e10, flops = 1e11 })
  refused(path .. ": " .. why, q.plan, { model = scratch.folder, bandwidth = 1e10, flops = 1e11 })
end
print "config: what is odd is refused by name"
