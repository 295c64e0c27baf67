-- A chat in the terminal: the conversation so far counts, answers appear as they come, reasoning stands apart (dim).
--   qeng recipes/chat.lua --model DIR [--adapter DIR] [--system TEXT] [--context TOKENS]

local q = require "qeng"
local terminal = require "qeng.infer.terminal"

local opt = q.options(q.generation_options(q.device_options {
  "Talks with a model. Ctrl-C stops an answer; /help lists the commands.",
  system = { nil, "system message", order = 3 },
  context = { 0, "tokens of the conversation at most, which the KV cache is made for; 0: the model's", min = 0, integer = true, order = 4 },
}))
q.use_device(opt)

local model, how = q.generation(opt)
how.system, how.when_full, how.context = opt.system, opt.when_full, opt.context > 0 and opt.context or nil
local name = (opt.model:match "([^/]+)/*$" or opt.model) .. (opt.adapter ~= "" and " with " .. opt.adapter or "")
terminal.run(q.conversation(model, how), { name = name, declared = q.drawing_options {} })
