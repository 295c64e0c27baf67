-- Perplexity of a text, and how a model differs from a reference on it. The two methods are llama.cpp's:
--   chunked  consecutive windows of `context` tokens that do not overlap. The first token of each is BOS if the model
--            adds one. The targets that positions context/2 .. context-2 predict are scored: context - 1 - context/2 of
--            each window.
--   strided  windows `stride` tokens apart. The last `stride` targets of each are scored.
-- Tokens after the last whole window are left out. PPL = exp(mean nll). Its standard error is PPL times that of the
-- mean.

local q = require "qeng.core"
local scoring = require "qeng.infer.scoring"

local perplexity = {}

-- The windows over `count` tokens: {start = from 0, wanted = positions whose next token is scored}...
function perplexity.windows(count, context, stride)
  if context < 4 then q.error("value", ("a context of %d tokens is too short, expected at least 4"):format(context)) end
  local step, first, windows = context, math.floor(context / 2), math.floor(count / context)
  if stride and stride > 0 then
    if stride >= context then
      q.error("value", ("a stride of %d tokens in a context of %d leaves no context"):format(stride, context))
    end
    step, first, windows = stride, context - stride - 1, math.ceil((count - context) / stride)
  end
  local list, wanted = {}, {}
  for position = first, context - 2 do wanted[#wanted + 1] = position end
  for i = 1, windows do list[i] = { start = (i - 1) * step, wanted = wanted } end
  return list
end

-- Mean, standard error of the mean, and count of a list.
function perplexity.mean(list)
  local n, sum, squares = #list, 0, 0
  for _, x in ipairs(list) do sum = sum + x end
  local mean = sum / n
  for _, x in ipairs(list) do squares = squares + (x - mean) ^ 2 end
  return mean, n > 1 and math.sqrt(squares / n / (n - 1)) or 0, n
end

-- The smallest value that at least `share` of the list does not exceed.
function perplexity.quantile(list, share)
  local sorted = {}
  for i, x in ipairs(list) do sorted[i] = x end
  table.sort(sorted)
  return sorted[math.max(1, math.ceil(share * #sorted))]
end

-- The ids of a text, with BOS in front if the model adds one.
function perplexity.ids(tokenizer, text)
  local ids, info = tokenizer:encode(text), tokenizer:info()
  local bos = info.add_bos and info.bos or nil
  if bos then table.insert(ids, 1, bos) end
  return ids, bos
end

local function summary(found)
  local mean, err, count = perplexity.mean(found.nll)
  local ppl = math.exp(mean)
  local result = { ppl = ppl, ppl_error = ppl * err, nll = mean, count = count, windows = found.windows }
  if found.reference then
    local reference = perplexity.mean(found.reference)
    result.reference_ppl = math.exp(reference)
    result.ratio = result.ppl / result.reference_ppl
    result.kl, result.kl_error = perplexity.mean(found.divergence)
    result.kl_99 = perplexity.quantile(found.divergence, 0.99)
    result.same_top = found.same / count
  end
  return result
end

-- Scores text under a model. opt: context (512), stride (0: chunked), most (windows at most, all), reference (a model
-- of the same tokenizer), kv, watch(summary so far, windows in all). Returns {ppl, ppl_error, nll, count, windows}.
-- With a reference also reference_ppl, ratio (ppl / reference_ppl), kl, kl_error, kl_99 (KL(reference || model), nats)
-- and same_top (share of equal likeliest tokens).
function perplexity.run(model, text, opt)
  local context = opt.context or 512
  local ids, bos = perplexity.ids(model.tokenizer, text)
  if opt.reference and opt.reference.tokenizer:hash() ~= model.tokenizer:hash() then
    q.error("value", "perplexity: the reference has another tokenizer, so their tokens cannot be compared")
  end
  local windows = perplexity.windows(#ids, context, opt.stride)
  if #windows == 0 then
    q.error("value", ("perplexity: the text has %d tokens, and a window needs %d; give more text, or a smaller context "
      .. "(--context)"):format(#ids, context))
  end
  local scorer = scoring.new(model, { tokens = context, kv = opt.kv })
  local other = opt.reference and scoring.new(opt.reference, { tokens = context, kv = opt.kv })
  local found = { nll = {}, windows = 0, same = 0, divergence = {}, reference = other and {} }
  local total = math.min(#windows, opt.most or math.huge)
  for i = 1, total do
    local window, tokens, targets = windows[i], {}, {}
    for k = 1, context do tokens[k] = ids[window.start + k] end
    if bos then tokens[1] = bos end
    for k, position in ipairs(window.wanted) do targets[k] = tokens[position + 2] end
    local function score(logits, first, list)
      local these = {}
      for k = 1, logits:shape()[1] do these[k] = targets[first + k - 1] end
      for _, row in ipairs(q.logits.logprobs(logits, these)) do list[#list + 1] = -row.logprob end
    end
    local pieces = {}
    if other then
      other:run(tokens, window.wanted, function(logits, first)
        score(logits, first, found.reference)
        pieces[first] = scoring.copy(logits)
      end)
    end
    scorer:run(tokens, window.wanted, function(logits, first)
      score(logits, first, found.nll)
      if other then
        local divergence, same = q.logits.compare(pieces[first], logits)
        for _, x in ipairs(divergence) do found.divergence[#found.divergence + 1] = x end
        found.same = found.same + same
        pieces[first]:free()
      end
    end)
    found.windows = i
    if opt.watch then opt.watch(summary(found), total) end
  end
  scorer:free()
  if other then other:free() end
  return summary(found)
end

return perplexity
