-- q.pack: documents side by side in one row, as Model:loss and Model:logprobs take them.

local q = require "qeng.core"

local Packed = {}
Packed.__index = Packed

-- documents: each { tokens = { id, ... }, mask = { 1 where a token is trained, ... } }, as Template:encode gives them,
-- or a list {tokens, mask}. Tokens see those of their own document alone.
local function pack(documents)
  local tokens, targets, positions, owner, cu, counts = {}, {}, {}, {}, { 0 }, {}
  for d, document in ipairs(documents) do
    local ids, mask = document.tokens or document[1], document.mask or document[2]
    if #ids == 0 then q.error("value", ("pack: document %d has no tokens"):format(d)) end
    counts[d] = 0
    for i, id in ipairs(ids) do
      local at = #tokens + 1
      local trained = i < #ids and mask[i + 1] == 1
      tokens[at], positions[at], owner[at] = id, i - 1, d - 1
      targets[at] = trained and ids[i + 1] or -1
      counts[d] = counts[d] + (trained and 1 or 0)
    end
    cu[d + 1] = #tokens
  end
  local longest, trained = 0, 0
  for d = 1, #documents do
    longest, trained = math.max(longest, cu[d + 1] - cu[d]), trained + counts[d]
  end
  return setmetatable({
    tokens = q.tensor(tokens, "i32"), targets = q.tensor(targets, "i32"), positions = q.tensor(positions, "i32"),
    cu_q = q.tensor(cu, "i32"), owner = q.tensor(owner, "i32"), counts = counts, longest = longest, trained = trained,
    scale = q.tensor { 1 / math.max(trained, 1) },
  }, Packed)
end

-- The sum of [t] over the tokens of each document: [documents].
function Packed:sums(x) return q.zeros({ #self.counts }):scatter_add(1, self.owner, x) end
-- The mean over its trained tokens.
function Packed:means(x)
  local counts = {}
  for d, count in ipairs(self.counts) do counts[d] = math.max(count, 1) end
  return self:sums(x) / q.tensor(counts)
end

return { pack = pack, Packed = Packed }
