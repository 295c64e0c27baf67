-- Tunes a model on preferences: DPO, ORPO or KTO on {prompt, chosen, rejected}. The reference is the model itself with
-- its adapters off.
--   qeng recipes/preference.lua --model ~/Qwen2.5-0.5B-Instruct --data pairs.jsonl

local q = require "qeng"

local opt = q.options {
  "Trains LoRA adapters on pairs of answers, of which one is preferred: {\"prompt\", \"chosen\", \"rejected\"}.",
  "model",
  { "data", nil, "JSONL or a JSON array", kind = "input", required = true },
  { "loss", "dpo", "what is optimized", choices = { "dpo", "orpo", "kto" } },
  { "beta", 0.1, "how strongly the model is held to its reference; orpo: the weight of the odds", min = 0 },
  { "smoothing", 0, "dpo: the share of pairs thought to be the wrong way round", min = 0, max = 0.5, number = true },
  { "pairs", 4, "pairs of a step; kto: 2 at least", min = 1 },
  { "steps", 0, "optimizer steps, 0: one pass over the pairs", min = 0 },
  { "max_tokens", 1024, "longer conversations are left out", min = 2 },
  { "rank", 16, "LoRA rank", min = 1 },
  { "lr", 5e-5, "peak learning rate", min = 0 },
  "run", "device",
}
if opt.smoothing > 0 and opt.loss ~= "dpo" and not opt.resume then
  q.error("usage", "--smoothing goes with --loss dpo: leave it out")
end
q.use_device(opt)
local model = q.load(opt.model, { dtype = opt.dtype, model_file = opt.model_file })
model:lora { rank = opt.rank, seed = opt.seed }
local set = q.preferences(opt.data, model.tokenizer, { max_tokens = opt.max_tokens, seed = opt.seed })
if set.left_out > 0 then print(("%d pairs exceed --max-tokens and are left out"):format(set.left_out)) end
if opt.loss == "kto" and math.min(opt.pairs, #set) < 2 then
  q.error("usage", "--loss kto measures its KL on answers to other prompts of a step: it takes --pairs 2 or more")
end
local steps = opt.steps > 0 and opt.steps or math.ceil(#set / opt.pairs)
local optimizer = q.adamw(model:trainable(), { lr = q.cosine(opt.lr, steps, { warmup = math.floor(steps / 20) }) })

local function sums(packed) return packed:sums(model:logprobs(packed)) end
local function reference(packed) return q.no_grad(model.without_adapter, model, sums, packed) end
local function split(x) return x:slice(1, 0, nil, 2), x:slice(1, 1, nil, 2) end  -- of chosen, of rejected answers

-- Each gives the loss, and of each pair how much better the chosen answer does.
local losses = {}
function losses.dpo(answers)
  local chosen, rejected = split(sums(answers))
  local before, rejected_before = split(reference(answers))
  return q.losses.dpo(chosen, rejected, before, rejected_before, { beta = opt.beta, smoothing = opt.smoothing })
end
function losses.orpo(answers)
  local chosen, rejected = split(answers:means(model:logprobs(answers)))
  return q.losses.orpo(chosen, rejected, { beta = opt.beta })
end
function losses.kto(answers, mixed)
  local kl = q.no_grad(function() return (sums(mixed) - reference(mixed)):mean():maximum(0) end)
  local good = {}
  for i = 1, #answers.counts do good[i] = i % 2 end
  local loss, reward = q.losses.kto(sums(answers), reference(answers), q.tensor(good), { beta = opt.beta, kl = kl })
  local wanted, unwanted = split(reward)
  return loss, wanted - unwanted
end

local run = q.loop { out = opt.out, steps = steps, optimizer = optimizer, parameters = model:trainable(), model = model,
  settings = opt, seed = opt.seed, save_every = opt.save_every, leaves = { "adapter" }, resume = opt.resume,
  overwrite = opt.overwrite }
for step in run:steps() do
  q.scope(function()
    local loss, margin = losses[opt.loss](set:take(step, opt.pairs))
    loss:backward()
    optimizer:step { clip = 1 }
    local right = margin:gt(0):mean():item()
    run:log({ loss = loss, margin = margin:mean(), right = right },
      ("loss %.4f, %.0f %% of pairs right"):format(loss:item(), 100 * right))
  end)
end
model:save_adapter(opt.out .. "/adapter")
print(opt.out .. ": adapter/ (PEFT), metrics.jsonl")
