-- Writes the logits of one document as generation computes them, for llama_parity.py:
--   qeng tests/campaigns/llama_parity.lua MODEL.gguf '[1, 2, 3]' OUT [ADAPTER]
-- OUT: a safetensors file with `logits` [tokens, vocab] f32.
local paged = require "qeng.infer.paged"
local q = require "qeng"

local model, ids = q.load(arg[1], { dtype = "f32" }), q.json.decode(arg[2])
if arg[4] then model:load_adapter(arg[4]) end
local runner = paged.new(model, { pages = math.ceil(#ids / 16), kv = "f32" })
local id = runner.pool:open(0)
runner:extend(id, ids)
local wanted = {}
for row = 0, #ids - 1 do wanted[#wanted + 1] = row end
local all = q.zeros({ #ids, model.config.vocab }, "f32")
runner:run({ { id = id, count = #ids } }, wanted, function(logits, first)
  all:rows(first - 1, logits:shape()[1]):copy(logits)
end)
q.safetensors.save(arg[3], { { "logits", all } })
