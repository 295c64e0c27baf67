-- What check_outputs.py compares with PEFT and transformers: an adapter with a b that is not zero, the merged folder,
-- and our logits of the adapted model.   qeng tests/golden/write_outputs.lua BASE OUT
local q = require "qeng"
local base, out = assert(arg[1], "BASE is missing"), assert(arg[2], "OUT is missing")
q.fs.mkdir(out)
local model = q.load(base, { dtype = "f32" }):lora { rank = 4, alpha = 8, seed = 7 }
for i, parameter in ipairs(model:trainable()) do
  if parameter.name:find("lora_B", 1, true) then
    parameter.tensor:copy(q.randn(parameter.tensor:shape(), { std = 0.1, seed = 7, subsequence = i }))
  end
end
local tokens, vocab = {}, model.config.vocab
for i = 1, 24 do tokens[i] = (i * 7919) % vocab end
q.fs.write(out .. "/logits.json",
  q.json.encode { tokens = q.json.array(tokens), logits = model:logits(tokens):table() })
model:save_adapter(out .. "/adapter")
model:merge():save(out .. "/merged")
