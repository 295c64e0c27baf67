-- What a cache's type does to a model's answers, on the running engine: documents are scored under each type and under
-- f16, and each position's distributions are compared. Figures of a document are means over its positions, and
-- documents are independent, so intervals and tests are over documents.
--   kl      KL(f16 || type) of the next token, in nats        top1   share of positions with the same likeliest token
--   nll     of the token that comes, and nll_f16 under f16   bytes   of a token in all layers, but for exact ones
-- Types are those of model/kv_types.lua; sim:METHOD,tail=128,sinks=4 is one of simulated.lua with a method of
-- methods.lua, as sim:identity/q4_0 or sim:hadamard2/sphere4+identity/exact.

local capture = require "qeng.turboquant.capture"
local digest = require "qeng.model.digest"
local kv_auto = require "qeng.model.kv_auto"
local kv_bases = require "qeng.model.kv_bases"
local kv_types = require "qeng.model.kv_types"
local methods = require "qeng.turboquant.methods"
local paged = require "qeng.infer.paged"
local perplexity = require "qeng.infer.perplexity"
local q = require "qeng.core"
local scoring = require "qeng.infer.scoring"
local simulated = require "qeng.turboquant.simulated"
local statistics = require "qeng.report.statistics"

local quality = {}

-- tail and sinks of a simulated type.
local function exact_tokens(name, text)
  local opt = { tail = 128, sinks = 4 }
  for part in text:gmatch ",([^,]*)" do
    local key, number = part:match "^(%a+)=(%d+)$"
    if not opt[key] then
      q.error("value", ("type %s: '%s' is no option; expected tail=128 or sinks=4"):format(name, part))
    end
    opt[key] = tonumber(number)
  end
  return opt
end

-- {name =, key = under which figures are kept: the name, and what is in its files, score = function(body): body(kv)
-- with scorers of this type; returns the bytes of a token}
function quality.parse(model, name)
  local c = model.config
  local names, rest = name:match "^sim:([^,]+)(.*)$"
  if not names then
    local kv = kv_auto.resolve(model, name)
    local bases, layers = kv_types.parse(kv).bases, {}
    for _, kind in ipairs(model.states) do layers[#layers + 1] = kind.layer end
    local key = bases and kv .. " " .. kv_bases.identity(bases, layers) or kv
    return { name = name, key = key, score = function(body)
      body(kv)
      return paged.page_bytes(model, kv, 16) / 16
    end }
  end
  local opt = exact_tokens(name, rest)
  opt.method = methods.parse(names, c.head_dim, 1)
  return { name = name, key = name, score = function(body)
    simulated.use(model, opt, function() body "f32" end)
    local bits = 0
    for _, of_layer in pairs(opt.bits) do bits = bits + of_layer end
    return 2 * bits / 8 * c.kv_heads * c.head_dim
  end }
end

-- Figures of a document `ids` under each type: {[name] = {kl =, top1 =, nll =, nll_f16 =}}. Positions from `from` on
-- count, from 0.
function quality.document(model, ids, types, from)
  local wanted, targets, pieces, base = {}, {}, {}, 0
  for position = from, #ids - 2 do wanted[#wanted + 1], targets[#targets + 1] = position, ids[position + 2] end
  local function nll(logits, first)
    local these, sum = {}, 0
    for k = 1, logits:shape()[1] do these[k] = targets[first + k - 1] end
    for _, row in ipairs(q.logits.logprobs(logits, these)) do sum = sum - row.logprob end
    return sum / #wanted
  end
  local function run(kv, use)
    local scorer = scoring.new(model, { tokens = #ids, kv = kv })
    scorer:run(ids, wanted, use)
    scorer:free()
  end
  run("f16", function(logits, first)
    base = base + nll(logits, first)
    pieces[first] = scoring.copy(logits)
  end)
  local found = {}
  for _, kind in ipairs(types) do
    local figures = { kl = 0, top1 = 0, nll = 0, nll_f16 = base }
    figures.bytes = kind.score(function(kv)
      run(kv, function(logits, first)
        figures.nll = figures.nll + nll(logits, first)
        local divergence, same = q.logits.compare(pieces[first], logits)
        for _, x in ipairs(divergence) do figures.kl = figures.kl + x / #wanted end
        figures.top1 = figures.top1 + same / #wanted
      end)
    end)
    found[kind.name] = figures
  end
  for _, piece in pairs(pieces) do piece:free() end
  return found
end

-- Scores documents and keeps each one's figures in out/document_0001.json, also over types: what is there stays, if it
-- is of the same model and document. Returns a list of {[name] = figures}.
-- opt: {tokens =, documents =, from = the first position that counts, document = needle.document instead of
-- quality.document, watch = function(d)}
function quality.run(model, text, types, out, opt)
  local all, bos = perplexity.ids(model.tokenizer, text)
  local weights, documents = digest.of_weights(model), {}
  for d, window in ipairs(capture.windows(all, opt.tokens, opt.documents)) do
    local ids = window.ids
    if bos then ids[1] = bos end
    local path = ("%s/document_%04d.json"):format(out, d)
    local settings = q.host.hash(q.json.encode { ids, opt.from, weights, model.dtype })
    local kept = q.fs.kind(path) and q.json.decode(q.fs.read(path)) or { settings = settings, figures = {} }
    if kept.settings ~= settings then
      q.error("value", path .. ": figures of another model or text; give another folder")
    end
    local missing = {}
    for _, kind in ipairs(types) do
      if not kept.figures[kind.key] then missing[#missing + 1] = kind end
    end
    if #missing > 0 then
      local found = (opt.document or quality.document)(model, ids, missing, opt.from)
      for _, kind in ipairs(missing) do kept.figures[kind.key] = found[kind.name] end
      q.fs.write(path, q.json.encode(kept) .. "\n")
      kept = q.json.decode(q.fs.read(path))
    end
    documents[d] = {}
    for _, kind in ipairs(types) do documents[d][kind.name] = kept.figures[kind.key] end
    if opt.watch then opt.watch(d) end
  end
  return documents
end

-- Rows of a table: name, bytes a token, KL, top-1, the ratio of perplexities and the KL less that of the first type,
-- each with its interval, and whether that differs from 0 (Wilcoxon, Holm).
function quality.rows(types, documents)
  local rows, probabilities = {}, {}
  local function interval(text, values, scale)
    local mean, low, high = statistics.interval(values)
    scale = scale or 1
    return (text .. " (" .. text .. " to " .. text .. ")"):format(scale * mean, scale * low, scale * high)
  end
  for i, kind in ipairs(types) do
    local kl, top1, ratio, off, bytes = {}, {}, {}, {}, 0
    for d, figures in ipairs(documents) do
      local one = figures[kind.name]
      kl[d], top1[d], ratio[d] = one.kl, one.top1, math.exp(one.nll - one.nll_f16)
      off[d], bytes = one.kl - figures[types[1].name].kl, bytes + one.bytes / #documents
    end
    rows[i] = {
      kind.name, ("%.0f"):format(bytes), interval("%.5f", kl), interval("%.2f", top1, 100),
      interval("%.4f", ratio), i > 1 and interval("%+.5f", off) or "", "",
    }
    if i > 1 and #documents > 1 then probabilities[#probabilities + 1] = statistics.wilcoxon(off).probability end
  end
  for i, p in ipairs(statistics.holm(probabilities)) do rows[i + 1][7] = ("%.2g"):format(p) end
  return { "type", "bytes a token", "KL to f16, nats", "same likeliest token, %", "perplexity over f16's",
    "KL less the first's", "Wilcoxon, Holm" }, rows
end

return quality
