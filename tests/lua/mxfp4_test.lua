-- A folder of gpt-oss whose experts are stored in MXFP4 loads as it is stored, and has the logits that transformers has
-- for it (tests/golden/mxfp4_golden.py), also as a GGUF file, as a plain folder and in bf16. An adapter learns on it.
package.path = (arg[0]:match "^(.*/)" or "./") .. "?.lua;" .. package.path
local last_logits = require "last_logits"
local q = require "qeng"
local scratch = require "scratch"
local at = scratch.at
local folder = "tests/golden/mxfp4"
local golden = q.json.decode(q.fs.read(folder .. "/values.json"))

local function near(model, most, what)
  local off = last_logits.distance(golden.logits, last_logits.of(model, golden.tokens))
  assert(off < most, ("%s: logits are off by %g"):format(what, off))
end
local function dtype_of_experts(model)
  local found
  for _, layer in ipairs(model.linears) do
    if layer.experts then
      assert(not found or found == layer.weight:dtype())
      found = layer.weight:dtype()
    end
  end
  return found
end

local model = q.load(folder, { dtype = "f32" })
assert(dtype_of_experts(model) == "mxfp4")
near(model, 1e-5, "the folder")
near(q.load(folder), 0.05, "in bf16")

model:save_gguf(at "model.gguf", { type = "f16" })
model:save(at "plain", { dtype = "f32" })
local plain = q.load(at "plain")
assert(dtype_of_experts(plain) == "f32" and plain.config_values.quantization_config == nil)
near(plain, 1e-5, "a plain folder of it")
near(q.load(at "model.gguf", { dtype = "f32" }), 1e-3, "a GGUF file of it")

model:lora { rank = 2, seed = 1 }
local packed = q.pack { { tokens = golden.tokens, mask = { 0, 1, 1, 1, 1, 1, 1, 1, 1, 1 } } }
local before = -model:logprobs(packed):sum():item()
local adamw = q.adamw(model:trainable(), { lr = 0.01 })
for _ = 1, 5 do
  (-model:logprobs(packed):sum()):backward()
  adamw:step()
end
assert(-model:logprobs(packed):sum():item() < before - 0.1, "an adapter over MXFP4 does not learn")
scratch.refused("mxfp4", function() q.load(folder, { dtype = "f32", writable = true }):full() end)
print "ok"
