-- Talks with a model in the terminal. The conversation so far counts; answers appear as they come, reasoning dimmed.
--   qeng recipes/chat.lua --model DIR [--adapter DIR] [--system TEXT] [--context TOKENS]

local q = require "qeng"
local terminal = require "qeng.infer.terminal"

local opt = q.options {
  "Talks with a model. Ctrl-C stops an answer; /help lists the commands.",
  "generation",
  { "system", nil, "system message" },
  { "context", 0, "most tokens of the conversation, for which the KV cache is made; 0: the model's", min = 0 },
  "peers", "device",
}
q.use_device(opt)

local model, how = q.generation(opt)
how.system, how.when_full, how.context = opt.system, opt.when_full, opt.context > 0 and opt.context or nil
local name = (opt.model:match "([^/]+)/*$" or opt.model) .. (opt.adapter ~= "" and " with " .. opt.adapter or "")
terminal.run(q.conversation(model, how), name)
