-- Folders that AWQ and GPTQ quantized load as int4 blocks of the same values (tests/golden/int4_golden.py). They run
-- like their decoded weights and take an adapter. Packings that we do not read are refused by name.
local q = require "qeng"
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

  model = q.load(golden .. method):lora { rank = 2 }
  model.linears[1].lora.b:fill(0.01)
  assert(model:merge().linears[1].weight:dtype() == model.dtype, "a merged weight has the model's dtype")
end

-- Edits a copy of a folder's configuration. Returns the error of loading it.
local folder = os.tmpname()
os.remove(folder)
local function error_with(method, edit)
  q.fs.mkdir(folder)
  q.fs.copy(golden .. method .. "/model.safetensors", folder .. "/model.safetensors")
  local values_ = q.json.decode(q.fs.read(golden .. method .. "/config.json"))
  edit(values_.quantization_config)
  q.fs.write(folder .. "/config.json", q.json.encode(values_))
  local model, err = q.try(q.load, folder)
  q.fs.remove(folder)
  assert(not model, "the folder was loaded")
  return tostring(err)
end
local function expect(text, err) assert(err:find(text, 1, true), ("expected '%s' in: %s"):format(text, err)) end
expect("quant_method is hqq; awq, gptq or bitsandbytes is supported: convert the unquantized model with " ..
  "recipes/quantize.lua",
  error_with("awq", function(c) c.quant_method = "hqq" end))
expect("quantization_config.bits is 8; 4 is supported", error_with("gptq", function(c) c.bits = 8 end))
expect("quantization_config.version is gemv; gemm is supported", error_with("awq", function(c) c.version = "GEMV" end))
expect("quantization_config.checkpoint_format is gptq_v2; gptq is supported", error_with("gptq", function(c)
  c.checkpoint_format = "gptq_v2"
end))
expect("quantization_config.group_size is 48; a multiple of 32, or -1", error_with("awq", function(c)
  c.group_size = 48
end))
expect("has groups of 32 inputs, quantization_config says 64", error_with("awq", function(c) c.group_size = 64 end))

-- A group that does not exist, and parts that do not fit.
local n = 64
local parts = { qweight = q.zeros({ n / 8, 8 }, "i32"), qzeros = q.zeros({ 2, 1 }, "i32"),
  scales = q.zeros({ 2, 8 }, "f16"), name = "layer x" }
local order = {}
for i = 1, n do order[i] = i % 3 end
parts.g_idx = q.tensor(order, "i32")
expect("layer x: g_idx puts input 1 into group 2, there are 2",
  tostring(select(2, q.try(q.repack_int4, "gptq", parts))))
parts.g_idx, parts.qzeros = nil, q.zeros({ 1, 1 }, "i32")
expect("layer x: qzeros is i32 [1, 1], expected i32 [2, 1]", tostring(select(2, q.try(q.repack_int4, "gptq", parts))))
print "int4: AWQ and GPTQ folders load as the values they stand for"
