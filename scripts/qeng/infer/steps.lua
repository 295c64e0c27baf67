-- The steps of an engine (infer/engine.lua): which requests run, which of their tokens, and what becomes of the logits.
--
-- A step is launched, and lands. Where peers have layers of the model, several are under way at once, each over other
-- sequences, or over the next piece of a prompt: each worker has its own to do. They land in the order they began.
-- What a request gets is the same, whatever runs beside it. If a worker is lost, all sequences are computed anew.

local paged = require "qeng.infer.paged"
local q = require "qeng.core"
local speculate = require "qeng.infer.speculate"

local steps = {}

-- How many pages so many tokens take.
local function pages_of(self, tokens) return math.ceil(tokens / self.runner.page_tokens) end
steps.pages_of = pages_of

-- Whether a waits before b: who has run before, then who has the smaller rank, then who came first.
local function before(a, b)
  local a_ran, b_ran = a.preempted > 0, b.preempted > 0
  if a_ran ~= b_ran then return a_ran end
  if not a_ran and a.rank ~= b.rank then return a.rank < b.rank end
  return a.number < b.number
end

-- Puts a request into the queue.
function steps.queue(self, r)
  local at = #self.waiting + 1
  while at > 1 and before(r, self.waiting[at - 1]) do at = at - 1 end
  table.insert(self.waiting, at, r)
end

-- ---------------------------------------------------------------- pages

local function remove(list, item)
  for i, each in ipairs(list) do
    if each == item then return table.remove(list, i) end
  end
end

-- Gives a sequence's pages back.
local function release(self, r)
  if r.id then
    if self.drafter and self.drafter.rows then self.drafter.rows[r.id] = nil end
    self.runner.pool:close(r.id)
  end
  if r.draft_id then self.drafter:close(r) end
  r.id, r.guesses = nil, nil
end

-- Takes the request out of the engine.
function steps.retire(self, r, reason)
  release(self, r)
  remove(r.state == "running" and self.running or self.waiting, r)
  r:finish_with(reason)
end

-- Puts the request back into the queue, before those that came later.
local function preempt(self, r)
  release(self, r)
  remove(self.running, r)
  r.state, r.preempted, r.flying = "waiting", r.preempted + 1, nil
  steps.queue(self, r)
end

