-- Whether guessing ahead pays: tokens a second of steps with guesses and of steps without, for batches of about a size.
-- Both are tried now and then; the better one is used. What requests get is the same either way.

local pays = {}
local Pays = {}
Pays.__index = Pays

local first_turns = 6  -- steps of each at the start, of which the first two capture programs and do not count
local pause, again = 96, 4  -- so many steps of the better one, then of the other; the first two do not count

function pays.new() return setmetatable({ sizes = {} }, Pays) end

local function size_of(self, batch)
  local key = math.floor(math.log(batch) / math.log(2) + 0.5)
  local size = self.sizes[key]
  if not size then
    size = { rates = {}, turn = 0, guesses = true, left = first_turns, tried = 0 }
    self.sizes[key] = size
  end
  return size
end

-- Whether the next step of so many sequences should guess.
function Pays:guesses(batch) return size_of(self, batch).guesses end

-- A step of so many sequences, all decoding, gave so many tokens in so many seconds.
function Pays:learn(batch, tokens, seconds)
  local size = size_of(self, batch)
  size.turn = size.turn + 1
  if size.turn > 2 then
    local rate, old = tokens / math.max(seconds, 1e-9), size.rates[size.guesses]
    size.rates[size.guesses] = old and old + 0.15 * (rate - old) or rate
  end
  size.left = size.left - 1
  if size.left > 0 then return end
  size.tried, size.turn = size.tried + 1, 0
  local with, without = size.rates[true], size.rates[false]
  local better = not without or (with or 0) >= without
  if size.tried == 1 then
    size.guesses, size.left = false, first_turns
  elseif size.tried % 2 == 0 then
    size.guesses, size.left = better, pause
  else
    size.guesses, size.left = not better, again
  end
end

return pays
