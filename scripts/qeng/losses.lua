-- q.losses: losses of logits, of preferences and of a teacher. Each gives a tensor of one element to go back from; log
-- probabilities are of whole answers ([n], Model:logprobs sums them) unless it says otherwise.

local q = require "qeng.core"

local losses = {}

local function check(opt, known, name)
  for key in pairs(opt or {}) do
    if known[key] == nil then q.error("value", ("losses.%s: there is no option %s"):format(name, tostring(key))) end
  end
  return setmetatable(opt or {}, { __index = known })
end

local function log_sigmoid(x) return -(-x):softplus() end

-- Refuses targets [t] i32 that are neither -1 nor a class, also in a program: a gather checks its index. In a program
-- only argmax and gather give integers, so that these put 0 in the place of -1.
local function check_targets(targets, classes)
  local column = targets:unsqueeze(2)
  local given = q.concat({ q.zeros(column:shape()), column:ne(-1) * 1 }, 2):argmax(2):unsqueeze(2)
  local index = q.concat({ q.zeros(column:shape(), "i32"), column }, 2):gather(2, given)
  q.zeros({ classes }, "u8"):gather(1, index:squeeze(2))
end

-- Cross-entropy of logits [t, vocab] with targets [t] i32, the mean over those that are not -1.
--   smoothing  share of the target that all classes have in equal parts (Szegedy et al. 2016)
--   z          weight of the square of log(sum(exp(logits))), which keeps logits small (PaLM, Chowdhery et al. 2022)
--   sum        true: the sum, not the mean
function losses.cross_entropy(logits, targets, opt)
  opt = check(opt, { smoothing = 0, z = 0, sum = false }, "cross_entropy")
  local classes = logits:shape()[2]
  check_targets(targets, classes)
  local trained = targets:ge(0)
  local log_z = logits:logsumexp(true)
  local picked = q.where(targets:unsqueeze(2):eq(q.arange(classes)), logits, 0):sum(-1, true)
  local nll = log_z - picked
  if opt.smoothing > 0 then
    nll = (1 - opt.smoothing) * nll + opt.smoothing * (log_z - logits:mean(-1, true))
  end
  if opt.z > 0 then nll = nll + opt.z * log_z:square() end
  local total = q.where(trained, nll:squeeze(2), 0):sum()
  return opt.sum and total or total / trained:sum()
end

-- DPO (Rafailov et al. 2023, arXiv 2305.18290): log probabilities of chosen and rejected answers, of the policy and of
-- the reference. beta: how far the policy may go from the reference; smoothing: the share of pairs that are thought to
-- be the wrong way round (Mitchell 2023). Also gives the rewards' margin of each pair.
function losses.dpo(chosen, rejected, reference_chosen, reference_rejected, opt)
  opt = check(opt, { beta = 0.1, smoothing = 0 }, "dpo")
  local margin = opt.beta * ((chosen - rejected) - (reference_chosen - reference_rejected))
  local loss = -(1 - opt.smoothing) * log_sigmoid(margin) - opt.smoothing * log_sigmoid(-margin)
  return loss:mean(), margin
end

-- ORPO (Hong et al. 2024, arXiv 2403.07691): the nll of chosen answers, and beta times how much likelier these are than
-- the rejected ones, by odds. chosen, rejected: log probabilities per token.
function losses.orpo(chosen, rejected, opt)
  opt = check(opt, { beta = 0.1 }, "orpo")
  local function log_odds(p) return p - (-p:expm1()):log() end
  local margin = log_odds(chosen) - log_odds(rejected)
  return (-chosen - opt.beta * log_sigmoid(margin)):mean(), margin
end

-- KTO (Ethayarajh et al. 2024, arXiv 2402.01306): answers that are wanted (1) or not (0), without pairs. kl: how far
-- the policy is from the reference on other answers (a number or [1], no gradient); wanted, unwanted: weights.
function losses.kto(policy, reference, good, opt)
  opt = check(opt, { beta = 0.1, kl = 0, wanted = 1, unwanted = 1 }, "kto")
  local reward = opt.beta * (policy - reference - opt.kl)
  local loss = q.where(good, opt.wanted * (1 - reward:sigmoid()), opt.unwanted * (1 - (-reward):sigmoid()))
  return loss:mean(), reward
end

-- GRPO (Shao et al. 2024, arXiv 2402.03300) of a packed batch: logprobs [t] of the policy, and of the one that sampled
-- (of no gradient); advantages: of each document. The mean over documents of the mean over their trained tokens.
--   clip       how far the ratio of the two counts
--   beta       weight of the divergence from `reference`, the log probabilities [t] of another model
function losses.grpo(packed, logprobs, sampled, advantages, opt)
  opt = check(opt, { clip = 0.2, beta = 0, reference = false }, "grpo")
  local ratio = (logprobs - sampled):exp()
  local advantage = advantages:index_select(1, packed.owner)
  local gain = (ratio * advantage):minimum(ratio:clamp(1 - opt.clip, 1 + opt.clip) * advantage)
  if opt.beta > 0 then
    local apart = opt.reference - logprobs
    gain = gain - opt.beta * (apart:exp() - apart - 1)
  end
  return -packed:means(q.where(packed.targets:ge(0), gain, 0)):mean()
end

-- Distillation (Hinton et al. 2015): the divergence from the teacher's distribution over logits [t, vocab], times the
-- square of the temperature, as the mean over tokens whose weight [t] is not 0.
--   temperature  both are softened by it
--   top          over the teacher's k likeliest tokens alone, made a distribution
function losses.distill(logits, teacher, opt)
  opt = check(opt, { temperature = 1, top = 0, weight = false }, "distill")
  local t = opt.temperature
  local function log_probabilities(x) return (x / t):log_softmax() end
  local own = log_probabilities(logits)
  local its, index = q.no_grad(function()
    if opt.top == 0 then return log_probabilities(teacher) end
    local values, places = teacher:topk(opt.top)
    return log_probabilities(values), places
  end)
  if index then own = own:gather(2, index) end
  local divergence = (its:exp() * (its - own)):sum(-1) * (t * t)
  if not opt.weight then return divergence:mean() end
  return (divergence * opt.weight):sum() / opt.weight:sum()
end

return losses
