-- Continuous batching: many requests in one step. A request can be admitted, cancelled and finished at any step. What
-- it gets does not depend on the others: each has its own sampler, and rows of a step do not change each other's bits
-- (infer/paged.lua).
--
--   local engine = model:engine { kv = "f16", max_batch = 16 }
--   local request = engine:submit { prompt = "Once", max_tokens = 100, seed = 1 }
--   while engine:step() do end
--   print(request.text, request.finish)
--
-- A step runs the tokens that decoding sequences wait for, then pieces of prompts up to `chunk` tokens. Requests are
-- served in the order of their ranks, those of one rank in the order they came. If pages run out, the youngest running
-- sequence gives its pages back. It then waits before all that never ran, and once readmitted its tokens are computed
-- anew. A request that would not fit alone is refused at once, so the oldest always goes on, and all end.
--
-- Lists, requests and pages change together: Ctrl-C is raised only while a model runs and in on_token. The next step
-- goes on from there.

local kv_auto = require "qeng.model.kv_auto"
local mtp_drafts = require "qeng.infer.mtp_drafts"
local paged = require "qeng.infer.paged"
local pays = require "qeng.infer.pays"
local prefixes = require "qeng.infer.prefixes"
local q = require "qeng.core"
local request = require "qeng.infer.request"
local sequences = require "qeng.infer.sequences"
local speculate = require "qeng.infer.speculate"
local suffixes = require "qeng.infer.suffixes"

local engine = {}
local Engine = {}
Engine.__index = Engine

local known = {}
for name in ([[
  kv pages memory page_tokens max_batch chunk context remember draft draft_vocab draft_always
]]):gmatch "%S+" do known[name] = true end

local function positive(opt, name, default)
  local value = opt[name] or default
  if type(value) ~= "number" or value < 1 or value ~= math.floor(value) then
    q.error("value", ("engine: %s is %s, expected a positive integer"):format(name, tostring(value)))
  end
  return value
end

