-- Guessing ahead, exactly (Leviathan et al. 2023, arXiv 2211.17192). The guesses run through the model in the step of
-- the token before them. Each position is sampled from the model's own logits, with the request's own random numbers.
-- A sample counts as long as the guesses before it were right. So the output is the same as without guesses, greedy or
-- sampled. Only the number of steps differs. After a wrong guess a sequence goes back: to the token before it, or, if
-- the model keeps snapshots (model/snapshots.lua), to the last one, from where its tokens are computed again.

local paged = require "qeng.infer.paged"
local q = require "qeng.core"

local speculate = {}

speculate.most = 8  -- guesses a step

-- How many guesses a request may still use, of those that a drafter makes: as many as came true of late, and one more.
function speculate.room(r)
  return math.min(r.draft_depth or 3, speculate.limit(r, speculate.most))
end

-- Learns from a step's guesses, of which so many were right. by_position: {{guessed, right}...}, added to.
function speculate.learn(r, guessed, right, by_position)
  for k = 1, guessed do
    local at = by_position[k] or { 0, 0 }
    by_position[k] = { at[1] + 1, at[2] + (k <= right and 1 or 0) }
  end
  r.draft_depth = right == guessed and math.min(math.max(r.draft_depth or 3, guessed) + 1, speculate.most)
    or math.max(right + 1, 1)
end

-- How many guesses a request can use at most.
function speculate.limit(r, limit)
  return math.min(limit, speculate.most, r.max_tokens - #r.output - 1, r.engine.context - #r.tokens - 1,
    r.engine.runner.pool:ahead(r.id))
end

-- Guesses from what was said before (infer/suffixes.lua), in `said`. Sets r.guesses. One that is wrong again and again
-- pauses, for longer each time.
function speculate.lookup(r, said)
  local count = r.lookup and speculate.limit(r, r.lookup) or 0
  if count < 1 then return end
  if (r.pause or 0) > 0 then
    r.pause = r.pause - 1
    return
  end
  r.guesses = said:guess(r, count)
  r.looked = r.guesses ~= nil
end

-- Learns from what came of those: whether any was right.
function speculate.looked_up(r, right)
  r.wrong = right and 0 or (r.wrong or 0) + 1
  r.pause = r.wrong >= 4 and math.min(2 ^ (r.wrong - 2), 64) or 0
end

-- ---------------------------------------------------------------- a draft model

local Drafter = {}
Drafter.__index = Drafter

-- Ids have to mean the same to both models, as far as both go. A file may pad its vocabulary, and a model its rows.
local function check_tokens(model, draft)
  local ours, theirs = model.tokenizer, draft.tokenizer
  if not ours or not theirs or ours:hash() == theirs:hash() then return end
  for id = 0, math.min(ours:vocab_size(), theirs:vocab_size()) - 1 do
    if ours:bytes(id) ~= theirs:bytes(id) then
      q.error("value", ("engine: token %d is %q to the model and %q to the draft model: they need the same tokenizer")
        :format(id, ours:bytes(id), theirs:bytes(id)))
    end
  end
end

function speculate.drafter(model, draft, shape)
  check_tokens(model, draft)
  local own = {}
  for key, value in pairs(shape) do own[key] = value end
  own.kv = draft.dtype
  local page_tokens = paged.page_tokens(draft, shape.context)
  if page_tokens ~= paged.page_tokens(model, shape.context) then  -- for as many tokens, in pages of its own
    own.page_tokens = page_tokens
    own.pages = math.ceil(shape.pages * shape.page_tokens / page_tokens) + shape.sequences
    if paged.keeps_states(draft) then
      own.pages = math.min(own.pages, paged.usual_pages(draft, shape.sequences, shape.context, page_tokens))
    end
  end
  return setmetatable({
    runner = paged.new(draft, own), vocab = math.min(model.config.vocab, draft.config.vocab),
    context = draft.config.max_position,
    greedy = q.sampler { temperature = 0 },
  }, Drafter)
end

