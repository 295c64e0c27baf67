-- Folders of models of text and images load as their text model, with either prefix that transformers writes.
local q = require "qeng"
local scratch = require "scratch"
local at = scratch.at
q.device { device = "cpu", threads = 1 }

local ids = {}
for i = 1, 30 do ids[i] = (i * i * 7 + 3 * i) % 96 end
local values = {
  architectures = q.json.array { "Gemma3ForCausalLM" }, model_type = "gemma3_text", hidden_size = 64,
  intermediate_size = 96, num_hidden_layers = 3,
  num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16, vocab_size = 96, max_position_embeddings = 128,
  hidden_activation = "gelu_pytorch_tanh", sliding_window = 4,
  layer_types = q.json.array { "sliding_attention", "full_attention", "sliding_attention" },
}
local model = q.random_model(values, { seed = 5, std = 0.15 })
local function flat(tensor) return table.concat(tensor:reshape({ tensor:elements() }):table(), " ") end
local expected = flat(model:logits(ids))

for i, prefix in ipairs { "language_model.", "model.language_model." } do
  local dir, tensors = at("wrapped" .. i), { { "vision_tower.patch.weight", q.zeros({ 2, 2 }, "f32") } }
  q.fs.mkdir(dir)
  for _, parameter in ipairs(model.parameters) do
    tensors[#tensors + 1] = { i == 1 and prefix .. parameter.name or parameter.name:gsub("^model%.", prefix),
      parameter.tensor }
  end
  q.safetensors.save(dir .. "/model.safetensors", tensors)
  local inner = {}
  for key, value in pairs(values) do inner[key] = value end
  inner.architectures = nil
  q.fs.write(dir .. "/config.json", q.json.encode {
    architectures = q.json.array { "Gemma3ForConditionalGeneration" }, model_type = "gemma3", text_config = inner,
    vision_config = { depth = 1 },
  })
  local loaded = q.load(dir)
  assert(loaded.arch.hf == "Gemma3ForCausalLM" and flat(loaded:logits(ids)) == expected,
    prefix .. " gives other logits")
  -- Saved, it is the wrapper again, with what belongs to images as it was.
  loaded:save(at "saved")
  local before, after = {}, q.safetensors.open(at "saved/model.safetensors")
  for _, each in ipairs(tensors) do before[#before + 1] = each[1] end
  local names = after:names()
  table.sort(before)
  table.sort(names)
  assert(table.concat(before, " ") == table.concat(names, " "), "other names are saved")
  assert(after:tensor("vision_tower.patch.weight"):hash() == tensors[1][2]:hash())
  local config = q.json.decode(q.fs.read(at "saved/config.json"))
  assert(config.architectures[1] == "Gemma3ForConditionalGeneration" and config.vision_config.depth == 1
    and config.text_config.head_dim == 16)
  assert(flat(q.load(at "saved"):logits(ids)) == expected, "what is saved is another model")
  inner.model_type = "mamba"
  q.fs.write(dir .. "/config.json", q.json.encode {
    architectures = q.json.array { "Gemma3ForConditionalGeneration" }, model_type = "gemma3", text_config = inner,
  })
  local _, err = q.try(q.load, dir)
  assert(tostring(err):find("is of model_type mamba, which is not known", 1, true), tostring(err))
end
print "wrapper: the text parts are the text models"