-- Admits the first request of the queue as long as there is room for it and for its whole prompt.
local function admit(self)
  while self.waiting[1] and #self.running < self.max_batch do
    local r, pool = self.waiting[1], self.runner.pool
    local id = pool:open(r.salt)
    self.runner:keep_up()
    local reused = r.prompt_logprobs and 0 or pool:share(id, r.tokens)
    local new_pages = pages_of(self, #r.tokens + 1) - math.floor(reused / self.runner.page_tokens)
    if #self.running > 0 and new_pages > pool:available() then
      pool:close(id)
      return
    end
    table.remove(self.waiting, 1)
    r.started_at = r.started_at or q.time()
    r.id, r.length, r.state, r.reused = id, reused, "running", math.max(r.reused, r.preempted == 0 and reused or 0)
    local at = #self.running + 1  -- readmitted ones are older than some that run
    while at > 1 and self.running[at - 1].number > r.number do at = at - 1 end
    table.insert(self.running, at, r)
  end
end

-- ---------------------------------------------------------------- a step

-- Reserves slots for r's tokens first .. last and its guesses. Takes pages from younger sequences if it must. False: r
-- itself had to give way.
local function reserve(self, r, first, last)
  while true do
    if self.runner:extend(r.id, r.tokens, first, last) then
      if r.guesses and not self.runner:extend(r.id, r.guesses) then r.guesses = nil end
      return true
    end
    local at = #self.running
    while self.running[at].flying do at = at - 1 end  -- r is not
    local youngest = self.running[at]
    preempt(self, youngest)
    if youngest == r then return false end
  end
end

local function of_code(err, code) return type(err) == "table" and err.code == code end
local function interrupted(err) return of_code(err, "interrupted") end

-- What peers kept of all sequences is gone: each is computed anew from its tokens, and who asked for it sees a pause.
local function begin_anew(self)
  while #self.running > 0 do preempt(self, self.running[#self.running]) end
  self.flights = {}
  self.runner.pool:forget()
end

-- A peer that has layers is lost: others get them. The same where layers move to who has come.
local function recover(self)
  begin_anew(self)
  self.model.peers:recover()
end

-- Makes the draft model's guesses. Its failure is raised once, and the requests go on without it.
local function draft(self)
  local ok, err = pcall(q.host.interruptible, self.drafter.guess, self.drafter, self.running, speculate.room)
  if ok then return end
  for _, r in ipairs(self.running) do
    if r.draft_id then self.drafter:close(r) end
    r.guesses = nil
  end
  if not interrupted(err) then
    self.drafter:free()
    self.drafter, self.runner.watch = nil, nil
    self.runner:forget()
  end
  error(err, 0)
end

-- r's first r.length tokens were run. What is reserved beyond them belongs to a step that was cut short: it goes.
local function rewind(self, r)
  r.guesses = nil
  r.length = self.runner.pool:rewind(r.id, r.length)
end

-- Which tokens of which sequences this step runs: {request =, first =, count =}, oldest first. Those whose next token a
-- step under way will say have to wait. most: how many sequences.
local function schedule(self, most)
  local plan, budget = {}, self.chunk
  for _, r in ipairs(self.running) do
    if not r.flying then
      rewind(self, r)
      if #r.tokens - r.length == 1 then budget = budget - 1 end
    end
  end
  budget = math.max(budget, math.min(16, self.chunk))  -- prompts go on even where decoding fills the step
  if self.drafter and (not self.pays or #self.running == 0 or self.pays:guesses(#self.running)) then draft(self) end
  local i = 1
  while self.running[i] and #plan < most do
    local r = self.running[i]
    local need = r.flying and 0 or #r.tokens - r.length
    local count = need == 1 and 1 or math.min(need, budget)
    if need == 1 and not r.guesses then speculate.lookup(r, self.said) end
    if count > 0 then
      if not reserve(self, r, r.length + 1, r.length + count) then break end
      if need > 1 then budget = budget - count end
      plan[#plan + 1] = { request = r, first = r.length + 1, count = count }
    end
    i = i + 1
  end
  return plan
end

-- The rows of the step by adapter, and those that need logits: {request =, part =, row = its first, count =}.
local function lay_out(self, plan)
  table.sort(plan, function(a, b)
    if a.request.salt ~= b.request.salt then return a.request.salt < b.request.salt end
    return a.request.number < b.request.number
  end)
  local parts, wanted, readers, rows = {}, {}, {}, 0
  for i, entry in ipairs(plan) do
    local r, guessed = entry.request, entry.request.guesses and #entry.request.guesses or 0
    local count = entry.count + guessed
    parts[i] = { id = r.id, count = count, adapter = r.adapter, salt = r.salt }
    local reaches = entry.first + entry.count - 1 == #r.tokens
    local from = r.prompt_logprobs and entry.first < r.prompt_length and 1 or reaches and entry.count or count + 1
    for k = from, count do
      wanted[#wanted + 1] = rows + k - 1
      readers[#readers + 1] = { request = r, position = entry.first + k - 1, last = k == count }
    end
    rows = rows + count
  end
  return parts, wanted, readers
end

-- Gives a row of logits to its request: for a logprob of the prompt, or for the next token.
local function read_row(self, reader, logits, top)
  local r, position = reader.request, reader.position
  if r.state ~= "running" or r.settled then return end
  local of_prompt = position < r.prompt_length
  if not of_prompt and position < #r.tokens then return end
  local ok, err = pcall(of_prompt and r.measure_prompt or r.sample, r, logits, of_prompt and position or top)
  if not ok and interrupted(err) then error(err, 0) end
  if not ok then
    r.error, r.settled, r.reason = err, true, "error"
    return
  end
  if of_prompt or r.settled then return end
  local guess = r.guesses and r.guesses[position - r.known + 1]
  if guess then
    r.drafted = r.drafted + 1
    if guess == r.tokens[#r.tokens] then r.accepted = r.accepted + 1 else r.settled = true end
  end
end

-- Does what the request asks for when its context is full, unless only the prompt is measured.
local function check_context(self, r)
  if r.reason or #r.tokens < self.context or r.max_tokens == 0 then return end
  if r.context == "shift" then
    release(self, r)
    r:shift(self.context)
    r.id, r.length = self.runner.pool:open(r.salt), 0
  elseif r.context == "error" then
    r.error = { code = "context", message = ("the context of %d tokens is full"):format(self.context) }
    r.reason = "error"
  else
    r.reason = "length"
  end
end

-- Lets requests leave that came to their end, or were cancelled from inside the step.
local function settle(self)
  for i = #self.running, 1, -1 do
    local r = self.running[i]
    check_context(self, r)
    if r.reason then steps.retire(self, r, r.reason) end
  end
  for _, r in ipairs(self.cancelled) do
    if r.state ~= "done" then steps.retire(self, r, "cancelled") end
  end
  self.cancelled = {}
end

-- The tokens that a step gave, if all of its sequences decode; else nil.
local function gained(plan)
  local tokens = 0
  for _, entry in ipairs(plan) do
    local r = entry.request
    if entry.count > 1 or not entry.reaches or r.prompt_logprobs then return nil end
    tokens = tokens + #r.tokens - r.known
  end
  return tokens
end

-- How many steps are worth having under way. Guesses of a draft belong to the last one that landed.
local function depth(self) return self.drafter and 1 or self.runner:depth() end

-- Notes which tokens of an entry's request were run and still stand: with the guesses that came true, without the token
-- sampled last. Where a step failed, those before it.
local function conclude(self, entry, ok)
  local r, last = entry.request, entry.first + entry.count - 1
  if ok and entry.reaches and r.guesses then
    local right = math.min(#r.tokens - r.known - 1, #r.guesses)
    if r.looked then
      speculate.looked_up(r, right > 0)
    else
      speculate.learn(r, #r.guesses, right, self.by_position)
    end
  end
  if r.id and r.id == entry.id then
    if not ok then
      r.length = self.runner.pool:rollback(r.id, entry.first - 1)
    elseif entry.reaches then
      local stored = math.min(last + (r.guesses and #r.guesses or 0), math.max(#r.tokens - 1, last))
      r.length = self.runner.pool:rollback(r.id, stored)
    end
    if ok then self.runner.pool:commit(r.id) end
  end
  if entry.reaches or not ok then r.guesses, r.looked, r.settled, r.flying = nil, nil, nil, nil end
end

-- Sends a step on its way over what can go on; nil where nothing can.
local function launch(self)
  local flight = { began = q.time(), whole = false }
  settle(self)  -- those of a step that was cut short
  admit(self)
  flight.plan = schedule(self, math.ceil(#self.running / depth(self)))
  if #flight.plan == 0 then return nil end
  local parts, wanted
  parts, wanted, flight.readers = lay_out(self, flight.plan)
  for _, entry in ipairs(flight.plan) do
    local r, last = entry.request, entry.first + entry.count - 1
    entry.id, entry.reaches = r.id, last == #r.tokens
    if entry.reaches then r.known, r.settled, r.flying = #r.tokens, false, true else r.length = last end
  end
  for _, reader in ipairs(flight.readers) do
    flight.whole = flight.whole or reader.request:needs_all(reader.position)
  end
  local ok, what = pcall(self.runner.launch, self.runner, parts, wanted)
  if not ok then
    for _, entry in ipairs(flight.plan) do conclude(self, entry, false) end
    error(what, 0)
  end
  flight.what = what
  return flight
end

-- Ends a step: its logits go to their requests.
local function land(self, flight)
  local plan, readers = flight.plan, flight.readers
  local ok, err = pcall(q.host.interruptible, self.runner.land, self.runner, flight.what,
    function(logits, first, largest, ids)
      local function visit(k, row, top) read_row(self, readers[first + k], row, top) end
      paged.each_row(logits, visit, largest, ids, flight.whole)
    end)
  self.steps = self.steps + 1
  local tokens = self.pays and ok and #plan == #self.running and gained(plan)
  if tokens then self.pays:learn(#plan, tokens, q.time() - flight.began) end
  for _, entry in ipairs(plan) do conclude(self, entry, ok) end
  settle(self)
  if not ok then error(err, 0) end
end

-- Launches a step, and lands one where as many are under way as are worth it. Returns whether there is more to do.
function steps.advance(self)
  local ok, err = pcall(function()
    local cache = self.runner.pool.peers
    if self.opened and self.opened ~= cache.opened then begin_anew(self) end  -- layers moved for another engine
    if cache and self.model.peers:wants_move(#self.running == 0) then recover(self) end
    self.opened = cache and cache.opened
    local flights, flight = self.flights, launch(self)
    table.insert(flights, flight)
    if #flights > 0 and (not flight or #flights >= depth(self)) then land(self, table.remove(flights, 1)) end
  end)
  -- Other steps that are under way go on from one that failed.
  if not ok and self.runner.pool.peers then recover(self) end
  if not ok and not of_code(err, "peer") then error(err, 0) end
  return #self.running + #self.waiting > 0
end

return steps
