-- Writes small models and random adapters, for models_check.py and folders_check.py:
--   qeng tests/peers/models.lua GOLDEN FOLDER
-- Of case i of a file of tests/golden/models: FOLDER/i, a folder as on the hub; FOLDER/i.adapter, as PEFT's; where GGUF
-- has words for the model, FOLDER/i.gguf and FOLDER/i.adapter.gguf; FOLDER/i.json, the logits under the adapter; and
-- FOLDER/i.llama.json, those without and with it if GELU is llama.cpp's. Of gated delta nets, whose rows and columns
-- move, also FOLDER/i.TYPE.gguf of other types, with the logits in FOLDER/i.TYPE.json.
package.path = (arg[0]:match "^(.*/)" or "./") .. "../lua/?.lua;" .. package.path
local q = require "qeng"

local formula = require "formula"
local last_logits = require "last_logits"

-- llama.cpp has GELU from a table of f16, which it reads at x rounded to f16. Runs f with that; says whether f met one.
local function with_table_gelu(f)
  local core, gelu, swiglu, met = require "qeng.core", q.Tensor.gelu, q.swiglu, false
  local function from_table(x)
    met = true
    return gelu(x:to("f16"):to("f32"), true):to("f16"):to("f32")
  end
  q.Tensor.gelu = from_table
  core.swiglu = function(gate, up, opt)
    if opt and opt.gelu then return (from_table(gate) * up):compute() end
    return swiglu(gate, up, opt)
  end
  local found = f()
  q.Tensor.gelu, core.swiglu = gelu, swiglu
  return found, met
end

local golden, folder = q.json.decode(q.fs.read(arg[1])), arg[2]
for i, case in ipairs(golden.cases) do
  local model = q.random_model(case.values, { weights = formula })
  local stem = ("%s/%d"):format(folder, i)
  model:save(stem)
  if case.entries then model:save_gguf(stem .. ".gguf", { type = "f32" }) end
  for _, type in ipairs(case.entries and model.config.delta and { "f16", "q8_0" } or {}) do
    local path = ("%s.%s"):format(stem, type)
    model:save_gguf(path .. ".gguf", { type = type })
    q.fs.write(path .. ".json", q.json.encode(last_logits.of(q.load(path .. ".gguf"), golden.tokens)))
  end
  model:lora { rank = golden.rank, alpha = golden.alpha, targets = case.targets, seed = 1 }
  for at, parameter in ipairs(model.adapter.parameters) do
    parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.3, seed = 7, subsequence = at }))
  end
  model:save_adapter(stem .. ".adapter")
  if case.entries then model:save_adapter_gguf(stem .. ".adapter.gguf") end
  q.fs.write(stem .. ".json", q.json.encode(last_logits.of(model, golden.tokens)))
  local rounded, met = with_table_gelu(function()
    local without = model:without_adapter(last_logits.of, model, golden.tokens)
    return { without, last_logits.of(model, golden.tokens) }
  end)
  if met then q.fs.write(stem .. ".llama.json", q.json.encode(rounded)) end
end
