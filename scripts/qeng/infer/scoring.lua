-- Logits of given tokens, for perplexity and comparisons. They come by the path that generates (infer/paged.lua: stored
-- weights, the KV cache).
--
--   local scorer = scoring.new(model, { tokens = 512 })
--   scorer:run(ids, { 255, 256 }, function(logits, first) ... end)   -- logits [n, vocab] of positions wanted[first] ..
--   scorer:free()

local paged = require "qeng.infer.paged"
local q = require "qeng.core"

local scoring = {}
local Scorer = {}
Scorer.__index = Scorer

-- opt: tokens (the most of a document), kv (dtype of the cache, the model's).
function scoring.new(model, opt)
  local limit = model.config.max_position
  if opt.tokens > limit then
    q.error("value", ("documents of %d tokens exceed the model's %d positions: give a smaller --context"):format(
      opt.tokens, limit))
  end
  local runner = paged.new(model, {
    pages = paged.pages(model, opt.tokens) + 1, kv = opt.kv, rows = opt.tokens, sequences = 1, remember = false,
    context = opt.tokens,
  })
  return setmetatable({ runner = runner, tokens = opt.tokens }, Scorer)
end

-- Runs one document. use(logits, first) gets the rows of positions `wanted` (from 0, ascending), piece by piece. It
-- must not keep them.
function Scorer:run(ids, wanted, use)
  local pool = self.runner.pool
  local id = pool:open(0)
  if not self.runner:extend(id, ids) then
    q.error("value", ("a document of %d tokens, and the scorer was made for %d"):format(#ids, self.tokens))
  end
  self.runner:run({ { id = id, count = #ids } }, wanted, use)
  pool:close(id)
end

function Scorer:free() self.runner:free() end

-- A copy of a piece of logits that outlives it.
function scoring.copy(logits) return q.keep(logits:clone()) end

return scoring
