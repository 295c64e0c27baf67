-- Writes a GGUF file of a Qwen3 shape with random weights, in seconds:
--   qeng bench/decode_model.lua --shape 8B --type tq2_0 --out model.gguf
-- For each type and width 61 rows of random weights are packed, and every matrix repeats them. To pack 8 billion
-- weights takes minutes. The device reads as many bytes from as many places, and no speed here depends on the weights.

local export = require "qeng.gguf.export"
local names = require "qeng.gguf.names"
local q = require "qeng"
local types = require "qeng.gguf.types"

local shapes = {  -- Qwen3
  ["1.7B"] = { hidden_size = 2048, num_hidden_layers = 28, num_attention_heads = 16, num_key_value_heads = 8,
    head_dim = 128, intermediate_size = 6144, vocab_size = 151936, tie_word_embeddings = true },
  ["8B"] = { hidden_size = 4096, num_hidden_layers = 36, num_attention_heads = 32, num_key_value_heads = 8,
    head_dim = 128, intermediate_size = 12288, vocab_size = 151936, tie_word_embeddings = false },
  tiny = { hidden_size = 256, num_hidden_layers = 2, num_attention_heads = 4, num_key_value_heads = 2, head_dim = 64,
    intermediate_size = 512, vocab_size = 512, tie_word_embeddings = false },
}
-- Types whose published files have embedding and head in the type of the layers. The mixes give these q6_k.
local throughout = { tq2_0 = true, q2_0 = true }

local opt = q.options {
  "Writes a GGUF file with random weights.",
  { "shape", "8B", "whose shape", choices = { "1.7B", "8B", "tiny" } },
  { "type", "tq2_0", "type of the matrices, or a mix, as recipes/quantize.lua has them" },
  { "out", nil, "GGUF file", required = true },
  { "config", "", "a file for its config.json, which decode_peer.py reads" },
}
q.device { device = "cpu" }

local shape = shapes[opt.shape]
local config = {
  architectures = q.json.array { "Qwen3ForCausalLM" }, model_type = "qwen3", max_position_embeddings = 40960,
  rms_norm_eps = 1e-6,
  rope_theta = 1000000, hidden_act = "silu", attention_bias = false, bos_token_id = 0, eos_token_id = 0,
}
for key, value in pairs(shape) do config[key] = value end
if opt.config ~= "" then q.fs.write(opt.config, q.json.encode(config, { pretty = true }) .. "\n") end

local tied, overrides = shape.tie_word_embeddings, ""
if throughout[opt.type] then
  overrides = ("token_embd=%s"):format(opt.type) .. (tied and "" or (",output=%s"):format(opt.type))
end
local plan = types.plan(opt.type, overrides, {
  layers = shape.num_hidden_layers, groups = shape.num_attention_heads / shape.num_key_value_heads, tied = tied,
})

-- Makes one tensor of each type and shape. Its rows are those of a random block, repeated.
local made = {}
local function matrix(type, size)
  local key = ("%s %d %d"):format(type, size[1], size[2])
  if made[key] then return made[key] end
  local rows, done = size[1], math.min(size[1], 61)
  local dense = type == "f32" or type == "bf16" or type == "f16"
  local block = q.randn({ done, size[2] }, { std = 0.02, seed = 1, subsequence = size[2] })
  block = dense and block:to(type) or q.quantize(block, type)
  local whole = q.empty(size, type, "weights")
  whole:rows(0, done):copy(block)
  while done < rows do
    local more = math.min(done, rows - done)
    whole:rows(done, more):copy(whole:rows(0, more))
    done = done + more
  end
  made[key] = whole
  return whole
end

local model = q.random_model(config, { weights = function(name, size)
  if #size == 1 then return q.zeros(size, "f32", "weights"):fill(1) end
  return matrix(plan:type_of(names.to_gguf(name, "qwen3"), size), size)
end })
local begin = q.time()
local result = export.write(opt.out, export.of_model(model), plan)
print(("%s: %.2f GB, %.2f bits per weight, written in %.1f s"):format(opt.out, result.bytes / 1e9,
  8 * result.bytes / result.elements, q.time() - begin))
