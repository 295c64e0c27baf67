-- Writes small models as GGUF files, for models_check.py:   qeng tests/peers/models.lua GOLDEN FOLDER
-- Of case i of a file of tests/golden/models: FOLDER/i.gguf; a random adapter, FOLDER/i.adapter.gguf,
-- and the logits that qeng has under it, FOLDER/i.json.
package.path = (arg[0]:match "^(.*/)" or "./") .. "../lua/?.lua;" .. package.path
local q = require "qeng"

local formula = require "formula"
local last_logits = require "last_logits"

local golden, folder = q.json.decode(q.fs.read(arg[1])), arg[2]
for i, case in ipairs(golden.cases) do
  if case.entries then
    local model = q.random_model(case.values, { weights = formula })
    local stem = ("%s/%d"):format(folder, i)
    model:save_gguf(stem .. ".gguf", { type = "f32" })
    model:lora { rank = golden.rank, alpha = golden.alpha, targets = case.targets, seed = 1 }
    for at, parameter in ipairs(model.adapter.parameters) do
      parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.3, seed = 7, subsequence = at }))
    end
    model:save_adapter_gguf(stem .. ".adapter.gguf")
    q.fs.write(stem .. ".json", q.json.encode(last_logits.of(model, golden.tokens)))
  end
end