function Drafter:close(r)
  q.host.uninterrupted(function()
    self.runner.pool:close(r.draft_id)
    r.draft_id = nil
  end)
end

-- Runs `list` of {request =, first =, last =} (tokens of request.tokens, then its guesses), and guesses a token after
-- each.
local function extend(self, list)
  local parts, wanted, rows, done = {}, {}, 0, {}
  for _, entry in ipairs(list) do
    local r = entry.request
    local reserved
    if entry.guess then
      reserved = self.runner:extend(r.draft_id, { entry.guess })
    else
      reserved = self.runner:extend(r.draft_id, r.tokens, entry.first, entry.last)
    end
    if reserved then
      local count = entry.guess and 1 or entry.last - entry.first + 1
      parts[#parts + 1], done[#done + 1] = { id = r.draft_id, count = count, adapter = nil }, entry
      rows = rows + count
      wanted[#wanted + 1] = rows - 1
    end
  end
  if #parts == 0 then return done end
  self.runner:run(parts, wanted, function(logits, first, largest, ids)
    paged.each_row(logits, function(k, row, top)
      local entry = done[first + k]
      if entry.guesses then table.insert(entry.request.guesses, self.greedy:next(row, top)) end
    end, largest, ids)
  end)
  for _, part in ipairs(parts) do self.runner.pool:commit(part.id) end
  return done
end

-- Brings the draft's cache of r in line with r.tokens, whose last one it has not seen. Returns how many tokens it
-- holds.
local function align(self, r)
  local pool = self.runner.pool
  if not r.draft_id then
    q.host.uninterrupted(function() r.draft_id, r.draft_tokens = pool:open(0), {} end)
    pool:share(r.draft_id, r.tokens)
    for i = 1, pool:length(r.draft_id) do r.draft_tokens[i] = r.tokens[i] end
  end
  local held, same = pool:length(r.draft_id), 0
  while same < held and same < #r.tokens - 1 and r.draft_tokens[same + 1] == r.tokens[same + 1] do same = same + 1 end
  return pool:rollback(r.draft_id, same)
end

-- Whether the draft has tokens first .. last of r. A token that only the model has ends its guesses.
local function readable(self, r, first, last)
  for i = first, last do
    if r.tokens[i] >= self.vocab then
      self:close(r)
      r.draft = false
      return false
    end
  end
  return true
end

-- Sets the guesses of requests that decode. The draft's cache follows their tokens; if it is behind, a chunk a step.
function Drafter:guess(running, room)
  local list, budget = {}, self.runner.rows
  for _, r in ipairs(running) do
    local decodes = r.draft and #r.tokens - r.length == 1
    -- The last guess is not run.
    local wants = decodes and math.min(room(r), self.context - #r.tokens + 1) or 0
    if wants > 0 then
      local held = align(self, r)
      local last = math.min(#r.tokens, held + budget)
      if last > held and readable(self, r, held + 1, last) then
        budget = budget - (last - held)
        for i = held + 1, last do r.draft_tokens[i] = r.tokens[i] end
        for i = #r.draft_tokens, last + 1, -1 do r.draft_tokens[i] = nil end
        r.guesses = {}
        list[#list + 1] = { request = r, first = held + 1, last = last, guesses = last == #r.tokens, wants = wants }
      end
    end
  end
  while #list > 0 do
    local nexts = {}
    for _, entry in ipairs(extend(self, list)) do
      local r = entry.request
      local guess = r.guesses[#r.guesses]
      if entry.guesses and guess < self.vocab and #r.guesses < entry.wants then
        r.draft_tokens[#r.draft_tokens + 1] = guess
        nexts[#nexts + 1] = { request = r, guess = guess, guesses = true, wants = entry.wants }
      end
    end
    list = nexts
  end
  for _, r in ipairs(running) do
    local guesses = r.guesses
    if guesses and guesses[#guesses] and guesses[#guesses] >= self.vocab then guesses[#guesses] = nil end
    if guesses and #guesses == 0 then r.guesses = nil end
  end
end

function Drafter:free() self.runner:free() end

return speculate
