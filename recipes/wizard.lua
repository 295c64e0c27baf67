-- From your data to a model that is served, step by step. It asks at a terminal, and recommends an answer with its
-- reason. What a flag says is not asked. Every step leaves a file in OUT/steps, and the same command goes on from it.
--   qeng recipes/wizard.lua                                                          # asks
--   qeng recipes/wizard.lua --data chats.jsonl --model Qwen/Qwen3-0.6B --yes         # asks nothing
--   qeng recipes/wizard.lua --data chats.jsonl --yes --redo settings --rank 32       # anew from a step on

local q = require "qeng"
local wizard = require "qeng.wizard"

local opt = q.options {
  "Takes data to a fine-tuned model that is served: checks the data, chooses a model that fits and its settings,\n"
    .. "estimates, trains, evaluates before and after, merges, exports. Where it stopped, the same command goes on.\n"
    .. "Records, model, and what is 0 here or has no default are asked for; --yes takes what is recommended.",
  "wizard",
  "device",
}
q.use_device(opt)

local run = wizard.open(opt)
run:step "data"      -- shapes, answers, duplicates, lengths, languages; a part is held out
run:step "model"     -- one that fits, by plan; the data as its tokens, with the trained part marked
run:step "settings"  -- mode, rank, rows, passes, learning rate, each with its reason
run:step "estimate"  -- time and memory by a few measured steps, and how far earlier estimates were off
run:step "before"    -- loss and answers on what is held out
run:step "train"     -- as recipes/lora_qwen.lua does, with checkpoints
run:step "after"     -- the same questions again
run:step "merge"     -- a Hugging Face folder, with what the model's own folder has beside it
run:step "export"    -- a GGUF file
run:step "serve"     -- the command for it; --try asks the model one question
