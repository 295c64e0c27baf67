-- The logits of one document, for llama_parity.py:   qeng tests/campaigns/llama_parity.lua MODEL.gguf '[1, 2, 3]' OUT
-- OUT: a safetensors file with `logits` [tokens, vocab] f32.
local q = require "qeng"

local model = q.load(arg[1], { dtype = "f32" })
q.safetensors.save(arg[3], { { "logits", model:logits(q.json.decode(arg[2])) } })
