-- Reinforcement learning by GRPO: the model answers each prompt several times, a reward tells how good each answer is,
-- and answers that are better than their group's mean become likelier. The reference is the model with its adapters
-- off.
--   qeng recipes/grpo.lua --model ~/Qwen2.5-0.5B-Instruct --data sums.jsonl --reward exact

local q = require "qeng"
local metrics = require "qeng.report.metrics"

local opt = q.options {
  "Trains LoRA adapters on rewards for the model's own answers to {\"prompt\", ...}.",
  "model",
  { "data", nil, "JSONL of records with a prompt, and what the reward looks at", kind = "input", required = true },
  { "reward", "exact", "exact (record.answer), json (record.schema), code (record.test, in a sandbox), or a Lua file "
    .. "that returns a function of record and text" },
  { "prompts", 4, "prompts of a step", min = 1 },
  { "group", 8, "answers to each", min = 2 },
  { "steps", 100, "optimizer steps", min = 1 },
  { "max_tokens", 128, "longest answer", min = 1 },
  { "temperature", 1, "of the answers", min = 0.01, number = true },
  { "clip", 0.2, "how far the ratio of new to old probabilities counts", min = 0, number = true },
  { "updates", 1, "updates on the answers of a step", min = 1 },
  { "beta", 0.04, "weight of the divergence from the reference", min = 0, number = true },
  { "rank", 16, "LoRA rank", min = 1 },
  { "lr", 5e-5, "learning rate", min = 0 },
  "run", "device",
}
q.use_device(opt)
local model = q.load(opt.model, { dtype = opt.dtype, model_file = opt.model_file })
model:lora { rank = opt.rank, seed = opt.seed }
local reward, records = q.rewards.of(opt.reward), q.records(opt.data, { "prompt" })
local adamw = q.adamw(model:trainable(), { lr = opt.lr })

local run = q.loop { out = opt.out, steps = opt.steps, optimizer = adamw, parameters = model:trainable(), model = model,
  settings = opt, seed = opt.seed, save_every = opt.save_every, leaves = { "adapter", "samples.jsonl" },
  resume = opt.resume, overwrite = opt.overwrite }
local samples = metrics.open(opt.out .. "/samples.jsonl", run.done)
for step in run:steps() do
  q.scope(function()
    local some, advantages, rewarded = {}, {}, 0
    for p = 1, opt.prompts do some[p] = records[(step * opt.prompts + p - 1) % #records + 1] end
    local found = q.group_answers(model, some, reward, { group = opt.group, max_tokens = opt.max_tokens,
      temperature = opt.temperature, seed = opt.seed + step * opt.prompts * opt.group })
    for i, each in ipairs(found) do
      advantages[i], rewarded = each.advantage, rewarded + each.reward / #found
      samples:add { step = step + 1, text = each.text, reward = each.reward, advantage = each.advantage,
        tokens = each.tokens, mask = each.mask }
    end
    local packed = q.pack(found)
    local sampled = q.no_grad(function() return model:logprobs(packed):compute() end)
    local reference = opt.beta > 0 and q.no_grad(model.without_adapter, model, model.logprobs, model, packed)
    local loss
    for _ = 1, opt.updates do
      loss = q.losses.grpo(packed, model:logprobs(packed), sampled, q.tensor(advantages),
        { clip = opt.clip, beta = opt.beta, reference = reference })
      loss:backward()
      adamw:step { clip = 1 }
    end
    run:log({ loss = loss, reward = rewarded }, ("mean reward %.3f"):format(rewarded))
  end)
end
model:save_adapter(opt.out .. "/adapter")
print(opt.out .. ": adapter/ (PEFT), metrics.jsonl, samples.jsonl")
