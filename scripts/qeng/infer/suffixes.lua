-- Guesses from what was said before: the longest end of a request's tokens that occurs earlier, in its own prompt and
-- output or in another request's, and what followed there (as suffix trees find it; Oliaro et al. 2024, arXiv
-- 2411.04975). Every three tokens are indexed by where they end; an occurrence is then followed back as far as it goes.

local suffixes = {}
local Suffixes = {}
Suffixes.__index = Suffixes

local most_nodes = 2 ^ 18  -- occurrences that are kept; with more all are forgotten
local most_looked_at = 24  -- of one end, the latest first
local longest = 32  -- tokens of an end that count

function suffixes.new() return setmetatable({ last = {}, lists = {}, ends = {}, before = {}, count = 0 }, Suffixes) end

local function key(tokens, at)
  return ((tokens[at - 2] * 1000003 + tokens[at - 1]) % 2 ^ 31 * 1000003 + tokens[at]) % 2 ^ 52
end

-- Indexes a request's tokens but the last, which nothing follows yet.
local function index(self, r)
  local tokens = r.tokens
  if r.indexed_in ~= self.lists then r.indexed_in, r.indexed = self.lists, 2 end
  for at = r.indexed + 1, #tokens - 1 do
    local n, k = self.count + 1, key(tokens, at)
    self.lists[n], self.ends[n], self.before[n], self.last[k], self.count = tokens, at, self.last[k], n, n
  end
  r.indexed = math.max(r.indexed, #tokens - 1)
  if self.count > most_nodes then self.last, self.lists, self.ends, self.before, self.count = {}, {}, {}, {}, 0 end
end

-- Up to `count` tokens that may follow r.tokens, and as many as agreed before them at most; nil if there are none.
function Suffixes:guess(r, count)
  local tokens, length = r.tokens, #r.tokens
  if length < 3 then return nil end
  index(self, r)
  local node, best, from, at = self.last[key(tokens, length)], 0, nil, nil
  for _ = 1, most_looked_at do
    if not node then break end
    local list, place, same = self.lists[node], self.ends[node], 0
    while same < longest and place > same and length > same and list[place - same] == tokens[length - same] do
      same = same + 1
    end
    if same > best and list[place + 1] then best, from, at = same, list, place end
    node = self.before[node]
  end
  if best < 3 then return nil end
  local guesses = {}
  for k = 1, math.min(count, best) do
    local token = from[at + k]
    if not token then break end
    guesses[k] = token
  end
  return guesses
end

return suffixes
