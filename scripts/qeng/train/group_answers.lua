-- q.group_answers: a model's own answers to records, several to each, and what they are worth: for training on rewards.

local q = require "qeng.core"

-- Answers to each record's prompt, one group after the other: {record, text, tokens, mask, reward, advantage}. reward:
-- function(record, text, tokenizer) -> number. An advantage is the reward less the group's mean, over its deviation.
-- opt: group (8), max_tokens (128), temperature (1), seed: of the first answer, the next ones have those after it.
return function(model, records, reward, opt)
  local group, found = opt.group or 8, {}
  local engine = model:engine { max_batch = #records * group }
  for p, record in ipairs(records) do
    if type(record.prompt) ~= "string" then q.error("format", "group_answers: a record has no prompt, a text") end
    for g = 1, group do
      found[#found + 1] = { record = record, request = engine:submit {
        messages = { { role = "user", content = record.prompt } }, temperature = opt.temperature or 1,
        max_tokens = opt.max_tokens or 128, seed = (opt.seed or 0) + (p - 1) * group + g } }
    end
  end
  while engine:step() do end
  engine:close()
  for i = 1, #found, group do
    local sum, squares = 0, 0
    for k = i, i + group - 1 do
      local each, request = found[k], found[k].request
      if request.error then error(request.error, 0) end
      each.text, each.tokens, each.mask, each.request = request.text, request.tokens, {}, nil
      local prompt = #request.tokens - #request.output
      if request.stop_id then each.tokens[#each.tokens + 1] = request.stop_id end
      for at = 1, #each.tokens do each.mask[at] = at > prompt and 1 or 0 end
      each.reward = reward(each.record, each.text, model.tokenizer)
      if type(each.reward) ~= "number" then q.error("value", "group_answers: the reward is no number") end
      sum, squares = sum + each.reward, squares + each.reward ^ 2
    end
    local mean = sum / group
    local deviation = math.sqrt(math.max(0, squares / group - mean ^ 2))
    for k = i, i + group - 1 do found[k].advantage = (found[k].reward - mean) / (deviation + 1e-4) end
  end
  return found
end