-- opt:
--   kv            how keys and values are kept (model/kv_types.lua), by default in the model's dtype; recurrent states
--                 are f32
--   page_tokens   tokens in a page (16; of a model that keeps recurrent states, what model/snapshots.lua and
--                 model/delta_pages.lua say)
--   pages, or memory   the cache's size, as pages or as bytes of its sequences' state; by default what max_batch
--                 sequences of up to 4096 tokens need, or if the model keeps recurrent states, up to 16 of them
--   max_batch     the most sequences in a step (64)
--   chunk         tokens of prompts in a step (256)
--   context       the most tokens of a sequence (the model's positions)
--   remember      equal beginnings are computed once (true)
--   draft         a model that guesses ahead, whose cache has as many pages; or "mtp", the model's own head
--                 (model/mtp.lua)
--   draft_vocab   "mtp": only the first so many tokens are guessed, or those of a list of ids (all)
--   draft_always  guess also where it does not pay (infer/pays.lua)
function engine.new(model, opt)
  opt = opt or {}
  for name in pairs(opt) do
    if not known[name] then q.error("value", "engine: there is no option " .. tostring(name)) end
  end
  local limit = model.config.max_position
  local self = setmetatable({
    model = model, running = {}, waiting = {}, cancelled = {}, submitted = 0, steps = 0, by_position = {},
    said = suffixes.new(),
    max_batch = positive(opt, "max_batch", 64), chunk = positive(opt, "chunk", 256),
    context = math.min(positive(opt, "context", limit), limit),
  }, Engine)
  local kv = kv_auto.resolve(model, opt.kv or model.dtype)
  local page_tokens = positive(opt, "page_tokens", paged.page_tokens(model, self.context))
  local pages = opt.pages
  local shape = {
    kv = kv, page_tokens = page_tokens, pages = math.huge, remember = opt.remember, context = self.context,
    sequences = self.max_batch, rows = self.chunk + self.max_batch * (speculate.most + 1),
  }
  if opt.memory then
    local _, exact = sequences.exact(model, shape)
    pages = math.floor((opt.memory - exact) / paged.page_bytes(model, kv, page_tokens))
  end
  local counted = paged.keeps_states(model) and math.min(self.max_batch, 16) or self.max_batch
  pages = pages or counted * math.ceil(math.min(self.context, 4096) / page_tokens)
  if pages < 1 then
    q.error("value", ("engine: %d bytes of memory hold no page of %d tokens"):format(opt.memory or 0, page_tokens))
  end
  shape.pages = pages
  self.runner = paged.new(model, shape)
  if opt.draft == "mtp" then
    if not model.mtp then
      q.error("value", "engine: draft is mtp, and the model has no head that drafts tokens: model:attach_mtp()")
    end
    local ids = type(opt.draft_vocab) == "table" and #opt.draft_vocab > 0 and opt.draft_vocab
    self.drafter = mtp_drafts.new(model, self.runner, shape, {
      vocab = ids or opt.draft_vocab and positive(opt, "draft_vocab"), always = opt.draft_always,
    })
  elseif opt.draft then
    self.drafter = speculate.drafter(model, opt.draft, shape)
  end
  self.pays = self.drafter and not opt.draft_always and pays.new()
  return self
end

local function pages_of(self, tokens) return math.ceil(tokens / self.runner.page_tokens) end

-- Whether a waits before b: who has run before, then who has the smaller rank, then who came first.
local function before(a, b)
  local a_ran, b_ran = a.preempted > 0, b.preempted > 0
  if a_ran ~= b_ran then return a_ran end
  if not a_ran and a.rank ~= b.rank then return a.rank < b.rank end
  return a.number < b.number
end

local function queue(self, r)
  local at = #self.waiting + 1
  while at > 1 and before(r, self.waiting[at - 1]) do at = at - 1 end
  table.insert(self.waiting, at, r)
end

-- Queues a request (infer/request.lua has its fields) and returns it. An error of code "value" says why it cannot be
-- served.
function Engine:submit(opt)
  local r = request.new(self, opt)
  local most = math.min(#r.tokens + r.max_tokens, self.context)
  if #r.tokens + math.min(r.max_tokens, 1) > self.context then
    q.error("value", ("engine: a prompt of %d tokens leaves no room in a context of %d: a shorter prompt, or a longer "
      .. "--context"):format(#r.tokens, self.context))
  end
  local needed, there = pages_of(self, most), self.runner.pool:stats().pages
  if needed > there then
    q.error("value", ("engine: a prompt of %d tokens and max_tokens = %.15g need %d pages of %d tokens, the cache has "
      .. "%d: lower max_tokens (--max-tokens) or give it more pages"):format(#r.tokens, r.max_tokens, needed,
      self.runner.page_tokens, there))
  end
  self.submitted = self.submitted + 1
  r.number, r.engine, r.state = self.submitted, self, "waiting"
  if r.max_tokens == 0 and not r.prompt_logprobs then
    r:finish_with "length"
  else
    queue(self, r)
  end
  return r
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
local function retire(self, r, reason)
  release(self, r)
  remove(r.state == "running" and self.running or self.waiting, r)
  r:finish_with(reason)
end

-- Puts the request back into the queue, before those that came later.
local function preempt(self, r)
  release(self, r)
  remove(self.running, r)
  r.state, r.preempted = "waiting", r.preempted + 1
  queue(self, r)
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
    local youngest = self.running[#self.running]
    preempt(self, youngest)
    if youngest == r then return false end
  end
end

local function interrupted(err) return type(err) == "table" and err.code == "interrupted" end

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

-- Which tokens of which sequences this step runs: {request =, first =, count =}, oldest first.
local function schedule(self)
  local plan, budget = {}, self.chunk
  for _, r in ipairs(self.running) do
    rewind(self, r)
    if #r.tokens - r.length == 1 then budget = budget - 1 end
  end
  budget = math.max(budget, math.min(16, self.chunk))  -- prompts go on even where decoding fills the step
  if self.drafter and (not self.pays or #self.running == 0 or self.pays:guesses(#self.running)) then draft(self) end
  local i = 1
  while self.running[i] do
    local r = self.running[i]
    local need = #r.tokens - r.length
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
    if r.reason then retire(self, r, r.reason) end
  end
  for _, r in ipairs(self.cancelled) do
    if r.state ~= "done" then retire(self, r, "cancelled") end
  end
  self.cancelled = {}
end

-- The tokens that a step gave, if all of its sequences decode; else nil.
local function gained(plan)
  local tokens = 0
  for _, entry in ipairs(plan) do
    local r = entry.request
    if entry.count > 1 or r.prompt_logprobs then return nil end
    tokens = tokens + #r.tokens - r.known
  end
  return tokens
end

local function advance(self)
  local began = q.time()
  settle(self)  -- those of a step that was cut short
  admit(self)
  local plan = schedule(self)
  if #plan == 0 then return #self.running + #self.waiting > 0 end
  local parts, wanted, readers = lay_out(self, plan)
  for _, entry in ipairs(plan) do entry.request.known, entry.request.settled = #entry.request.tokens, false end
  local whole = false
  for _, reader in ipairs(readers) do whole = whole or reader.request:needs_all(reader.position) end
  local ok, err = pcall(q.host.interruptible, self.runner.run, self.runner, parts, wanted,
    function(logits, first, largest, ids)
      local function visit(k, row, top) read_row(self, readers[first + k], row, top) end
      paged.each_row(logits, visit, largest, ids, whole)
    end)
  self.steps = self.steps + 1
  local tokens = self.pays and ok and #plan == #self.running and gained(plan)
  if tokens then self.pays:learn(#plan, tokens, q.time() - began) end
  for _, entry in ipairs(plan) do
    local r = entry.request
    if ok and r.guesses then
      local right = math.min(#r.tokens - r.known - 1, #r.guesses)
      if r.looked then
        speculate.looked_up(r, right > 0)
      else
        speculate.learn(r, #r.guesses, right, self.by_position)
      end
    end
    if r.id then
      -- The tokens that were run and still stand: with the guesses that came true, without the token sampled last.
      local last, stored = entry.first + entry.count - 1, entry.first - 1
      if ok then stored = math.min(last + (r.guesses and #r.guesses or 0), math.max(#r.tokens - 1, last)) end
      r.length = self.runner.pool:rollback(r.id, stored)
      if ok then self.runner.pool:commit(r.id) end
    end
    r.guesses, r.looked, r.settled = nil, nil, nil
  end
  settle(self)
  if not ok then error(err, 0) end
  return #self.running + #self.waiting > 0
end

local function outside_steps(self, name)
  if self.stepping then
    q.error("value", ("engine: %s inside a step: on_token may submit and cancel; %s after the step"):format(name, name))
  end
end

local function step(self)
  self.stepping = true
  local ok, more = pcall(advance, self)
  self.stepping = false
  if not ok then error(more, 0) end
  return more
end

-- Runs one step. Returns false once nothing is running or waiting. An error of a request's logits, grammar or on_token
-- ends that request alone. An error of the model is raised here, and the next call tries that step again. Not to be
-- called from on_token.
function Engine:step()
  outside_steps(self, "step")
  return q.host.uninterrupted(step, self)
end

-- Ends a request now (from on_token: after the step), whatever its state. Its text stays. A request that is done is
-- left alone.
function Engine:cancel(r)
  if r.state == "done" then return end
  if self.stepping then table.insert(self.cancelled, r) else q.host.uninterrupted(retire, self, r, "cancelled") end
end

-- Runs until no request is left.
function Engine:finish()
  while self:step() do end
end

-- {running, waiting, steps, kv_bytes (of pages in use), kv_capacity, pages, used, remembered, guesses (of a draft, by
-- how far ahead: {{made, right}...}; a guess is right if those before it are)}
function Engine:stats()
  local stats = self.runner.pool:stats()
  stats.running, stats.waiting, stats.steps = #self.running, #self.waiting, self.steps
  stats.guesses = self.by_position
  local page, exact = self.runner.page_bytes, self.runner.pool.exact_bytes
  stats.kv_bytes = stats.used * page + (exact > 0 and exact * stats.exact_used / stats.exact_pages or 0)
  stats.kv_capacity = stats.pages * page + exact
  return stats
end

-- What the cache holds: {kv (dtype of keys and values), page_tokens, page_bytes, kinds (sequences.kinds), requests =
-- {{number =, tokens =, pages =, reused = tokens that were there already, salt =}...}, beginnings = what is remembered
-- (PagePool:beginnings)}.
function Engine:cache()
  local runner, requests = self.runner, {}
  for i, r in ipairs(self.running) do
    local tokens = runner.pool:length(r.id)
    requests[i] = {
      number = r.number, tokens = tokens, pages = pages_of(self, tokens), reused = r.reused, salt = r.salt,
    }
  end
  return {
    kv = runner.kv, page_tokens = runner.page_tokens, page_bytes = runner.page_bytes, requests = requests,
    kinds = sequences.kinds(self.model, { kv = runner.kv, page_tokens = runner.page_tokens }),
    beginnings = runner.pool:beginnings(),
  }
end

-- To be called after the model's weights changed, when nothing runs: no result of the old ones is used again.
function Engine:forget()
  if #self.running > 0 then q.error("value", "engine: forget: requests are running") end
  for _, runner in ipairs { self.runner, self.drafter and self.drafter.runner or nil } do
    runner:forget()
    runner.pool:forget()
  end
end

-- Writes what is remembered of the beginning of `ids` under an adapter into a file, takes it back in this or a later
-- process, or forgets it (infer/prefixes.lua). How many tokens that are.
function Engine:save_prefix(path, ids, adapter)
  outside_steps(self, "save_prefix")
  return prefixes.save(self, path, ids, adapter)
end
function Engine:load_prefix(path, adapter)
  outside_steps(self, "load_prefix")
  return prefixes.load(self, path, adapter)
end
function Engine:forget_prefix(ids, adapter)
  outside_steps(self, "forget_prefix")
  return prefixes.forget(self, ids, adapter)
end

-- Cancels what is left and frees the cache. Not to be called from on_token.
function Engine:close()
  outside_steps(self, "close")
  for _, list in ipairs { self.running, self.waiting } do
    while #list > 0 do self:cancel(list[#list]) end
  end
  self.runner:free()
  if self.drafter then self.drafter:free() end
end

engine.Engine = Engine
return engine
