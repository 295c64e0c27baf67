-- For edit_check.py: a small random model with a tokenizer, and what q.edit makes of facts in it.
--   qeng edit.lua REQUEST.json OUT
-- REQUEST: text (of the keys), facts, layer (of ROME), layers (of MEMIT), opt (options of both), lambda.
-- OUT/model: a Hugging Face folder. OUT/edit.json: contexts (ids before the prompts), documents (ids of the text).
-- OUT/edit.safetensors: key, value and rome, the weight of ROME's layer after the first fact; memit.N, that of layer N
-- after all.
local q = require "qeng"

local request, out = q.json.decode(q.fs.read(arg[1])), arg[2]
q.device { device = "cpu" }
require("qeng.console.progress").silent = true
local config = {
  architectures = q.json.array { "LlamaForCausalLM" }, model_type = "llama", hidden_size = 48, intermediate_size = 80,
  num_hidden_layers = 4, num_attention_heads = 4, num_key_value_heads = 2, vocab_size = 320,
  max_position_embeddings = 512, rms_norm_eps = 1e-6, rope_theta = 10000, tie_word_embeddings = false,
  hidden_act = "silu",
}
local dir = out .. "/model"
q.random_model(config, { seed = 3, std = 0.2 }):save(dir)
q.train_bpe({ request.text }, { vocab = 300, specials = { "<|endoftext|>" }, out = dir })
local model = q.load(dir, { dtype = "f32" })

local known = q.edit.statistics(model, { layers = request.layers, text = request.text, contexts = 3, seed = 1 })
local documents, ids = {}, model.tokenizer:encode(request.text)
for first = 1, #ids, 256 do documents[#documents + 1] = { unpack(ids, first, math.min(first + 255, #ids)) } end
local function options(more)
  for key, value in pairs(request.opt) do more[key] = value end
  more.statistics = known
  return more
end
local function weight(index)
  for _, parameter in ipairs(model.parameters) do
    if parameter.name == ("model.layers.%d.mlp.down_proj.weight"):format(index) then return parameter.tensor end
  end
end

local edit = q.edit.rome(model, request.facts[1], options { layer = request.layer })
local found = { key = edit.key, value = edit.value, rome = weight(request.layer) }
edit:undo()
q.edit.memit(model, request.facts, options { layers = request.layers, lambda = request.lambda })
for _, index in ipairs(request.layers) do found["memit." .. index] = weight(index) end
q.save(out .. "/edit.safetensors", found)
known.contexts[1] = q.json.array {}
q.fs.write(out .. "/edit.json", q.json.encode { contexts = known.contexts, documents = documents })
