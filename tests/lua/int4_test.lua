-- Folders that AWQ and GPTQ quantized load as int4 blocks of the same values (tests/golden/int4_golden.py). They run
-- like their decoded weights and take an adapter. Packings that we do not read are refused by name.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local q = require "qeng"
local scratch = require "scratch"
local at, refused = scratch.at, scratch.refused
local here = arg[0]:match "^(.*/)" or "./"
local golden = here .. "../golden/int4/"
local values = q.safetensors.open(golden .. "values.safetensors")

local function flat(tensor)
  local count = tensor:elements()
  return tensor:reshape({ count }):table()
end
local function same(a, b)
  a, b = flat(a), flat(b)
  for i = 1, #b do
    if a[i] ~= b[i] then return false end
  end
  return #a == #b
end

for _, method in ipairs { "awq", "gptq", "act_order" } do
  local model = q.load(golden .. method, { dtype = "f32" })
  local shown = 0
  for _, layer in ipairs(model.linears) do
    assert(layer.weight:dtype() == (method == "act_order" and "f16" or "int4"),
      layer.name .. " is " .. layer.weight:dtype())
    local name = method .. "." .. layer.name
    if values:info(name) then
      shown = shown + 1
      assert(same(layer.weight:to "f32", values:tensor(name)), name .. " has other values")
    end
  end
  assert(shown == 2)
  local ids = { 3, 1, 4, 1, 5, 9, 2, 6 }
  local logits = model:logits(ids)
  for _, layer in ipairs(model.linears) do layer.weight = layer.weight:to "f32" end
  local decoded = flat(model:logits(ids))
  for i, logit in ipairs(flat(logits)) do
    assert(math.abs(logit - decoded[i]) < 1e-4, "a logit differs from the decoded weights'")
  end

  model:save(at(method), { dtype = "f32" })
  assert(q.json.decode(q.fs.read(at(method .. "/config.json"))).quantization_config == nil)
  assert(same(q.load(at(method)).head, model.head), "what is saved is an ordinary folder")

  -- Streamed, the weights lie in a temporary file. Nothing of act-order is decoded silently.
  local said, streaming = scratch.said(q.load, golden .. method, { dtype = "f32", weights = "stream" })
  assert(same(streaming:logits(ids), logits), "streamed weights give other logits")
  local _, count = said:gsub("weights of GPTQ's act%-order are decoded to f16, and take four times their size", "")
  assert(count == (method == "act_order" and 1 or 0), said)

  model = q.load(golden .. method):lora { rank = 2 }
  model.linears[1].lora.b:fill(0.01)
  assert(model:merge().linears[1].weight:dtype() == model.dtype, "a merged weight has the model's dtype")
end

-- Settings that do not fit (the rest: tests/unit/int4_test.cpp), and weights of another model.
local function changed(name, edit)
  q.fs.mkdir(at(name))
  q.fs.copy(golden .. "awq/model.safetensors", at(name) .. "/model.safetensors")
  local config = q.json.decode(q.fs.read(golden .. "awq/config.json"))
  edit(config)
  q.fs.write(at(name) .. "/config.json", q.json.encode(config))
  return at(name)
end
refused("quantization_config.bits is 8; 4 is supported: convert the unquantized model instead", q.load,
  changed("bits", function(c) c.quantization_config.bits = 8 end))
refused("mlp.gate_proj.weight is [96, 64], expected [128, 64]", q.load,
  changed("shape", function(c) c.intermediate_size = 128 end))

-- A text model inside another has the joined layers too.
do
  local stored, tensors = q.safetensors.open(golden .. "awq"), {}
  for _, name in ipairs(stored:names()) do
    tensors[#tensors + 1] = { name:gsub("^model%.", "model.language_model."), stored:tensor(name) }
  end
  local dir = changed("wrapped", function(c)
    c.text_config = {}
    for key, value in pairs(c) do
      if key ~= "text_config" and key ~= "quantization_config" then c.text_config[key], c[key] = value, nil end
    end
    c.text_config.architectures, c.model_type = nil, "llava"
    c.architectures = q.json.array { "LlavaForConditionalGeneration" }
  end)
  q.safetensors.save(dir .. "/model.safetensors", tensors)
  assert(same(q.load(dir, { dtype = "f32" }):logits { 3, 1, 4 },
    q.load(golden .. "awq", { dtype = "f32" }):logits { 3, 1, 4 }))
end

-- A bias that no part of the model has may be there if it is zeros, in any folder.
do
  local dir, tensors = at "bias", {}
  q.load(golden .. "awq"):save(dir)
  local stored = q.safetensors.open(dir)
  for _, name in ipairs(stored:names()) do tensors[#tensors + 1] = { name, stored:tensor(name, { copy = true }) } end
  tensors[#tensors + 1] = { "model.layers.0.mlp.up_proj.bias", q.zeros({ 96 }) }
  q.safetensors.save(dir .. "/model.safetensors", tensors)
  q.load(dir)
  tensors[#tensors][2]:fill(1e-9)
  q.safetensors.save(dir .. "/model.safetensors", tensors)
  refused("up_proj.bias belongs to no part of a LlamaForCausalLM", q.load, dir)
end
q.fs.remove(scratch.folder)
print "int4: AWQ and GPTQ folders load as the values they stand for"
