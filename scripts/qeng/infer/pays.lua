-- Whether guessing ahead pays: tokens a second of steps with guesses and of steps without, for batches of about a size.
-- The better way is used, and the other one tried now and then, more seldom the longer it is the worse one. What
-- requests get is the same either way.

local pays = {}
local Pays = {}
Pays.__index = Pays

local first = { turns = 16, skip = 8 }  -- steps of each way at the start; those skipped are slow, they capture programs
local shortest, longest = 96, 1024  -- steps of the better way between trials of the other
local counted = 16  -- sequences' steps of a trial: one of eight sequences says as much as eight steps of one
local fading = 0.95  -- what a step counts for after each further one

function pays.new() return setmetatable({ sizes = {} }, Pays) end

local function size_of(self, batch)
  local key = math.floor(math.log(batch) / math.log(2) + 0.5)
  local size = self.sizes[key]
  if not size then
    local function sums() return { tokens = 0, seconds = 0 } end
    size = { guesses = true, [true] = sums(), [false] = sums(), left = first.turns, skip = first.skip, trials = 0,
      pause = shortest }
    self.sizes[key] = size
  end
  return size
end

-- Whether the next step of so many sequences should guess.
function Pays:guesses(batch) return size_of(self, batch).guesses end

local function rate(sums) return sums.tokens / math.max(sums.seconds, 1e-9) end

-- Begins a trial of the other way.
local function try_other(size, turns, skip)
  size.guesses, size.trials = not size.guesses, size.trials + 1
  size[size.guesses] = { tokens = 0, seconds = 0 }
  size.left, size.skip, size.on_trial = turns, skip, true
end

-- A step of so many sequences, all decoding, gave so many tokens in so many seconds.
function Pays:learn(batch, tokens, seconds)
  local size = size_of(self, batch)
  local sums = size[size.guesses]
  size.left, size.skip = size.left - 1, size.skip - 1
  if size.skip < 0 then
    sums.tokens, sums.seconds = fading * sums.tokens + tokens, fading * sums.seconds + seconds
  end
  if size.left > 0 then return end
  if size.trials == 0 then return try_other(size, first.turns, 2) end
  if not size.on_trial then return try_other(size, 2 + math.max(4, math.ceil(counted / batch)), 2) end
  local better = rate(size[true]) >= rate(size[false])
  size.pause = better ~= size.guesses and math.min(2 * size.pause, longest) or shortest
  size.guesses, size.left, size.skip, size.on_trial = better, size.pause, 2, false
end

return pays
